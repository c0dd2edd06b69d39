"""A trained model by every command, and the launchers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from cli.text import encode, write

import runs
from jaxformer.data import files, sources


@pytest.mark.slow
def test_train_translate_evaluate_score_look(call, tmp_path):
    """A model that is trained, saved and loaded reverses words it has never seen."""
    run = runs.copy(runs.reversal_run(), tmp_path / "run")
    workdir = f"--workdir={run}"
    given = list(sources.load("synthetic:reverse/test", "", ""))
    made = {"checkpoints", "config.json", "curve.png", "metrics.jsonl", "samples.jsonl"}
    made |= {"tensorboard", "vocabulary", ".lock"}
    assert {path.name for path in run.iterdir()} == made

    outcome = call("translate", workdir, stdin=encode(pair.source for pair in given))
    assert (outcome.code, outcome.err, len(outcome.lines)) == (0, "", 500)
    pairs = zip(outcome.lines, given, strict=True)
    assert sum(found == pair.target for found, pair in pairs) > 250
    record = json.loads(call("evaluate", workdir).out)
    assert record["sentences"] == 500
    assert record["bleu"] > 60
    hypotheses = files.read_lines(run / "hypotheses.synthetic_reverse_test.txt")
    assert hypotheses == outcome.lines

    wrong = write(tmp_path / "wrong", [pair.source for pair in given[:64]])
    right = write(tmp_path / "right", [pair.target for pair in given[:64]])

    def score(target):
        options = (f"--source={wrong}", f"--target={target}")
        lines = call("score", workdir, *options).lines
        return sum(float(line.split("\t")[0]) for line in lines)

    assert score(right) > score(wrong) + 500
    assert call("attention", workdir, given[0].source).code == 0
    info = json.loads(call("info", workdir).out)
    assert info["results"]["synthetic:reverse/test"]["bleu"] == record["bleu"]
    assert info["step"] == info["best"] == 200
    assert {"bleu", "chrf", "loss"} <= set(info["checkpoints"]["200"])


@pytest.mark.slow
def test_launchers(tmp_path):
    """They do what the commands do, and fail as they fail. Continuing a finished run
    does nothing, and the standard output of training stays empty.
    """
    run = runs.copy(runs.reversal_run(), tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    keys = """model.d_model model.d_ff model.num_encoder_layers model.num_decoder_layers
        data.num_buckets data.tokens_per_batch training.steps training.warmup_steps
        training.learning_rate training.evaluate_every training.checkpoint_every
        evaluation.max_sentences"""
    same = []
    for key in keys.split():
        section, name = key.split(".")
        same.append(f"--config.{key}={config[section][name]}")

    def script(name, *arguments, stdin=b""):
        line = [sys.executable, f"scripts/{name}.py", *map(str, arguments)]
        options = {"cwd": runs.ROOT, "env": runs.environment(), "check": False}
        return subprocess.run(line, input=stdin, capture_output=True, **options)

    trained = script("train", "--config=configs/reverse.py", f"--workdir={run}", *same)
    assert (trained.returncode, trained.stdout) == (0, b""), trained.stderr
    assert b"finished at step 200" in trained.stderr
    before = (runs.reversal_run() / "metrics.jsonl").read_bytes()
    assert (run / "metrics.jsonl").read_bytes() == before
    translated = script("translate", f"--workdir={run}", stdin=b"a b c\n\nd\n")
    assert (translated.returncode, translated.stderr) == (0, b"")
    assert translated.stdout.count(b"\n") == 3
    failed = script("evaluate", f"--workdir={tmp_path / 'nothing'}")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr.startswith(b"jaxformer: error: ")
    assert failed.stderr.count(b"\n") == 1
