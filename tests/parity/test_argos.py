"""A package translates in Argos Translate as the run does here."""

# pyright: reportOptionalMemberAccess=false

import dataclasses
import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece
import tokenizer_folders
from interop.test_imported_run import imported

import runs
from jaxformer.data.frame import SOURCE, TARGET, TEXT, Template
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.interop import argos, export
from jaxformer.interop.huggingface.families import FAMILIES
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.translation.translator import Translator

try:
    import ctranslate2
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    ctranslate2 = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(ctranslate2 is None, reason="needs the extra `parity`"),
]
TEXTS = [*runs.sentences(10, longest=24), "☃ a_b", "Insert  a new table."]


def translate(folder, texts, compute_type="default"):
    """Translate sentences as Argos Translate 1.11 does, with the files that it reads
    of an installed package.
    """
    metadata = json.loads((folder / "metadata.json").read_bytes())
    prefix = metadata.get("target_prefix", "")
    path = str(folder / "sentencepiece.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    translator = ctranslate2.Translator(
        str(folder / "model"), compute_type=compute_type, intra_threads=1
    )
    found = translator.translate_batch(
        [processor.encode(text, out_type=str) for text in texts],
        target_prefix=[[prefix]] * len(texts) if prefix else None,
        replace_unknowns=True,
        max_batch_size=32,
        batch_type="tokens",
        beam_size=4,
        num_hypotheses=1,
        length_penalty=0.2,
    )
    found = [processor.decode_pieces(each.hypotheses[0]) for each in found]
    return [
        each.replace("▁", " ").replace("_", " ").removeprefix(" ") for each in found
    ]


def biased(vocabularies, languages, tag=None, **changes):
    """Return a translator that ends its sentences and in effect never generates special
    tokens: CTranslate2 bans them before it normalises, jaxformer after.
    """
    source, target = vocabularies.source, vocabularies.target
    sizes = {"vocabulary_size": target.size, "pad_id": target.pad_id}
    if not vocabularies.shared:
        sizes["source_vocabulary_size"] = source.size
    options = {"output_bias": True, "max_length": 320, **sizes, **changes}
    given = runs.translator(**options)
    bias = np.zeros(target.size, np.float32)
    bias[[target.pad_id, target.bos_id, target.unk_id]] = -60
    bias[[*target.languages.values()]] = -60
    bias[target.eos_id] = 1
    return Translator(
        given.model.config,
        {**given.params, "logits": {"bias": jnp.asarray(bias)}},
        vocabularies,
        argos.SEARCH,
        tag=tag,
        source_language=languages[0],
        target_language=languages[1],
    )


def ours(_):
    both = Vocabularies(runs.vocabulary(), runs.vocabulary())
    return biased(both, ("en", "de"))


def two_models_and_tags(_):
    pairs = runs.pairs()
    source = Vocabulary.train([x.source for x in pairs], 300, tags=("de", "fr"))
    target = Vocabulary.train([x.target for x in pairs], 350)
    return biased(Vocabularies(source, target), ("en", "de"), "de")


def m2m100(_):
    """Both sides begin with a language; it is none that the model of SentencePiece
    knows.
    """
    vocabularies = Vocabularies.load(imported() / "vocabulary")
    return biased(vocabularies, ("en", "fr"), positions="sinusoidal_halves")


def marian(path):
    """Two models of SentencePiece over one table, and the language before a source."""
    tokenizer_folders.marian(path)
    found = read_vocabularies(path, {"model_type": "marian"})
    template = Template((TARGET, TEXT, "{eos}"), start="{pad}")
    vocabularies = Vocabularies(found.source, found.target, template)
    return biased(vocabularies, ("eng", "fra"))


def fairseq(path, name, kind, languages, **changes):
    """Without ``tokenizer.json``."""
    tokenizer_folders.fairseq(path, name)
    found = read_vocabularies(path, {"model_type": kind})
    sides = (SOURCE, TEXT, "{eos}"), (TARGET, TEXT, "{eos}")
    vocabularies = dataclasses.replace(found, template=Template(*sides, start="{eos}"))
    return biased(vocabularies, languages, **changes)


def nllb(path):
    return fairseq(path, "Nllb", "m2m_100", ("eng_Latn", "fra_Latn"))


def mbart50(path):
    """Of mBART's positions and norms too."""
    family = {**FAMILIES["mbart"].options, "norm_epsilon": 1e-5, "activation": "gelu"}
    return fairseq(path, "MBart50", "mbart", ("en_XX", "pt_XX"), **family)


def exported(path, translator, **changes):
    """Return the folder of a package."""
    path.mkdir()
    decoding = dataclasses.replace(translator.decoding, **changes)
    assert export.write(path, "argos", translator, decoding) == []
    (folder,) = path.iterdir()
    return folder


