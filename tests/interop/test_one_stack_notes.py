"""What a folder of BERT or GPT has and its run does not is named, one line each."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizer_folders
from interop.test_one_stack_runs import make_folder
from safetensors.numpy import load_file, save_file

from jaxformer.cli.main import main
from jaxformer.interop.huggingface import tokenizer_files

CASED = {"do_lower_case": False}


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()) | values))


@pytest.mark.parametrize(
    ("kind", "end", "settings", "line"),
    [
        ("gpt2", "LMHeadModel", {"embd_pdrop": 0.3}, "embd_pdrop=0.3 of config.json"),
        ("gpt2", "LMHeadModel", {}, None),
        (
            *("bert", "ForSequenceClassification", {"classifier_dropout": 0.5}),
            "classifier_dropout=0.5 of config.json (hidden_dropout_prob=0.1 is that of",
        ),
    ],
)
def test_dropout_of_other_places(tmp_path, capsys, kind, end, settings, line):
    """Where its rate differs from that of all places."""
    given = make_folder(tmp_path / "given", kind, end)
    change(given / "config.json", **settings)
    if kind == "bert":
        change(given / "tokenizer_config.json", **CASED)
    assert main(["import", str(given), f"--workdir={tmp_path / 'run'}"]) == 0
    said = capsys.readouterr().err
    assert (said == "") if line is None else said.count(line) == 1


def test_poolers(tmp_path, capsys):
    """One that no head reads, at import; and one that the model does not have and
    transformers does, at export.
    """
    given, run = make_folder(tmp_path / "given", "bert", "Model"), tmp_path / "run"
    change(given / "tokenizer_config.json", **CASED)
    name = given / "model.safetensors"
    state = {f"bert.{key}": tensor for key, tensor in load_file(name).items()}
    head = {"classifier.weight": np.ones((2, 8)), "classifier.bias": np.ones(2)}
    save_file(state | {key: np.float32(x) for key, x in head.items()}, name)
    change(given / "config.json", architectures=["BertForTokenClassification"])
    assert main(["import", str(given), f"--workdir={run}"]) == 0
    assert capsys.readouterr().err == (
        "jaxformer: warning: not taken from the folder: bert.pooler.dense.bias and"
        " bert.pooler.dense.weight (no part of model.head=tagging)\n"
    )
    bare = {key: x for key, x in state.items() if "pooler" not in key}
    save_file(bare, name)
    change(given / "config.json", architectures=["BertModel"])
    assert main(["import", str(given), f"--workdir={run}2"]) == 0
    out = f"--out={tmp_path / 'out'}"
    assert main(["export", f"--workdir={run}2", out, "--format=huggingface"]) == 0
    line = "this model has no pooler, which transformers will draw\n"
    assert capsys.readouterr().err == f"jaxformer: warning: {line}"


@pytest.mark.parametrize(
    ("lower", "capitals", "line"),
    [
        (True, True, "the tokenizer lower-cases text"),
        (False, True, None),
        (True, False, None),
        (False, False, "words with capitals (no piece has one"),
    ],
)
def test_the_case_of_a_tokenizer_is_that_of_its_pieces(tmp_path, lower, capitals, line):
    tokenizer_folders.bert(tmp_path)
    path = tmp_path / "vocab.txt"
    if not capitals:
        pieces = path.read_text("utf-8").split("\n")
        kept = [piece for piece in pieces if piece == piece.lower() or piece[0] == "["]
        path.write_text("\n".join(kept), "utf-8")
    options = {"do_lower_case": lower}
    found = tokenizer_files.compare_case(
        tokenizer_files.build_word_pieces(tmp_path, options)
    )
    assert (found == []) if line is None else line in found[0]
