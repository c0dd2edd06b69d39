#!/usr/bin/env python3
r"""Repeat Table 3 of the paper in small: train each row, score it, and compare the
differences with the paper's.

    python scripts/ablations --output=runs/ablations --rows=base --seeds=1,2,3
    python scripts/ablations --output=runs/ablations --seeds=1
    python scripts/ablations --output=runs/medium --steps=20000 \
        --train=text:train.en,train.de --valid=text:valid.en,valid.de \
        --test=text:test.en,test.de --config.data.vocabulary_size=8000
    python scripts/ablations --output=runs/ablations --report_only

A row is a variant of configs/proxy.py. The row base, with which all are compared, is
always trained first; the range over its seeds is the noise that a difference has to
exceed. Each row and seed is a run in DIR/ROW-SEED, made by `jaxformer train` and scored
by `jaxformer evaluate` in processes of their own, with their output in
DIR/ROW-SEED.log. The same command continues where it was interrupted, and skips what is
finished; a larger --steps lengthens the runs. Base runs are also scored by some other
searches, and by the average of their last checkpoints.

After each run DIR/ablations.jsonl, ablations.md and ablations.png are written from all
finished runs in DIR.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

import ablation_picture
import ablation_report
import ablation_results
from ablation_results import AVERAGED, BASE_ROW, ROWS
from jaxformer.checkpoints.average import list_averages
from jaxformer.cli import config_file
from jaxformer.cli.main import DONE, FAILED, INTERRUPTED
from jaxformer.data.files import make_folder
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
        if (
            ablation_results.find_record(job.directory, job.config, decoding)
            is not None
        ):
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
    code = run_process(
        [
            sys.executable,
            "-m",
            "jaxformer.cli.main",
            command,
            f"--workdir={job.directory}",
            *arguments,
        ],
        job.said,
    )
    if code == DONE:
        return None
    last = (
        job.said.read_text(encoding="utf-8", errors="replace")
        .strip()
        .rpartition("\n")[2]
    )
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

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    # as of nohup
    before = {
        number: handler
        for number, handler in before.items()
        if handler is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, stop)
    try:
        with said.open("ab") as log:
            # A group of its own: Ctrl-C reaches it once, through this process.
            started.append(
                subprocess.Popen(
                    line,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            )
        if stopped:
            started[0].terminate()
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt
    return code


def report(output: Path) -> str:
    """Write ``ablations.jsonl``, ``ablations.md`` and, once there is a row to compare,
    ``ablations.png``.

    Returns:
        The Markdown.

    Raises:
        InputError: no run of the base is finished, or the runs do not compare.
    """
    results = ablation_results.collect(output)
    text = ablation_report.to_markdown(results)
    lines = [
        json.dumps(dataclasses.asdict(result), ensure_ascii=False) + "\n"
        for result in results
    ]
    (output / "ablations.jsonl").write_text("".join(lines), encoding="utf-8")
    (output / "ablations.md").write_text(text, encoding="utf-8")
    if any(result.row != BASE_ROW for result in results):
        ablation_picture.draw(results, output / "ablations.png")
    return text


def run(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Make the missing runs, and report; return the exit code.

    Raises:
        InputError: a configuration is wrong, or the runs in the folder do not compare.
        KeyboardInterrupt: a signal came.
    """
    faults = []
    if not options.report_only:
        jobs = plan(options.rows, options.seeds, options.output, overrides)
        make_folder(options.output, "--output")
        for number, job in enumerate(jobs, start=1):
            name = f"{number}/{len(jobs)} {job.directory.name}"
            if job.is_finished:
                _say(f"{name} was finished before")
                continue
            _say(f"{name} begins; its output is in {job.said}")
            fault = make(job)
            _say(f"{name} finished" if fault is None else f"{name} failed: {fault}")
            if fault is not None:
                faults.append(fault)
            else:
                _report_so_far(options.output)
    print(report(options.output), end="")
    return FAILED if faults else DONE


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report_so_far(output: Path) -> None:
    """Report what is finished; nothing until the base is."""
    try:
        report(output)
    except InputError as error:
        _say(str(error))


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder of the runs and the report",
    )
    parser.add_argument(
        "--rows",
        type=_rows,
        default=tuple(ROWS),
        metavar="A,B",
        help="which rows (default: all)",
    )
    parser.add_argument(
        "--seeds",
        type=_seeds,
        default=(1,),
        metavar="1,2",
        help="seeds of each row (default: 1)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=(
            "of each run (default: as the configurations say); the base's end with the"
            f" mean of {AVERAGED} checkpoints, one every training.checkpoint_every"
        ),
    )
    for name in ("train", "valid", "test"):
        parser.add_argument(
            f"--{name}",
            metavar="NAME",
            help=f"other text: the same as --config.data.{name}=NAME",
        )
    parser.add_argument(
        "--report_only",
        action="store_true",
        help="train nothing, and report what is finished",
    )
    options, rest = parser.parse_known_args()
    wrong = [
        word
        for word in rest
        if not (word.startswith(config_file.PREFIX) and "=" in word)
    ]
    if wrong:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    named = {"training.steps": options.steps} | {
        f"data.{x}": getattr(options, x) for x in ("train", "valid", "test")
    }
    overrides = [
        f"{config_file.PREFIX}{key}={value}"
        for key, value in named.items()
        if value is not None
    ]
    jax.config.update("jax_platforms", "cpu")  # the devices are the runs'
    try:
        return run(options, [*overrides, *rest])
    except InputError as error:
        _say(f"ablations: error: {error}")
        return FAILED
    except KeyboardInterrupt:
        _say("ablations: interrupted; the same command continues")
        return INTERRUPTED


def _rows(text: str) -> tuple[str, ...]:
    """Read names of rows."""
    rows = tuple(text.split(","))
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no row {unknown[0]!r}: take {', '.join(ROWS)}"
        )
    return rows


def _seeds(text: str) -> tuple[int, ...]:
    """Read seeds, each once."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be numbers separated by commas, such as 1,2, not {text!r}"
        )
    return tuple(dict.fromkeys(map(int, parts)))


if __name__ == "__main__":
    sys.exit(main())