@pytest.mark.parametrize(
    "make", [ours, two_models_and_tags, m2m100, nllb, mbart50, marian]
)
def test_a_package_translates_as_the_run(tmp_path, make):
    """Text in, the same text out, with Argos's beam of 4 and length penalty."""
    translator = make(tmp_path)
    folder = exported(tmp_path / "package", translator)
    expected = translator.translate(TEXTS)
    found = translate(folder, TEXTS)
    assert found == [each.replace("_", " ") for each in expected]
    assert len({*found}) > 4


def test_int8_is_smaller(tmp_path):
    """It translates as float32 does that CTranslate2 quantises when it loads."""
    translator = ours(tmp_path)
    full = exported(tmp_path / "float32", translator)
    small = exported(tmp_path / "int8", translator, precision="int8")
    sizes = [(each / "model/model.bin").stat().st_size for each in (small, full)]
    assert sizes[0] < 0.6 * sizes[1]  # the positions stay in float32
    assert translate(small, TEXTS) == translate(full, TEXTS, "int8")


def test_tokens_without_text_have_none_there(tmp_path):
    """Argos decodes the sentences of a paragraph as one, each with its prefix."""
    translator = m2m100(tmp_path)
    folder = exported(tmp_path / "package", translator)
    path = str(folder / "sentencepiece.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    pieces = ["__fr__", *processor.encode("a b", out_type=str), "__de__"]
    assert processor.decode_pieces([*pieces, *pieces]) == "a b a b"
    assert "__fr__" not in processor.encode("__fr__ __fr__", out_type=str)


def test_what_is_never_generated(tmp_path):
    """Not padding, the beginning, a token that the run bans, nor, if so asked, the
    unknown token, even where they are most probable.
    """
    given = ours(tmp_path)
    target = given.vocabularies.target
    banned = [target.pad_id, target.bos_id, target.unk_id, 9]
    likely = jnp.zeros(target.size).at[jnp.array(banned)].set(60)
    params = {**given.params, "logits": {"bias": likely}}
    template = Template(start="{bos}", banned=((9,), (10, 11)))
    vocabularies = dataclasses.replace(given.vocabularies, template=template)
    translator = Translator(
        given.model.config, params, vocabularies, given.decoding, source_language="en",
        target_language="de",
    )  # fmt: skip
    folder = exported(tmp_path / "package", translator, no_unknown=True)
    found = ctranslate2.Translator(str(folder / "model")).translate_batch(
        [runs.vocabulary().pieces(runs.vocabulary().encode(text)) for text in TEXTS],
        beam_size=1,
        max_decoding_length=8,
    )
    seen = {token for each in found for token in each.hypotheses[0]}
    assert len(seen) > 4
    assert not seen & {*target.pieces(banned)}


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_a_source_longer_than_the_model_has_positions(tmp_path, positions):
    """Argos splits no long sentence, and CTranslate2 fails where a position is
    missing.
    """
    both = Vocabularies(runs.vocabulary(), runs.vocabulary())
    translator = biased(both, ("en", "de"), positions=positions, max_length=16)
    folder = exported(tmp_path / "package", translator)
    assert all(translate(folder, ["a b c " * 500]))


COMMAND = ("export", "--format=argos", "--checkpoint=latest")
LINES = "a b c d\nq w e r t y\nz\n"


def packed(path):
    """Export a trained run by the command line."""
    outcome = runs.call(*COMMAND, f"--workdir={runs.reversal_run()}", f"--out={path}")
    assert outcome.code == 0, outcome.err
    assert outcome.err == (
        "jaxformer: warning: --format=argos has no counterpart of alpha=0.6 (there"
        " 0.2), length_penalty=gnmt (there average), max_extra_length=50\n"
    )
    options = ("--length_penalty=average", "--alpha=0.2", "--checkpoint=latest")
    line = ("translate", f"--workdir={runs.reversal_run()}", *options)
    expected = runs.call(*line, stdin=LINES.encode()).lines
    assert len({*expected}) == 3
    return expected


@pytest.mark.slow
def test_the_command_writes_a_package(tmp_path):
    """A ZIP file with one folder, whose files Argos finds by name, and no more."""
    path = tmp_path / "new" / "reverse.argosmodel"
    expected = packed(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    zipfile.ZipFile(path).extractall(tmp_path / "packages")
    (folder,) = (tmp_path / "packages").iterdir()
    assert folder.name == "translate-forwards_backwards"
    assert {each.name for each in folder.iterdir()} == {
        *("metadata.json", "README.md", "sentencepiece.model", "model"),
    }
    metadata = json.loads((folder / "metadata.json").read_bytes())
    version = metadata.pop("package_version")
    assert all(part.isdecimal() for part in version.split("."))
    assert metadata == {
        "argos_version": "1.11",
        "type": "translate",
        "from_code": "forwards",
        "from_name": "forwards",
        "to_code": "backwards",
        "to_name": "backwards",
    }
    assert (
        f"run {runs.reversal_run().name}, checkpoint 200"
        in (folder / "README.md").read_text()
    )
    assert translate(folder, LINES.splitlines()) == expected
