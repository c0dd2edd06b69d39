"""Whole runs that are asked to stop: they save first, say so, and go on by the same command."""

import signal

import pytest
from training.little import assert_same_run, read_records, steps_of


@pytest.mark.slow
def test_stopped_by_signals(command, straight, chance, tmp_path):
    """SIGTERM before the first step is compiled, SIGINT between steps and SIGTERM later: each time the exit code is
    130, a checkpoint is saved at the step where the run stopped, and one line says so. In the end all bits and records
    are those of a run that nobody stopped (statements 119 and 123).
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
        assert last == f"{number.name}: saved at step {stopped}; the same command goes on from there"
        assert step <= stopped < 40
        assert not metrics.exists() or read_records(run)[-1]["step"] <= stopped
        if step > 0:
            assert f"resuming at step {step} of 40 in {run}" in command.words(run)
        step = stopped
    assert step >= 15
    command.finish(run)
    assert_same_run(run, straight)
