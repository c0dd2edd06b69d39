"""``scripts/benchmark/steps.py``: systems that train in turns, and what is refused
before any of them starts.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import runs
import steps
import turns
from jaxformer.errors import InputError
from tasks import PAD, TASKS, Task, fixed_batches

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
        (["--steps=0"], "must be at least 1, not 0"),
        (["--source=text.en"], "--source and --target are given together"),
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


def test_text_is_spread_evenly_and_has_ends(tmp_path):
    """Pairs come from the whole text; none is empty or endless. A budget below the
    longest row is refused before a system starts.
    """
    pairs = steps.read_text(*write_text(tmp_path), 10, 40)
    assert len(pairs) == 10
    assert pairs.source_lengths.min() > 1
    assert all(pairs.source[i][-1] == pairs.target[i][-1] for i in range(10))
    task = Task(tokens_per_batch=100)
    with pytest.raises(InputError, match="100 tokens does not hold a row of 128"):
        steps.measure(task, ["jaxformer-float32"], pairs, 1, 1)


@pytest.mark.parametrize("variation", ["packing", "scanned"])
def test_variations_of_ours(variation, tmp_path):
    """Rows are packed, or layers scanned."""
    pairs = steps.read_text(*write_text(tmp_path), 10, 40)
    learner = steps.make_learner(f"jaxformer-float32-{variation}", TASK)
    batches = learner.batches(pairs)
    assert (set(batches[0]) != {"source", "target"}) == (variation == "packing")
    scanned = "layers" in learner.parameters()["encoder"]
    assert scanned == (variation == "scanned")


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


DYING = """
import os, sys, turns
sys.stdin.readline()
if {later}:
    turns.say({{}})
    sys.stdin.readline()
{ends}
"""


@pytest.mark.parametrize(
    ("later", "ends", "message"),
    [
        (0, "sys.exit(3)", "torch-float32 ended with exit code 3: fix the error above"),
        (1, "os.kill(os.getpid(), 9)", "torch-float32 was killed, as happens without"),
    ],
)
def test_a_system_that_ends_is_named(later, ends, message, tmp_path):
    """At its start or in a turn: which it was, and what to do."""
    script = tmp_path / "dying.py"
    script.write_text(DYING.format(later=later, ends=ends), encoding="utf-8")
    folders = runs.ROOT / "scripts" / "benchmark", runs.ROOT
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    with (
        pytest.raises(InputError, match=message),
        turns.Process("torch-float32", str(script), {}, environment) as process,
    ):
        process.ask({})


def test_every_system_gets_the_same_environment(monkeypatch):
    """Variables that are set outside win; ours computes on the CPU whatever platform
    the environment names.
    """
    started = {}

    def start(command, env, **_):
        started.update(env, command=command[1:])
        raise InputError("started")

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setenv("GLIBC_TUNABLES", "mine")
    monkeypatch.delenv("JAX_CPU_ENABLE_ASYNC_DISPATCH", raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(InputError, match="started"):
        steps.measure(TASK, ["jaxformer-bfloat16"], None, 1, 1)
    assert started["command"] == [steps.__file__, "serve"]
    assert started["JAX_PLATFORMS"] == "cpu"
    assert started["GLIBC_TUNABLES"] == "mine"
    assert started["JAX_CPU_ENABLE_ASYNC_DISPATCH"] == "false"


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("kind", ["torch", "marian"])
def test_other_systems_learn_the_same_task(kind):
    """Their first loss is that of guessing, padding changes no loss, and some steps
    on one batch lower it.
    """
    torch = pytest.importorskip("torch", reason="needs the extra `parity`")
    import torch_learners

    torch.manual_seed(0)
    kinds = {"torch": torch_learners.TorchTransformer}
    model = kinds.get(kind, torch_learners.make_marian)(TASK)
    learner = torch_learners.TorchLearner(TASK, "float32", model)
    (batch,) = fixed_batches(TASK, 1)
    model.eval()
    before, count = learner.loss(batch, 0.0)
    assert count == batch["target"].size
    assert abs(before.item() / count - math.log(TASK.vocabulary_size)) < 1.5
    padded = {
        side: np.pad(rows, ((0, 0), (0, 3)), constant_values=PAD)
        for side, rows in batch.items()
    }
    again, same = learner.loss(padded, 0.0)
    assert same == count
    assert again.item() == pytest.approx(before.item(), rel=1e-4)
    model.train()
    learner.run([batch] * 20)
    model.eval()
    assert learner.loss(batch, 0.0)[0].item() < before.item()
