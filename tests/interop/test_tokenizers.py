"""Vocabularies of a Hugging Face folder, without transformers. That ids and text are
transformers' is tested in tests/parity.
"""

import copy
import json
import pickle

import numpy as np
import pytest
import tokenizer_folders
from tokenizer_folders import FOLDERS, awkward_lines, pieces_of, spelled, train, write

from jaxformer.data.config import DataConfig
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_training import load_or_train
from jaxformer.errors import InputError
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.training import run

each_kind = pytest.mark.parametrize("kind", FOLDERS)
TEXT = "Insert a new table."


@each_kind
def test_a_run_keeps_equal_vocabularies(read, kind, tmp_path, monkeypatch):
    """Saved, loaded, copied, and sent to another host as JSON."""
    vocabularies = read(kind)
    vocabularies.save(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    table = {"shared.model", "shared.pieces.json"}
    layouts = {
        "Marian": {
            name.replace("shared", x) for name in table for x in ("source", "target")
        },
        "mBART by JSON": {"shared.tokenizer.json"},
    }
    default = {"shared.tokenizer.json"} if "BART" in kind[:4] else table
    assert names == layouts.get(kind, default)
    assert Vocabularies.exist(tmp_path)
    assert not Vocabularies.exist(tmp_path / "none")
    monkeypatch.setattr(run, "make_once", lambda make: json.loads(json.dumps(make())))
    sent = run._share(lambda: vocabularies)
    assert (sent.source is sent.target) == (kind != "Marian")
    for twin in (
        Vocabularies.load(tmp_path),
        sent,
        pickle.loads(pickle.dumps(vocabularies)),
        copy.deepcopy(vocabularies),
    ):
        assert twin == vocabularies
        assert twin.hash == vocabularies.hash
        assert twin.shared
        assert twin.target.encode(TEXT) == vocabularies.target.encode(TEXT)
    other = read("M2M-100" if kind != "M2M-100" else "NLLB")
    assert other.hash != vocabularies.hash
    assert other != vocabularies


@each_kind
def test_text_is_kept_and_never_a_control_id(read, kind):
    """Special pieces in a line are text, also where the model has them as pieces."""
    for vocabulary in (read(kind).source, read(kind).target):
        assert vocabulary.decode(vocabulary.encode(TEXT)) == TEXT
        controls = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id}
        controls |= set(vocabulary.languages.values())
        names = vocabulary.pieces(range(vocabulary.size))
        if "<mask>" in names:
            controls.add(names.index("<mask>"))
        assert kind[:4] == "BART" or len(vocabulary.languages) > 1
        lines = spelled(vocabulary.pieces(sorted(controls)))
        for ids in vocabulary.encode_batch(lines + awkward_lines()[:300]):
            assert not controls & set(ids)
            assert all(0 <= token < vocabulary.size for token in ids)
        line = "a de_DE b"
        text = vocabulary.decode(vocabulary.encode(line))
        assert set(text.split()) >= {"a", "b"}
        assert "de" in text.replace(" ", "").lower()


@each_kind
def test_encoding_is_the_same_in_any_batch(read, kind):
    """One by one, by threads, and with halves of surrogate pairs."""
    vocabulary, lines = read(kind).source, awkward_lines()[:50]
    found = vocabulary.encode_batch(lines)
    assert vocabulary.encode_batch(lines, threads=1) == found
    assert [vocabulary.encode(line) for line in lines] == found
    assert vocabulary.encode_batch([]) == []
    assert vocabulary.encode("a \ud800 b") == vocabulary.encode("a ? b")


@each_kind
def test_decoding_ends_at_the_first_eos(read, kind):
    """It skips every control id and unk; ids out of range read as unk."""
    v = read(kind).target
    ids = v.encode(TEXT)
    silent = [v.pad_id, v.unk_id, *v.languages.values(), -1, v.size, 2**40]
    assert v.decode([*silent, *ids, *silent, v.eos_id, *ids]) == TEXT
    assert v.decode(np.array([*ids, v.eos_id, 5], np.int32)) == TEXT
    assert v.decode([]) == v.decode([v.eos_id, *ids]) == ""
    assert v.pieces([-1, v.size, v.unk_id]) == ["<unk>"] * 3
    assert "".join(v.pieces(ids)).replace("▁", " ").strip() == TEXT


def test_marian_takes_ids_from_its_table(tmp_path):
    """Also of a piece that one SentencePiece model lacks. One that only the table has
    decodes, one that the table lacks is unk, and holes have no text.
    """
    model = train(600)
    _, _, _, first, second, last, *_ = pieces_of(model)
    ids = {"</s>": 0, "<unk>": 1, first: 6, second: 5, "☃": 3, ">>fra<<": 4, "<pad>": 8}
    for side in ("source", "target"):
        write(tmp_path, f"{side}.spm", model)
    write(tmp_path, "vocab.json", ids)
    v = read_vocabularies(tmp_path, {"model_type": "marian", "vocab_size": 9}).source
    assert (v.size, v.eos_id, v.unk_id, v.pad_id, v.bos_id) == (9, 0, 1, 8, 8)
    assert v.languages == {"fra": 4}
    assert v.tag_id("fra") == 4
    assert v.pieces([6, 5, 2]) == [first, second, "<unk>"]
    assert 3 in v.encode("☃")
    assert v.decode([3, 2, 1, 3]) == "☃☃"
    assert v.encode(">>fra<< ☃").count(4) == 0
    assert last not in ids
    assert set(v.encode(TEXT)) <= {1, 5, 6}


