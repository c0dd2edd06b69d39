"""The road of a person: train, translate, evaluate, score, look; in processes of
their own.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import runs
from jaxformer.data import files, sources


def script(
    name: str, *arguments: object, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, f"scripts/{name}.py", *map(str, arguments)]
    return subprocess.run(
        line,
        input=stdin,
        capture_output=True,
        cwd=runs.ROOT,
        env=runs.environment(),
        check=False,
    )


@pytest.mark.slow
def test_train_translate_evaluate_score_look(call, tmp_path):
    """A model that is trained, saved and loaded reverses words it has never seen, by
    every command.
    """
    run = runs.copy(runs.reversal_run(), tmp_path / "run")
    workdir = f"--workdir={run}"
    given = list(sources.load("synthetic:reverse/test", "", ""))
    names = {path.name for path in run.iterdir()}
    made = {
        "checkpoints",
        "config.json",
        "curve.png",
        "metrics.jsonl",
        "samples.jsonl",
        "tensorboard",
        "vocabulary",
        ".lock",
    }
    assert names == made

    done = runs.command(
        "translate",
        workdir,
        stdin="".join(pair.source + "\n" for pair in given).encode(),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    translations = done.stdout.decode().split("\n")[:-1]
    assert len(translations) == 500
    assert (
        sum(
            found == pair.target
            for found, pair in zip(translations, given, strict=True)
        )
        > 250
    )

    record = json.loads(call("evaluate", workdir).out)
    assert record["sentences"] == 500
    assert record["bleu"] > 60
    assert (
        files.read_lines(run / "hypotheses.synthetic_reverse_test.txt") == translations
    )

    for side, lines in (
        ("right", [p.target for p in given[:64]]),
        ("wrong", [p.source for p in given[:64]]),
    ):
        (tmp_path / side).write_text("".join(line + "\n" for line in lines))
    scores = {
        side: [
            float(line.split("\t")[0])
            for line in call(
                "score",
                workdir,
                f"--source={tmp_path / 'wrong'}",
                f"--target={tmp_path / side}",
            ).lines
        ]
        for side in ("right", "wrong")
    }
    assert sum(scores["right"]) > sum(scores["wrong"]) + 500

    assert call("attention", workdir, given[0].source).code == 0
    info = json.loads(call("info", workdir).out)
    assert info["results"]["synthetic:reverse/test"]["bleu"] == record["bleu"]
    assert info["step"] == 200


@pytest.mark.slow
def test_training_says_all_on_standard_error(tmp_path):
    """Going on with a finished run does nothing, and the standard output of training
    stays empty.
    """
    run = runs.copy(runs.reversal_run(), tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    options = [
        f"--config.{section}.{key}={value}"
        for section, key in (
            *(
                ("model", key)
                for key in (
                    "d_model",
                    "d_ff",
                    "num_encoder_layers",
                    "num_decoder_layers",
                )
            ),
            ("data", "num_buckets"),
            *(
                ("training", key)
                for key in (
                    "steps",
                    "warmup_steps",
                    "evaluate_every",
                    "checkpoint_every",
                )
            ),
            ("evaluation", "max_sentences"),
        )
        for value in [config[section][key]]
    ]
    done = script("train", "--config=configs/reverse.py", f"--workdir={run}", *options)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"finished at step 200" in done.stderr
    before = (runs.reversal_run() / "metrics.jsonl").read_bytes()
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_scripts(tmp_path):
    """The launchers do what the commands do, and fail as they fail."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    source = tmp_path / "source"
    source.write_text("a b c\n\nd\n")
    translated = script("translate", f"--workdir={run}", stdin=source.read_bytes())
    assert (translated.returncode, translated.stderr) == (0, b"")
    assert translated.stdout.count(b"\n") == 3
    evaluated = script(
        "evaluate", f"--workdir={run}", f"--source={source}", f"--reference={source}"
    )
    assert (evaluated.returncode, evaluated.stderr) == (0, b"")
    assert json.loads(evaluated.stdout)["sentences"] == 3
    failed = script("evaluate", f"--workdir={tmp_path / 'nothing'}")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr.startswith(b"jaxformer: error: ")
    assert failed.stderr.count(b"\n") == 1
    assert script("train").returncode == 2
