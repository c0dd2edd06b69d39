"""Whole runs that are killed, or run out of disk, and started again by the same
command.
"""

import errno
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from training.little import (
    assert_same_run,
    assert_trees_equal,
    cached_make_engine,
    read_checkpoint,
    read_records,
    steps_of,
)

from jaxformer.cli.main import main
from jaxformer.training import log
from jaxformer.training import train as training


@pytest.mark.slow
def test_killed_at_random_moments(command, straight, chance, tmp_path):
    """Killed while it saves, between steps and while it starts, again and again, a run
    ends with the parameters, the optimizer, the records and the checkpoints of a run
    that nobody disturbed, bit for bit.
    """
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"

    def lines():
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def logged():
        return lines() != before

    def unfinished():
        # A folder may go while it is looked at.
        return {
            (path.name, path.stat().st_ino)
            for path in (run / "checkpoints").glob("[0-9]*.orbax-checkpoint-tmp")
        }

    def saving():
        try:
            return bool(unfinished() - leftovers)
        except FileNotFoundError:
            return False

    def ready():
        return "data:" in command.words(run)

    killed = 0
    for when, longest in ((saving, 0.02), (saving, 0.02), (ready, 0.5), (logged, 0.1)):
        leftovers, before = unfinished(), lines()
        process = command.interrupt(
            run, signal.SIGKILL, when, chance.uniform(0.0, longest)
        )
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 3
    command.finish(run)
    assert_same_run(run, straight)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(
        path.name for path in (straight / "checkpoints").iterdir()
    )


@pytest.mark.slow
def test_a_disk_that_is_full(command, straight, tmp_path):
    """A checkpoint that cannot be written ends the run with one line and exit code 1;
    the last good one still loads, and with space the run goes on.
    """
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    last = read_checkpoint(run, 40)

    longer = {"training.steps": 46}
    little_space = (
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    )
    process = command.start(run, longer, little_space)
    assert process.wait() == 1, command.words(run)
    errors = [
        line for line in command.words(run).splitlines() if "error" in line.lower()
    ]
    assert len(errors) == 1, command.words(run)
    assert errors[0].startswith(
        f"jaxformer: error: could not save a checkpoint in {run / 'checkpoints'}: "
    )
    assert errors[0].endswith("; the last good checkpoint is step 40")
    assert "Traceback" not in command.words(run)
    assert steps_of(run)[-1] == 40
    assert_trees_equal(read_checkpoint(run, 40), last)
    command.finish(run, longer)
    assert steps_of(run)[-1] == 46


# No space for a while: from the first checkpoint on, until the file `space` is there.
FULL_FOR_A_WHILE = """
import resource, threading, time
from pathlib import Path

def fill():
    while not Path({first!r}).exists():
        time.sleep(0.002)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    while not Path({space!r}).exists():
        time.sleep(0.002)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

threading.Thread(target=fill, daemon=True).start()
"""


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(command, straight, tmp_path):
    """With ``on_failed_save=continue`` the run says that a checkpoint could not be
    written and which is the last good one, and goes on; as soon as there is space the
    next one is written, and the end is that of a run that nothing disturbed.
    """
    run, space = tmp_path / "run", tmp_path / "space"
    full = FULL_FOR_A_WHILE.format(
        first=str(run / "checkpoints" / "4"), space=str(space)
    )
    process = command.start(run, {"training.on_failed_save": "continue"}, full)
    while (
        process.poll() is None and command.words(run).count("; training continues") < 2
    ):
        time.sleep(0.002)
    kept = steps_of(run)
    space.touch()
    assert process.wait() == 0, command.words(run)
    told = [
        line
        for line in command.words(run).splitlines()
        if line.endswith("; training continues")
    ]
    assert len(told) >= 2
    for line in told:
        assert line.startswith(
            f"could not save a checkpoint in {run / 'checkpoints'}: "
        )
        assert (
            f"; the last good checkpoint is step {kept[-1]}; training continues" in line
        )
    assert "Traceback" not in command.words(run)
    assert_same_run(run, straight)
    assert [
        path for path in (run / "checkpoints").iterdir() if not path.name.isdecimal()
    ] == []