def test_which_mbart_it_is(tmp_path):
    """The class of the tokenizer says so, or else the rows of the model."""
    tokenizer_folders.fairseq(tmp_path, "MBart50")
    settings = {"model_type": "mbart", "vocab_size": 1201 + 53}
    assert read_vocabularies(tmp_path, settings).source.size == 1201 + 53
    (tmp_path / "tokenizer_config.json").unlink()
    assert read_vocabularies(tmp_path, settings).source.size == 1201 + 53
    settings["vocab_size"] -= 1
    assert read_vocabularies(tmp_path, settings).source.size == 1201 + 26


def test_wmt21_has_its_own_languages(tmp_path):
    tokenizer_folders.m2m100(tmp_path)
    write(tmp_path, "tokenizer_config.json", {"language_codes": "wmt21"})
    found = read_vocabularies(tmp_path, {"model_type": "m2m_100"}).source
    assert list(found.languages) == ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]


def test_byte_level_pieces_read_as_text(read, tmp_path):
    """A space is "▁"; a line end decodes to a space."""
    v = read("BART").source
    ids = v.encode(" the é\nx")
    names = v.pieces(ids)
    assert names[0].startswith("▁")
    assert v.decode(ids) == " the é x"
    assert set(v.pieces(v.encode("😀"))) >= {"\ufffd"}
    tokenizer_folders.bart(tmp_path)
    write(tmp_path, "tokenizer_config.json", {"add_prefix_space": True})
    prefixed = read_vocabularies(tmp_path, {"model_type": "bart"}).source
    assert prefixed.encode("the") == v.encode(" the") != v.encode("the")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_pieces_that_continue_a_word(tmp_path, kind):
    """``##`` in WordPiece, and what has no space before it in bytes."""
    getattr(tokenizer_folders, kind)(tmp_path)
    v = read_vocabularies(tmp_path, {"model_type": kind}).source
    words = TEXT.split()
    ids = v.encode_batch([words[0], *(f" {word}" for word in words[1:3])])
    for number, own in enumerate(ids):
        found = v.continuing[own].tolist()
        # The first word of a text has no space before it, and nothing to continue.
        assert found[1:] == [True] * (len(own) - 1)
        assert number == 0 or not found[0]


def test_segmentations_are_drawn_where_the_model_has_some(read):
    v = read("mBART").source
    drawn = [v.sample_batch([TEXT], alpha=0.2, seed=seed)[0] for seed in range(5)]
    assert len({*map(tuple, drawn)}) > 1
    assert {v.decode(ids) for ids in drawn} == {TEXT}
    assert v.sample_batch([TEXT], alpha=0.2, seed=3) == [drawn[3]]
    with pytest.raises(InputError, match=r"segmentation_alpha needs .* leave it out"):
        read("BART").source.sample_batch([TEXT], alpha=0.1, seed=0)


@pytest.mark.parametrize(
    ("kind", "given", "nearest"),
    [
        ("NLLB", "en", "eng_Latn"),
        ("NLLB", "zh", "zho_Hans, zho_Hant"),
        ("mBART", "de", "de_DE"),
        ("M2M-100", "eng", "en"),
        ("Marian", "fr", "fra, deu"),
    ],
)
def test_an_unknown_language_gets_the_nearest(read, kind, given, nearest):
    with pytest.raises(
        InputError, match=f"no language '{given}'.* are {nearest}"
    ) as error:
        read(kind).source.tag_id(given)
    assert str(error.value).count(",") <= 4
    assert "\n" not in str(error.value)


def test_a_vocabulary_without_languages_says_so(read):
    with pytest.raises(
        InputError, match=r"has no languages, and 'de' .*: leave it out"
    ):
        read("BART").source.tag_id("de")


def test_fine_tuning_takes_them_as_they_are(read, tmp_path):
    """Nothing is trained, and another size of either side is refused."""
    for kind in ("NLLB", "Marian", "BART"):
        folder, size = tmp_path / kind, read(kind).target.size
        read(kind).save(folder)
        config = DataConfig(vocabulary_size=size)
        assert load_or_train(folder, config, []) == read(kind)
        with pytest.raises(InputError, match=f"vocabulary_size is 8000 .* has {size}"):
            load_or_train(folder, DataConfig(), [])
    tokenizer_folders.marian(tmp_path, separate=True)
    apart = read_vocabularies(tmp_path, {"model_type": "marian"})
    assert not apart.shared
    apart.save(tmp_path / "apart")
    sizes = {
        "vocabulary_size": apart.target.size,
        "source_vocabulary_size": apart.source.size,
    }
    with pytest.raises(InputError, match=f"has {apart.source.size} pieces"):
        load_or_train(
            tmp_path / "apart", DataConfig(vocabulary_size=apart.target.size), []
        )
    config = DataConfig(shared_vocabulary=False, **sizes)
    assert load_or_train(tmp_path / "apart", config, []) == apart
