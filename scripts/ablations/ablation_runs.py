"""Make the runs of the ablations: plan them, train and score them in processes."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import ablation_results
from ablation_results import AVERAGED, BASE_ROW, ROWS
from jaxformer import signals
from jaxformer.checkpoints.average import list_averages
from jaxformer.cli import config_file
from jaxformer.cli.main import DONE
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "proxy.py"


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made: of a row, by a seed, in a directory; ``arguments`` are those
    of ``jaxformer train``.
    """

    row: str
    seed: int
    directory: Path
    arguments: tuple[str, ...]
    config: RunConfig

    @property
    def said(self) -> Path:
        """Return the file with the output of its processes."""
        return self.directory.with_name(f"{self.directory.name}.log")

    @property
    def is_finished(self) -> bool:
        """Return whether nothing is left to do."""
        return ablation_results.is_finished(
            self.row, self.directory, self.config.training.steps
        )


def plan(
    rows: Sequence[str], seeds: Sequence[int], output: Path, overrides: Sequence[str]
) -> list[Job]:
    """Read all configurations before anything is trained; all rows of the first seed
    come first, the base before them.

    Raises:
        InputError: a configuration is wrong, an override sets what a row is there to
            change, or the folder holds runs by other settings.
    """
    base = _read(BASE_ROW, ())
    given = {
        override.removeprefix(config_file.PREFIX).partition("=")[0]
        for override in overrides
    }
    if "training.seed" in given:
        raise InputError(
            "each run has a seed of its own: use --seeds in place of"
            " --config.training.seed"
        )
    jobs = []
    for row in (row for row in ROWS if row in {BASE_ROW, *rows}):
        own = ablation_results.differences(base, _read(row, ())).keys() & given
        if own:
            raise InputError(
                f"the row {row} is there to change {min(own)}: leave out the row, or"
                f" --config.{min(own)}"
            )
        for seed in seeds:
            every = (*overrides, f"--config.training.seed={seed}")
            directory, arguments = (
                ablation_results.run_directory(output, row, seed),
                (f"--config={_file(row)}", *every),
            )
            jobs.append(Job(row, seed, directory, arguments, _read(row, every)))
    for job in jobs:
        if job.row == BASE_ROW and not job.is_finished:
            _check_length(job.config)
        _check_folder(job, output)
    return sorted(jobs, key=lambda job: seeds.index(job.seed))


def _check_length(base: RunConfig) -> None:
    """Refuse runs that end with too few checkpoints for the mean of the last ones."""
    training, steps = base.training, base.training.steps
    intervals = training.checkpoint_every, training.evaluate_every
    made = {
        steps,
        *(step for every in intervals for step in range(every, steps + 1, every)),
    }
    if len(made) < AVERAGED:
        raise InputError(
            f"{steps} steps with a checkpoint every {training.checkpoint_every} and at"
            f" each evaluation make {len(made)}, and the base ends with the mean of"
            f" {AVERAGED}: a larger --steps, or a smaller"
            " --config.training.checkpoint_every"
        )
    if training.keep_latest < AVERAGED:
        raise InputError(
            f"--config.training.keep_latest={training.keep_latest} keeps too few"
            f" checkpoints, and the base ends with the mean of {AVERAGED}:"
            f" --config.training.keep_latest={AVERAGED}"
        )


def _file(row: str) -> str:
    return f"{CONFIG}:{row}"


def _read(row: str, overrides: Sequence[str]) -> RunConfig:
    return configuration.parse(config_file.read(_file(row), overrides))


def _check_folder(job: Job, output: Path) -> None:
    """Refuse runs of the same row that differ in more than seed and length: they do
    not compare.
    """
    for _, _, directory in ablation_results.find_runs(output, [job.row]):
        found = ablation_results.differences(
            configuration.load(directory / "config.json"), job.config
        )
        changed = [f"{key}: {old} -> {new}" for key, (old, new) in found.items()]
        if changed:
            raise InputError(
                f"{directory} was made by other settings, {', '.join(changed[:3])}:"
                " use the same settings or another --output"
            )


def make(job: Job) -> str | None:
    """Train a run, or continue it, and score it; return the error line, if any.

    Raises:
        KeyboardInterrupt: a signal came; the run can continue.
    """
    steps = job.config.training.steps
    fault = run_command("train", job, job.arguments)
    for decoding in ablation_results.decodings(job.row):
        if fault is not None:
            return fault
        if ablation_results.find_record(job.directory, job.config, decoding):
            continue
        which, name = "latest", ablation_results.average_name(steps)
        if decoding.averaged:
            which = f"average/{name}"
            if all(average.name != name for average in list_averages(job.directory)):
                fault = run_command(
                    "average", job, (f"--last={AVERAGED}", f"--name={name}")
                )
        search = (
            f"--checkpoint={which}",
            f"--beam_size={decoding.beam_size}",
            f"--alpha={decoding.alpha}",
        )
        fault = fault or run_command("evaluate", job, search)
    return fault


def run_command(command: str, job: Job, arguments: Sequence[str]) -> str | None:
    """Run a command of jaxformer on a run in a process of its own; return the error
    line, if any.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    line = [sys.executable, "-m", "jaxformer.cli.main", command]
    code = run_process([*line, f"--workdir={job.directory}", *arguments], job.said)
    if code == DONE:
        return None
    said = job.said.read_text(encoding="utf-8", errors="replace")
    last = said.strip().rpartition("\n")[2]
    return f"{job.directory}: {command} ended with exit code {code}: {last}"


def run_process(line: Sequence[str], said: Path) -> int:
    """Run a process to its end and return its exit code; its output is appended to a
    file.

    A signal to this process first ends that one by SIGTERM, which lets training save; a
    second kills it.

    Raises:
        KeyboardInterrupt: such a signal came.
    """
    started: list[subprocess.Popen[bytes]] = []
    stopped: list[int] = []

    def stop(number: int, _: object) -> None:
        for process in started:
            (process.kill if stopped else process.terminate)()
        stopped.append(number)

    # nohup ignores SIGHUP
    before = {number: signal.signal(number, stop) for number in signals.signals()}
    try:
        with said.open("ab") as log:
            # A group of its own: Ctrl-C reaches it once, through this process.
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
            started.append(process)
        if stopped:
            started[0].terminate()
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt
    return code
