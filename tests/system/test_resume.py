"""Whole runs that are killed, or run out of disk, and started again by the same command."""

import errno
import shutil
import signal

import jax
import numpy as np
import pytest
from training.little import assert_same_run, assert_trees_equal, cached_make_engine, read_checkpoint, steps_of

from jaxformer.cli.main import main
from jaxformer.training import hooks, loop


@pytest.mark.slow
def test_killed_at_random_moments(command, straight, chance, tmp_path):
    """Killed while it saves, between steps and while it starts, again and again, a run ends with the parameters, the
    optimizer, the records and the checkpoints of a run that nobody disturbed, bit for bit (statements 119 and 122).
    """
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"

    def lines():
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def logged():
        return lines() != before

    def unfinished():
        # A folder may go while it is looked at.
        return {(path.name, path.stat().st_ino) for path in (run / "checkpoints").glob("[0-9]*.orbax-checkpoint-tmp")}

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
        process = command.interrupt(run, signal.SIGKILL, when, chance.uniform(0.0, longest))
        killed += process.returncode == -signal.SIGKILL
    assert killed >= 3
    command.finish(run)
    assert_same_run(run, straight)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == sorted(
        path.name for path in (straight / "checkpoints").iterdir()
    )


@pytest.mark.slow
def test_a_disk_that_is_full(command, straight, tmp_path):
    """A checkpoint that cannot be written ends the run with one line and exit code 1; the last good one still loads,
    and with space the run goes on (statement 122).
    """
    run = tmp_path / "run"
    shutil.copytree(straight, run)
    last = read_checkpoint(run, 40)

    longer = {"training.steps": 46}
    little_space = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    process = command.start(run, longer, little_space)
    assert process.wait() == 1, command.words(run)
    errors = [line for line in command.words(run).splitlines() if "error" in line.lower()]
    assert len(errors) == 1, command.words(run)
    assert errors[0].startswith(f"jaxformer: error: could not save a checkpoint in {run / 'checkpoints'}: ")
    assert errors[0].endswith("; the last good checkpoint is step 40")
    assert "Traceback" not in command.words(run)
    assert steps_of(run)[-1] == 40
    assert_trees_equal(read_checkpoint(run, 40), last)
    command.finish(run, longer)
    assert steps_of(run)[-1] == 46


@pytest.fixture
def train(command, tmp_path, monkeypatch, capsys):
    """Give a function that runs the command in this process: the exit code, and the lines of errors."""
    monkeypatch.setattr(loop, "make_engine", cached_make_engine)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "unused")  # no cache of this process is to be changed
    before = jax.config.jax_persistent_cache_min_compile_time_secs

    def run(changes=None):
        capsys.readouterr()
        code = main(
            command.arguments(
                tmp_path / "run",
                {"training.engine": "jit", "training.steps": 8, "data.num_buckets": 2, **(changes or {})},
            )
        )
        return code, [line for line in capsys.readouterr().err.splitlines() if line.startswith("jaxformer: ")]

    yield run
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


def test_a_log_that_cannot_be_written(train, tmp_path, monkeypatch):
    """No space for the log: one line names the file, exit code 1, and the last checkpoint is good (statement 122)."""

    def full(path, record):
        if record["step"] == 5:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(hooks, "append", full)
        code, errors = train()
    assert code == 1
    assert errors == [f"jaxformer: error: {tmp_path / 'run' / 'metrics.jsonl'}: No space left on device"]
    assert steps_of(tmp_path / "run")[-1] == 4
    assert np.isfinite(read_checkpoint(tmp_path / "run", 4)["params"]["embedding"]["table"]).all()
    assert train() == (0, [])
    assert steps_of(tmp_path / "run")[-1] == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.d_ff": 64}, "holds a run of another configuration: model.d_ff: 32 -> 64; go on with the same values"),
        ({"training.stepz": 64}, "there is no configuration key training.stepz; did you mean training.steps?"),
        ({"training.steps": "many"}, "training.steps must be of type int"),
        ({"model.num_heads": 3}, "model.d_model 16 is not divisible by model.num_heads 3; try 2 heads"),
        ({"data.max_length": 99}, "data.max_length 99 is more than the model.max_length 32 positions of the model"),
        ({"data.vocabulary_size": 58}, "data.vocabulary_size"),
        ({"data.train": "text:/nowhere/a,/nowhere/b"}, "no file /nowhere/a"),
        ({"data.train": "bundeld:en-de/train"}, "did you mean bundled:?"),
    ],
)
def test_refused_with_one_line(train, tmp_path, changes, message):
    """What is wrong ends the command with exit code 1 and one line, and the run that is there stays (statement 124)."""
    assert train({"training.steps": 2}) == (0, [])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    code, errors = train(changes)
    assert code == 1
    assert len(errors) == 1
    assert errors[0].startswith("jaxformer: error: ")
    assert message in errors[0]
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