@pytest.mark.slow
def test_other_devices_at_a_resume(command, tmp_path):
    """Begun on eight devices by ``pmap``, gone on with on one by ``jit`` and finished
    on a mesh of two, a run trains on the same batches in the same order as one that
    stays on one device, with the same losses up to 1e-4; each restores what the other
    saved.
    """
    changes = {
        "model.dropout_rate": 0.0,
        "training.log_every": 1,
        "training.ema_decay": 0.9,
    }
    alone, run = tmp_path / "alone", tmp_path / "run"
    command.finish(alone, {**changes, "training.engine": "jit"})

    def devices(count):
        return (
            "import os\nos.environ['XLA_FLAGS'] += '"
            f" --xla_force_host_platform_device_count={count}'"
        )

    stops = []
    for count, step, engine in (
        (8, 13, {"training.engine": "pmap"}),
        (1, 25, {"training.engine": "jit"}),
    ):

        def reached(step=step):
            return f"step {step}/40  " in command.words(run)

        process = command.interrupt(
            run,
            signal.SIGTERM,
            reached,
            changes={**changes, **engine},
            first=devices(count),
        )
        assert process.returncode == 130, command.words(run)
        assert f"parameters on {count} cpu device" in command.words(run)
        stops.append(steps_of(run)[-1])
    assert 13 <= stops[0] < 25 <= stops[1] < 40
    last = {**changes, "training.engine": "mesh", "training.mesh_fsdp": 2}
    assert command.start(run, last, devices(2)).wait() == 0, command.words(run)
    assert f"resuming at step {stops[1]} of 40" in command.words(run)
    assert "parameters on 2 cpu devices" in command.words(run)

    found, expected = (
        [line for line in read_records(path) if "train/loss" in line]
        for path in (run, alone)
    )
    for name in ("step", "train/tokens", "train/epoch", "train/learning_rate"):
        assert [line[name] for line in found] == [line[name] for line in expected]
    assert len(expected) == 40
    np.testing.assert_allclose(
        [line["train/loss"] for line in found],
        [line["train/loss"] for line in expected],
        rtol=0,
        atol=1e-4,
    )
    found, expected = (
        [line["valid/nll"] for line in read_records(path) if "valid/nll" in line]
        for path in (run, alone)
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    assert len(expected) == 4


@pytest.fixture
def train(command, tmp_path, monkeypatch, capsys):
    """Return a function that runs the command in this process: the exit code, and the
    lines of errors.
    """
    monkeypatch.setattr(training, "make_engine", cached_make_engine)

    def run(changes=None):
        capsys.readouterr()
        code = main(
            command.arguments(
                tmp_path / "run",
                {
                    "training.engine": "jit",
                    "training.steps": 8,
                    "data.num_buckets": 2,
                    **(changes or {}),
                },
            )
        )
        return code, [
            line
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("jaxformer: ")
        ]

    return run


def test_a_log_that_cannot_be_written(train, tmp_path, monkeypatch):
    """No space for the log: one line names the file, exit code 1, and the last
    checkpoint is good.
    """

    real = log.append

    def no_space(path, *given, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def append(path, record):
        with monkeypatch.context() as patch:
            if record["step"] == 5:
                patch.setattr(Path, "open", no_space)
            real(path, record)

    with monkeypatch.context() as patch:
        patch.setattr(log, "append", append)
        code, errors = train()
    assert code == 1
    assert errors == [
        f"jaxformer: error: cannot write {tmp_path / 'run' / 'metrics.jsonl'}: No space"
        " left on device; fix that and run the same command again: it continues from"
        " the last checkpoint"
    ]
    assert steps_of(tmp_path / "run")[-1] == 4
    assert np.isfinite(
        read_checkpoint(tmp_path / "run", 4)["params"]["embedding"]["table"]
    ).all()
    assert train() == (0, [])
    assert steps_of(tmp_path / "run")[-1] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.d_ff": 64},
            (
                "holds a run of another configuration: model.d_ff: 32 -> 64; continue"
                " with the same values"
            ),
        ),
        (
            {"training.stepz": 64},
            (
                "there is no configuration key training.stepz; did you mean"
                " training.steps?"
            ),
        ),
        ({"training.steps": "many"}, "training.steps must be of type int"),
        (
            {"model.num_heads": 3},
            "model.d_model 16 is not divisible by model.num_heads 3; try 2 heads",
        ),
        (
            {"data.max_length": 99},
            (
                "data.max_length 99 is more than the model.max_length 32 positions of"
                " the model"
            ),
        ),
        ({"data.vocabulary_size": 58}, "data.vocabulary_size"),
        ({"data.train": "text:/nowhere/a,/nowhere/b"}, "no file /nowhere/a"),
        ({"data.train": "bundeld:en-de/train"}, "did you mean bundled:?"),
    ],
)
def test_refused_with_one_line(train, tmp_path, changes, message):
    """What is wrong ends the command with exit code 1 and one line, and the run that
    is there stays.
    """
    assert train({"training.steps": 2}) == (0, [])
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    code, errors = train(changes)
    assert code == 1
    assert len(errors) == 1
    assert errors[0].startswith("jaxformer: error: ")
    assert message in errors[0]
    assert {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    } == before
