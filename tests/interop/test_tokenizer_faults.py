"""Vocabularies of a Hugging Face folder: damaged, missing or of another model."""

import json
import sys

import pytest
import tokenizer_folders
from tokenizer_folders import FOLDERS, awkward_lines, write

from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.interop.huggingface.tokenizers import read_vocabularies

each_kind = pytest.mark.parametrize("kind", FOLDERS)


FILE_OF = {
    "Marian": "source.spm",
    "mBART by JSON": "tokenizer.json",
    "BART": "merges.txt",
    "BART by JSON": "tokenizer.json",
}


@pytest.mark.parametrize("fault", ["empty", "junk", "cut", "missing"])
@each_kind
def test_a_damaged_or_missing_file_is_named(tmp_path, kind, fault):
    make, model_type = FOLDERS[kind]
    make(tmp_path)
    path = tmp_path / FILE_OF.get(kind, "sentencepiece.bpe.model")
    content = path.read_bytes()
    if fault == "missing":
        path.unlink()
    else:
        bad = {
            "empty": b"",
            "junk": b"\x00\xff junk",
            "cut": content[: len(content) // 3],
        }
        path.write_bytes(bad[fault])
        if kind == "BART" and fault in ("empty", "cut"):
            path = tmp_path / "vocab.json"  # any part of merges.txt is one
            path.write_bytes(bad[fault])
    with pytest.raises(InputError, match=str(tmp_path)) as error:
        read_vocabularies(tmp_path, {"model_type": model_type})
    said = str(error.value)
    assert "\n" not in said
    assert path.name in said or fault == "missing"
    if fault == "missing":
        assert f"the tokenizer of a model of type {model_type} is" in said


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("vocab.json", b"[]", "not a JSON object"),
        ("vocab.json", {"a": 1, "b": 1}, "'b' has the id 1"),
        ("vocab.json", {"a": -1}, "'a' has the id -1"),
        ("vocab.json", {"a": 0, "</s>": 1, "<pad>": 2}, "no <unk>"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is no JSON"),
        (
            "tokenizer_config.json",
            {"separate_vocabs": True},
            "target_vocab.json is missing",
        ),
    ],
)
def test_faults_of_the_tables(tmp_path, name, content, rule):
    tokenizer_folders.marian(tmp_path)
    write(tmp_path, name, content)
    with pytest.raises(InputError, match=rule) as error:
        read_vocabularies(tmp_path, {"model_type": "marian"})
    assert "\n" not in str(error.value)


@each_kind
def test_another_model_than_the_vocabulary_is_of(tmp_path, kind):
    """More ids than rows, or other special ids; rows may be more."""
    make, model_type = FOLDERS[kind]
    make(tmp_path)
    settings = {"model_type": model_type}
    size = read_vocabularies(tmp_path, settings).source.size
    for rows in (size, size + 8):
        read_vocabularies(tmp_path, settings | {"vocab_size": rows})
    with pytest.raises(
        InputError, match=rf"has {size:,} ids and the model {size - 1:,}"
    ):
        read_vocabularies(tmp_path, settings | {"vocab_size": size - 1})
    with pytest.raises(InputError, match=r"eos is id \d+ of .* and 77 of the model"):
        read_vocabularies(tmp_path, settings | {"eos_token_id": 77})


@pytest.mark.parametrize("as_json", [False, True])
def test_a_mask_without_a_row_is_left_out(tmp_path, as_json):
    """As in bart-large-cnn, whose model has no row for its last piece, <mask>."""
    tokenizer_folders.bart(tmp_path, as_json=as_json)
    name = "tokenizer.json" if as_json else "vocab.json"
    content = json.loads((tmp_path / name).read_bytes())
    ids = content["model"]["vocab"] if as_json else content
    last, before = len(ids) - 1, ids["<mask>"]
    moved = {piece: id_ - (id_ > before) for piece, id_ in ids.items()}
    ids |= moved | {"<mask>": last}
    for token in content["added_tokens"] if as_json else ():
        token["id"] = ids[token["content"]]
    write(tmp_path, name, content)
    settings = {"model_type": "bart", "vocab_size": last}
    found = read_vocabularies(tmp_path, settings).source
    assert (found.size, found.mask_id) == (last, None)
    whole = read_vocabularies(tmp_path, settings | {"vocab_size": last + 1}).source
    assert (whole.size, whole.mask_id) == (last + 1, last)
    lines = awkward_lines(200)
    assert found.encode_batch(lines) == whole.encode_batch(lines)
    with pytest.raises(InputError, match="they are not of one model"):
        read_vocabularies(tmp_path, settings | {"vocab_size": last - 1})


def test_an_id_beyond_the_number_of_pieces(tmp_path):
    """The largest must have a row, and each before it a piece."""
    tokenizer_folders.bart(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_bytes())
    write(tmp_path, "vocab.json", ids | {"a": 5000})
    settings = {"model_type": "bart", "vocab_size": len(ids)}
    with pytest.raises(InputError, match=r"has 5,001 ids and the model"):
        read_vocabularies(tmp_path, settings)
    with pytest.raises(InputError, match="number them without holes"):
        read_vocabularies(tmp_path, settings | {"vocab_size": 6000})


@pytest.mark.parametrize(
    ("kind", "name", "added"),
    [
        ("Marian", "added_tokens.json", {"Tabelle": 900}),
        ("M2M-100", "added_tokens.json", {"__tlh__": 1400}),
        (
            *("M2M-100", "tokenizer_config.json"),
            {"added_tokens_decoder": {"7": {"content": "Tabelle"}}},
        ),
    ],
)
def test_tokens_that_were_added_are_refused(tmp_path, kind, name, added):
    """If they are not among the pieces."""
    make, model_type = FOLDERS[kind]
    make(tmp_path)
    write(tmp_path, name, added)
    with pytest.raises(InputError, match=r"the token '.*' of id \d+ was added"):
        read_vocabularies(tmp_path, {"model_type": model_type})


def test_a_missing_package_names_its_extra(read, tmp_path, monkeypatch):
    read("BART").save(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"tokenizers.*jaxformer\[train\]"):
        Vocabularies.load(tmp_path)
