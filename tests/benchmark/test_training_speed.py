"""Systems that train in turns: what they report, and what is refused before any of
them starts.
"""

import json
import math
import os

import numpy as np
import pytest

import runs
from jaxformer.benchmark import training_speed
from jaxformer.benchmark.step_process import make_learner
from jaxformer.benchmark.task import PAD, TASKS, Task, fixed_batches
from jaxformer.benchmark.training_speed import (
    FIXED,
    TEXT,
    measure,
    read_text,
    summarize,
)
from jaxformer.benchmark.turns import Process
from jaxformer.cli.main import main
from jaxformer.errors import InputError

TASK = Task(
    d_model=16,
    d_ff=32,
    num_heads=2,
    num_layers=1,
    vocabulary_size=40,
    rows=4,
    length=8,
    tokens_per_batch=256,
)


def write_text(folder, lines=40):
    files = folder / "text.en", folder / "text.de"
    for path, words in zip(
        files, (["one", "two", "three"], ["eins", "zwei", "drei"]), strict=True
    ):
        rng = np.random.default_rng(1)
        text = [
            " ".join(words[i] for i in rng.integers(0, 3, rng.integers(1, 12)))
            for _ in range(lines)
        ]
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    return files


def test_ratios_are_taken_within_a_turn():
    """A machine that slows down in the middle changes no ratio, and medians no
    outlier.
    """
    turns = [
        {"seconds": s, "tokens": 100, "steps": 2, "padding": 0.0, "memory_gib": None}
        for s in (1.0, 10.0, 2.0)
    ]
    reference = [{**turn, "seconds": 2 * turn["seconds"]} for turn in turns]
    row = summarize("ours", FIXED, turns, reference, (3.0, 1.0))
    assert (row.ratio, row.target_tokens_per_second, row.step_ms) == (2.0, 50.0, 1000.0)
    assert (row.first_step_seconds, row.second_start_seconds) == (3.0, 1.0)
    assert summarize("ours", FIXED, turns, None, (3.0, 1.0)).ratio is None


