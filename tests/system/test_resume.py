"""Whole runs that are stopped or move to other devices, and are continued by the same
command.
"""

import os
import pty
import sys
import time

import numpy as np
import pytest
from system.processes import arguments
from training.little import (
    cached_make_engine,
    read_records,
    steps_of,
)

import runs
from jaxformer.training import train as training

FEW = {"training.steps": 8, "training.log_every": 2, "training.evaluate_every": 4}
FEW |= {"training.checkpoint_every": 2, "data.num_buckets": 1}


@pytest.mark.slow
def test_other_devices_at_a_resume(corpus, tmp_path, monkeypatch):
    """Begun on eight devices by ``pmap``, continued on one by ``jit`` and finished on a
    mesh, a run trains on the same batches in the same order as one that stays on one
    device, with the same losses up to 1e-4.
    """
    monkeypatch.setattr(training, "make_engine", cached_make_engine)

    def train(run, engine, steps, **mesh):
        keys = {**corpus, **FEW, "model.dropout_rate": 0.0, "training.log_every": 1}
        keys |= {"evaluation.max_sentences": 0, "evaluation.best_metric": "loss"}
        keys |= {"training.engine": engine, "training.steps": steps, **mesh}
        done = runs.call(*arguments(run, keys))
        assert done.code == 0, done.err

    straight, run = tmp_path / "straight", tmp_path / "run"
    train(straight, "jit", 6)
    train(run, "pmap", 2)
    train(run, "jit", 4)
    train(run, "mesh", 6, **{"training.mesh_fsdp": 2})
    found, expected = (
        [line for line in read_records(path) if "train/loss" in line]
        for path in (run, straight)
    )
    assert len(expected) == 6
    for name in ("step", "train/tokens", "train/epoch", "train/learning_rate"):
        assert [line[name] for line in found] == [line[name] for line in expected]
    found, expected = (
        [line["train/loss"] for line in found] + [read_records(path)[-1]["valid/nll"]]
        for path, found in ((run, found), (straight, expected))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_closed_terminal_saves(processes, corpus, tmp_path):
    """Training saves at SIGHUP and ends with 130, although nothing can be written to
    the terminal any more.
    """
    run = tmp_path / "run"
    terminal, theirs = pty.openpty()
    # Closing it then sends SIGHUP.
    program = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    program += "from jaxformer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    keys = {**corpus, **FEW, "training.steps": 10_000}
    process, _ = processes.start(
        *(sys.executable, "-c", program, *arguments(run, keys)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.set_blocking(terminal, False)
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_text():
        assert process.poll() is None
        try:
            os.read(terminal, 65536)
        except BlockingIOError:
            time.sleep(0.01)
    os.close(terminal)
    assert process.wait() == 130
    assert read_records(run)[-1]["step"] <= steps_of(run)[-1] < 10_000
