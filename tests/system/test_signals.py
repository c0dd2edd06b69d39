"""Whole runs that are asked to stop: they save first, say so, and go on by the same
command.
"""

import os
import pty
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from training.little import assert_same_run, read_records, steps_of

import runs


@pytest.mark.slow
def test_stopped_by_signals(command, straight, chance, tmp_path):
    """SIGTERM before the first step is compiled, SIGINT between steps and SIGTERM
    later: each time the exit code is 130, a checkpoint is saved at the step where the
    run stopped, and one line says so. In the end all bits and records are those of a
    run that nobody stopped.
    """
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    step = -1
    for number, lines in ((signal.SIGTERM, 0), (signal.SIGINT, 1), (signal.SIGTERM, 4)):

        def reached(lines=lines):
            if not lines:
                return "data:" in command.words(run)
            return metrics.exists() and metrics.read_text().count("\n") >= lines

        process = command.interrupt(run, number, reached, chance.uniform(0.0, 0.1))
        assert process.returncode == 130, command.words(run)
        stopped = steps_of(run)[-1]
        last = command.words(run).splitlines()[-1]
        assert (
            last
            == f"{number.name}: saved at step {stopped}; the same command continues"
            " from there"
        )
        assert step <= stopped < 40
        assert not metrics.exists() or read_records(run)[-1]["step"] <= stopped
        if step > 0:
            assert f"resuming at step {step} of 40 in {run}" in command.words(run)
        step = stopped
    assert step >= 15
    command.finish(run)
    assert_same_run(run, straight)


# What a process runs first, to send SIGTERM to itself at a known place.
STOP_IN = """
import os, signal, threading

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

def stop_in(owner, name, before=lambda: None, after=lambda: None):
    original = getattr(owner, name)

    def stopped(*arguments, **keywords):
        setattr(owner, name, original)
        before()
        result = original(*arguments, **keywords)
        after()
        return result

    setattr(owner, name, stopped)
"""
LOADING = f"""{STOP_IN}
from jaxformer.data.corpus import TrainingText
stop_in(TrainingText, "load", before=stop)
"""
# It takes more than a tenth of a second to compile the step, since nothing is kept.
COMPILING = f"""{STOP_IN}
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
from jaxformer.training import mesh
original = mesh.make_train_step

def make_train_step(*arguments, **keywords):
    step = original(*arguments, **keywords)

    def traced(*parts):
        threading.Timer(0.1, stop).start()
        return step(*parts)

    return traced

mesh.make_train_step = make_train_step
"""
EVALUATING = f"""{STOP_IN}
from jaxformer.translation.translator import Translator
stop_in(Translator, "search", before=stop)
"""
SAVING = f"""{STOP_IN}
from jaxformer.checkpoints.manager import CheckpointManager
stop_in(CheckpointManager, "_save", after=stop)
"""


@pytest.mark.slow
def test_sigterm_wherever_a_run_is(command, straight, tmp_path):
    """SIGTERM ends a process with exit code 130: while the text is loaded at once, and
    what is saved stays as it is; while the first step is compiled, a translation of an
    evaluation is made or a checkpoint is written, with a saved state. In the end all
    bits and records are those of a run that nobody stopped.
    """
    run = tmp_path / "run"
    assert command.start(run, first=LOADING).wait() == 130
    assert not run.exists()
    for place, step in ((COMPILING, 1), (SAVING, 2), (EVALUATING, 10)):
        assert command.start(run, first=place).wait() == 130, command.words(run)
        assert (
            command.words(run)
            .splitlines()[-1]
            .startswith(f"SIGTERM: saved at step {step};")
        )
        assert steps_of(run)[-1] == step
    assert "valid/nll" not in read_records(run)[-1]
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert command.start(run, first=LOADING).wait() == 130
    assert {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file()
    } == before
    command.finish(run)
    assert_same_run(run, straight)


@pytest.mark.slow
def test_a_closed_terminal_saves(command, tmp_path):
    """Training saves at SIGHUP and ends with 130, although nothing can be written to
    the terminal any more.
    """
    run = tmp_path / "run"
    terminal, theirs = pty.openpty()
    # closing it then sends SIGHUP
    program = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    program += "from jaxformer.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command.arguments(run)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=runs.ROOT,
        env=command.environment,
        start_new_session=True,
    )
    command.processes.append(process)
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
    stopped = steps_of(run)[-1]
    assert read_records(run)[-1]["step"] <= stopped < 40
    command.finish(run)


@pytest.mark.slow
def test_interruptions_of_a_command_that_saves_nothing(tmp_path):
    """Ctrl-C ends it with 130, or with 0 where the whole output was written before;
    there is never a traceback.
    """
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in runs.sentences(20)))
    line = [
        sys.executable,
        "-m",
        "jaxformer",
        "score",
        f"--workdir={runs.random_run()}",
    ]
    line += [f"--source={text}", f"--target={text}", "--summary"]
    options: dict[str, Any] = {"cwd": runs.ROOT, "env": runs.environment()}
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    begun = time.monotonic()
    expected = subprocess.run(line, check=True, **options).stdout
    whole = time.monotonic() - begun
    for number in range(1, 8):
        with subprocess.Popen(line, **options) as process:
            try:
                process.wait(0.3 + number / 8 * whole)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=30)
        assert said == b""
        assert process.returncode == 130 or (process.returncode, out) == (0, expected)
