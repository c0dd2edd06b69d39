"""``data.normalization``: what of a line comes back from its tokens."""

import json
import re
import unicodedata

import pytest
from pairs import config_of

from jaxformer.data.config import DataConfig, VocabularyModel
from jaxformer.data.normalization import KNOWN, TABLES
from jaxformer.data.prepared import Manifest
from jaxformer.data.preparing import prepare
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.data.vocabulary_training import load_or_train
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from round_trips import awkward_lines

LINES = awkward_lines()
BLANKS = "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029▁ "
BROKEN = [b"", b"zz\t41\n", b"d800\t41\n", b"\xff\t41\n"]
CONTROLS = "".join({*map(chr, [*range(1, 32), *range(127, 160)])} - {*BLANKS})


def cleaned(line):
    """Return what ``identity`` promises."""
    line = line.translate(dict.fromkeys(map(ord, CONTROLS)))
    return re.sub(f"[{BLANKS}]+", " ", line).strip(" ")


def trained(normalization, lines=LINES, model: VocabularyModel = "bpe"):
    size = 600 if model == "bpe" else 350
    return Vocabulary.train(lines, size, model=model, normalization=normalization)


def round_trips(vocabulary, lines):
    return [vocabulary.decode(ids) for ids in vocabulary.encode_batch(lines)]


@pytest.mark.parametrize("model", ["bpe", "unigram"])
class TestWhatIsKept:
    def test_identity_keeps_every_line(self, model):
        """Of any script: no-break spaces, joiners, full-width signs, marks, emoji."""
        assert len(LINES) == 2_000
        assert round_trips(trained("identity", model=model), LINES) == LINES

    def test_identity_cleans_separators_and_control_characters(self, model):
        odd = [f"a{each}b{each}{each} \u00a0c{each}" for each in BLANKS + CONTROLS]
        vocabulary = trained("identity", [*LINES, *odd], model)
        assert round_trips(vocabulary, odd) == [*map(cleaned, odd)]
        assert cleaned(odd[0]) == "a b \u00a0c"

    def test_nfc_is_that_of_unicode(self, model):
        """Hangul syllables, letters with marks in any order, and letters that NFC
        divides.
        """
        lines = [unicodedata.normalize("NFD", line) for line in LINES]
        vocabulary = trained("nfc", [*LINES, *lines], model)
        expected = [unicodedata.normalize("NFC", line) for line in LINES]
        assert round_trips(vocabulary, LINES) == expected
        assert round_trips(vocabulary, lines) == expected


@pytest.mark.parametrize("name", KNOWN)
def test_rules_of_sentencepiece_are_its_own(name):
    """Compatibility forms are replaced; ``_cf`` folds the case too."""
    (text,) = round_trips(trained(name), ["１０⁶ Straße™ ﬁle"])
    assert text == ("106 straßetm file" if name.endswith("cf") else "106 StraßeTM file")


def test_every_composition_of_unicode_is_in_the_rules():
    """Each character and its decomposition become the same text, which is NFC."""
    rules = TABLES["nfc"]()
    for character in map(chr, range(0xA0, 0x110000)):
        parts, composed = (
            unicodedata.normalize(form, character) for form in ("NFD", "NFC")
        )
        for text in {character, parts} - {composed}:
            assert rules[text] == composed


class TestOwnRules:
    def test_a_file_of_rules(self, tmp_path):
        """It is read once: the vocabulary holds the rules, and no path."""
        path = tmp_path / "rules.tsv"
        path.write_text("41\t42\n43 44\t\n")
        vocabulary = trained(str(path))
        path.unlink()
        loaded = Vocabulary.from_files(vocabulary.files)
        assert round_trips(loaded, ["A CDB ½"]) == ["B B ½"]
        assert str(tmp_path).encode() not in vocabulary.files["model"]

    @pytest.mark.parametrize("name", ["nfck", "missing/rules.tsv"])
    def test_an_unknown_name_is_refused(self, name):
        """As a file that does not exist, with the known names."""
        with pytest.raises(InputError, match=f"no file '{name}': .*identity, nfc, or"):
            trained(name)

    @pytest.mark.parametrize("text", BROKEN)
    def test_a_broken_file_is_refused(self, tmp_path, text):
        """Without SentencePiece's own message."""
        path = tmp_path / "rules.tsv"
        path.write_bytes(text)
        with pytest.raises(InputError) as caught:
            trained(str(path))
        assert str(caught.value).startswith(
            f"data.normalization={path} is no table of rules: a line is a text and"
        )
        assert "INTERNAL" not in str(caught.value)


class TestConfiguration:
    def test_it_makes_the_vocabularies_of_both_sides(self, tmp_path):
        pairs = list(load("bundled:en-de/valid", "en", "de"))
        pairs = [pair._replace(target=f"{pair.target} ½™") for pair in pairs]
        config = DataConfig(
            vocabulary_size=500, shared_vocabulary=False, normalization="identity"
        )
        for side in ("source", "target"):
            found = getattr(load_or_train(tmp_path, config, pairs), side)
            assert (
                found.decode(found.encode(pairs[0][side == "target"]))
                == (pairs[0][side == "target"])
            )

    def test_a_run_or_folder_without_the_key_had_nmt_nfkc(self, tmp_path):
        """Whatever the default is."""
        prepare(config_of(), tmp_path / "folder")
        manifest = json.loads((tmp_path / "folder/manifest.json").read_text())
        del manifest["request"]["normalization"]
        (tmp_path / "folder/manifest.json").write_text(json.dumps(manifest))
        saved = tmp_path / "config.json"
        configuration.save(configuration.parse({}), saved)
        record = json.loads(saved.read_text())
        del record["data"]["normalization"]
        saved.write_text(json.dumps(record))
        assert configuration.load(saved).data.normalization == "nmt_nfkc"
        request = Manifest.load(tmp_path / "folder").request
        assert request["normalization"] == "nmt_nfkc"

    def test_bytes_have_no_rules(self):
        """They spell every text as it is."""
        with pytest.raises(InputError, match=r"data\.normalization=nfc is for"):
            DataConfig(kind="text", vocabulary_model="bytes", normalization="nfc")
        pytest.importorskip("tokenizers")
        vocabulary = Vocabulary.train(LINES, 400, model="bytes")
        assert round_trips(vocabulary, LINES) == LINES
