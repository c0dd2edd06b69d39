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
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

import ablation_picture
import ablation_report
import ablation_results
from ablation_results import AVERAGED, BASE_ROW, ROWS
from ablation_runs import make, plan
from jaxformer.cli import config_file
from jaxformer.cli.arguments import add_options, number, numbers
from jaxformer.cli.main import DONE, FAILED, INTERRUPTED
from jaxformer.data.files import make_folder
from jaxformer.errors import InputError

TEXTS = ("train", "valid", "test")


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
    options, overrides = parse()
    jax.config.update("jax_platforms", "cpu")  # the devices are the runs'
    try:
        return run(options, overrides)
    except InputError as error:
        _say(f"ablations: error: {error}")
        return FAILED
    except KeyboardInterrupt:
        _say("ablations: interrupted; the same command continues")
        return INTERRUPTED


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Read the command line, and the overrides of the configuration."""
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
    steps = (
        "of each run (default: as the configurations say); the base's end with the mean"
        f" of {AVERAGED} checkpoints, one every training.checkpoint_every"
    )
    text = "other text: the same as --config.data.{}=NAME"
    add_options(
        parser.add_argument,
        ("rows", _rows, "A,B", "which rows (default: all)"),
        ("seeds", numbers(number(0)), "1,2", "seeds of each row (default: 1)"),
        ("steps", int, "N", steps),
        *((name, str, "NAME", text.format(name)) for name in TEXTS),
    )
    parser.add_argument(
        "--report_only",
        action="store_true",
        help="train nothing, and report what is finished",
    )
    parser.set_defaults(rows=tuple(ROWS), seeds=[1])
    options, rest = parser.parse_known_args()
    wrong = [word for word in rest if not config_file.is_override(word)]
    if wrong:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    options.seeds = [*dict.fromkeys(options.seeds)]
    named = {"training.steps": options.steps}
    named |= {f"data.{name}": getattr(options, name) for name in TEXTS}
    overrides = [
        f"{config_file.PREFIX}{key}={value}"
        for key, value in named.items()
        if value is not None
    ]
    return options, [*overrides, *rest]


def _rows(text: str) -> tuple[str, ...]:
    """Read names of rows."""
    rows = tuple(text.split(","))
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no row {unknown[0]!r}: take {', '.join(ROWS)}"
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
