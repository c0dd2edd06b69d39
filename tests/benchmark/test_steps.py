"""``scripts/benchmark/steps.py``: systems that train in turns, and what is refused
before any of them starts.
"""

import dataclasses
import json
import sys

import numpy as np
import pytest

import runs
import steps
from jaxformer.errors import InputError
from tasks import TASKS, Task

SIZES = {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_layers": 2}
TASK = Task(**SIZES, vocabulary_size=40, rows=4, length=8, tokens_per_batch=256)


def write_text(folder):
    files, rng = (folder / "text.en", folder / "text.de"), np.random.default_rng(1)
    words = ["one", "two", "three"], ["eins", "zwei", "drei"]
    for path, known in zip(files, words, strict=True):
        lines = [" ".join(rng.choice(known, rng.integers(1, 12))) for _ in range(40)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files


def test_ratios_are_taken_within_a_turn():
    """A machine that slows down halfway changes no ratio, and an outlier no median."""
    own = [
        {"seconds": s, "work": 100, "steps": 2, "padding": 0.0, "memory_gib": None}
        for s in (1.0, 10.0, 2.0)
    ]
    reference = [{**turn, "seconds": 2 * turn["seconds"]} for turn in own]
    row = steps.summarize(own, reference)
    assert (row["ratio"], row["target_tokens_per_second"]) == (2.0, 50.0)
    assert row["step_ms"] == 1000.0
    assert steps.summarize(own, None)["ratio"] is None


PAIRS = ["--source=text.en", "--target=text.de"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--systems=none", *PAIRS],
            "there is no system 'none': choose from jaxformer",
        ),
        (
            ["--systems=jaxformer-float32,jaxformer-float32"],
            "is named twice: name each",
        ),
        (PAIRS, "at most 56: use a longer text or --model=tiny"),
        ([PAIRS[0], "--target=one.de"], "text.en has 40 lines and one.de has"),
    ],
)
def test_wrong_requests_are_refused(arguments, message, tmp_path, monkeypatch, capsys):
    """In one line, before a system starts."""
    write_text(tmp_path)
    (tmp_path / "one.de").write_text("eins\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(steps, "Process", None)
    monkeypatch.setattr(sys, "argv", ["steps.py", *arguments])
    with pytest.raises((InputError, SystemExit)) as caught:
        steps.main()
    assert message in str(caught.value) + capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parity
def test_systems_learn_in_turn(tmp_path, monkeypatch, capfd):
    """Each has a row for fixed batches and one for text, in this order."""
    pytest.importorskip("torch", reason="needs the extra `parity`")
    for name, value in runs.environment().items():
        monkeypatch.setenv(name, value)
    source, target = write_text(tmp_path)
    monkeypatch.setitem(TASKS, "tiny", dataclasses.replace(TASK, num_layers=1))
    systems = ["jaxformer-float32", "torch-float32"]
    options = [f"--systems={','.join(systems)}", f"--source={source}"]
    options += [f"--target={target}", "--repeats=1", "--steps=2", "--format=jsonl"]
    monkeypatch.setattr(sys, "argv", ["steps.py", *options])
    steps.main()
    printed = capfd.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert "turn 1 of 1: torch-float32" in printed.err
    assert [(row["system"], row["batches"]) for row in rows] == [
        (s, kind) for kind in (steps.FIXED, steps.TEXT) for s in systems
    ]
    figures = "target_tokens_per_second", "ratio", "step_ms", "memory_gib"
    for row in rows:
        assert min(row[name] for name in (*figures, "first_step_seconds")) > 0.0
        assert (row["padding"] == 0.0) == (row["batches"] == steps.FIXED)
        assert row["ratio"] == 1.0 or row["system"] != "torch-float32"
        assert row["machine"].startswith("on the CPU: ")
        assert "torch" in row["machine"]