def test_text_is_spread_evenly_and_has_ends(tmp_path):
    """Pairs of the whole text, and neither empty nor endless ones."""
    pairs = read_text(*write_text(tmp_path), 10, 40)
    assert len(pairs) == 10
    assert pairs.source_lengths.min() > 1
    assert all(pairs.source[i][-1] == pairs.target[i][-1] for i in range(10))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--systems=jaxformer-float32,fairseq-float32"],
            "there is no system 'fairseq-float32': choose from jaxformer",
        ),
        (
            ["--systems=torch-float32,jaxformer-float32,torch-float32"],
            "torch-float32 is named twice: name each once",
        ),
        (
            ["--systems=none", "--source=text.en", "--target=text.de"],
            "there is no system 'none'",
        ),
        (["--steps=0"], "steps must be at least 1, not 0"),
        ([f"--steps={10**23}"], "steps must be at most 10,000, not"),
        ([f"--repeats={10**23}"], "repeats must be at most 10,000, not"),
        (
            [f"--tokens_per_batch={10**23}"],
            "tokens_per_batch must be at most 134,217,728, not",
        ),
        (["--repeats=0"], "repeats must be at least 1, not 0"),
        (
            ["--source=text.en", "--target=text.de", "--pairs=0"],
            "a turn needs at least 1 pair of text, not 0",
        ),
        (
            ["--pairs=10"],
            "--pairs are of real text: give --source and --target too, or leave it out",
        ),
        (
            ["--source=text.en"],
            (
                "real text is given as --source and --target together: give both, or"
                " neither"
            ),
        ),
        (
            ["--source=text.en", "--target=text.de"],
            (
                "a vocabulary of 8000 pieces is too large for this text: it allows at"
                " most 56: give a longer text\n"
            ),
        ),
        (
            ["--model=base", "--source=text.en", "--target=text.de"],
            "give a longer text, or choose --model=tiny\n",
        ),
        (
            ["--source=text.en", "--target=short.de"],
            "text.en has 40 lines and short.de has 1: give the lines of one",
        ),
    ],
)
def test_wrong_requests_are_refused_at_once(
    arguments, said, tmp_path, monkeypatch, capsys
):
    """In one line, before a system starts."""
    write_text(tmp_path)
    (tmp_path / "short.de").write_text("eins\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["benchmark", *arguments]) == (2 if arguments == ["--pairs=10"] else 1)
    assert said in capsys.readouterr().err


def test_variations_of_ours(tmp_path):
    """Rows are packed, layers scanned, or neither."""
    pairs = read_text(*write_text(tmp_path), 10, 40)
    for variation in ("", "-packing", "-scanned"):
        learner = make_learner(f"jaxformer-float32{variation}", TASK)
        batches = learner.batches(pairs)
        assert (set(batches[0]) != {"source", "target"}) == (variation == "-packing")
        assert ("layers" in learner.parameters()["encoder"]) == (
            variation == "-scanned"
        )


@pytest.mark.slow
@pytest.mark.parity
def test_systems_learn_in_turn(tmp_path, monkeypatch, capfd):
    """Each has a row for fixed batches and one for text, in that order, and all its
    figures.
    """
    pytest.importorskip("torch", reason="needs the extra `benchmark`")
    pytest.importorskip("transformers", reason="needs the extra `benchmark`")
    source, target = write_text(tmp_path)
    monkeypatch.setitem(TASKS, "tiny", TASK)
    systems = ["jaxformer-float32", "jaxformer-bfloat16-packing", "torch-float32"]
    options = [
        f"--systems={','.join(systems)}",
        f"--source={source}",
        f"--target={target}",
        "--repeats=1",
        "--steps=2",
    ]
    assert main(["benchmark", *options, "--format=jsonl"]) == 0
    printed = capfd.readouterr()
    rows = [json.loads(line) for line in printed.out.splitlines()]
    assert "turn 1 of 1, fixed: torch-float32" in printed.err
    assert [(row["system"], row["batches"]) for row in rows] == [
        (s, kind) for kind in (FIXED, TEXT) for s in systems
    ]
    for row in rows:
        assert (
            min(
                row["target_tokens_per_second"],
                row["ratio"],
                row["step_ms"],
                row["memory_gib"],
            )
            > 0.0
        )
        assert row["first_step_seconds"] > 0.0
        assert (row["padding"] == 0.0) == (row["batches"] == FIXED)
        if row["system"] == "torch-float32":
            assert row["ratio"] == 1.0
        assert "torch" in row["machine"]
        assert row["machine"].startswith("on the CPU: ")


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (
            "sys.exit(3)",
            (
                "torch-float32 ended with exit code 3: mend what it wrote above, or"
                " leave it out of --systems"
            ),
        ),
        (
            "os.kill(os.getpid(), 9)",
            "torch-float32 was killed, as happens where memory runs out: choose fewer",
        ),
    ],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_system_that_ends_is_named(ends, said, later, tmp_path):
    """At its start or in a turn: which it was, and what to do."""
    begins = "turns._say({}); sys.stdin.readline()" if later else ""
    line = (
        "import os, sys\nfrom jaxformer.benchmark import"
        f" turns\nsys.stdin.readline()\n{begins}\n{ends}\n"
    )
    (tmp_path / "dying.py").write_text(line, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), str(runs.ROOT)])
    request = ("torch-float32", "dying", {}, {"PYTHONPATH": paths})
    if not later:
        with pytest.raises(InputError, match=said):
            Process(*request)
        return
    with Process(*request) as process, pytest.raises(InputError, match=said):
        process.ask({})


def test_every_system_computes_on_the_cpu(monkeypatch):
    """Ours too, whatever platform the environment names: the others have no other."""
    begun = []

    class Recorded:
        startup_seconds = 1.0

        def __init__(self, name, module, request, environment):
            begun.append((name, environment["JAX_PLATFORMS"]))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, _):
            return {
                "tokens": 1,
                "seconds": 1.0,
                "steps": 1,
                "padding": 0.0,
                "memory_gib": None,
            }

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr(training_speed, "Process", Recorded)
    assert (
        len(
            list(
                measure(
                    TASK,
                    ["jaxformer-float32", "jaxformer-bfloat16"],
                    steps=1,
                    repeats=1,
                )
            )
        )
        == 2
    )
    assert begun == [
        (f"jaxformer-{precision}", "cpu")
        for precision in ("float32", "bfloat16")
        for _ in range(2)
    ]
    assert training_speed.describe_machine().startswith("on the CPU: ")


def test_only_known_systems_are_measured():
    """Before any process starts."""
    with pytest.raises(InputError, match="there is no system 'jax'"):
        next(measure(TASK, ["jax"]))


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["torch", "marian"])
def test_other_systems_learn_the_same_task(kind):
    """Their first loss is that of guessing, padding changes no loss, and some steps
    on one batch lower it.
    """
    torch = pytest.importorskip("torch", reason="needs the extra `benchmark`")
    from jaxformer.benchmark import torch_learners

    torch.manual_seed(0)
    model = (
        torch_learners.TorchTransformer(TASK)
        if kind == "torch"
        else torch_learners.make_marian(TASK)
    )
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
    learner.run([batch] * 40)
    model.eval()
    assert learner.loss(batch, 0.0)[0].item() < before.item()
