"""Read and write the records of a run: ``metrics.jsonl``, ``samples.jsonl`` and
``results.json``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jaxformer import bucket
from jaxformer.data.files import read_lines
from jaxformer.errors import InputError
from jaxformer.files import finite, in_turn, parse_json, parse_step, write_whole
from jaxformer.typing import PyTree

MEASURED = frozenset(
    f"train/{name}"
    for name in (
        *("tokens_per_second", "seconds_left", "mfu", "mfu_slots", "data_wait"),
        *("compilations", "compile_seconds", "memory_bytes"),
    )
)
"""Metrics of the machine: only they differ when the same run is made again."""

Curve: TypeAlias = Sequence[tuple[int, float]]
"""Points ``(step, value)``, in the order of the steps."""


class Validation(NamedTuple):
    """Hold the scores of the validation set by name, and some translations."""

    scores: dict[str, float]
    samples: list[dict[str, str]]


Validator = Callable[
    [PyTree, Callable[[], bool], Callable[[str], None]], Validation | None
]
"""Translate the validation set with parameters, and tell how far that is; None if it
was asked to stop.
"""


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a JSON object as a line; a number that is not finite is null."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(finite(dict(record)), ensure_ascii=False) + "\n")


def rewind(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Remove the lines of a record that ``keep`` refuses, and a torn last line."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    kept = [line for line in lines if (record := parse_step(line)) and keep(record)]
    write_whole(path, b"".join(line + b"\n" for line in kept))


def last_step(path: Path) -> int:
    """Return the last step in ``metrics.jsonl`` or ``samples.jsonl``, or 0."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return max([0, *(record["step"] for record in map(parse_step, lines) if record)])


def is_evaluation(metrics: Mapping[str, Any]) -> bool:
    """Return whether a line of ``metrics.jsonl`` records an evaluation."""
    return any(name.startswith("valid/") for name in metrics)


def read_curves(metrics_file: Path | str) -> dict[str, Curve]:
    """Read the curves of a run by key, without points that are not finite.

    A torn last line of a killed process is skipped.

    Raises:
        InputError: the file is missing, or a line before the last is no JSON object
            with a step.
    """
    curves: dict[str, dict[int, float]] = {}
    for key, step, value in _values(metrics_file):
        if value is not None:
            curves.setdefault(key, {})[step] = value
    return {key: sorted(points.items()) for key, points in curves.items()}


def read_gaps(metrics_file: Path | str) -> dict[str, list[int]]:
    """Read the steps without a finite number, by key of the curve.

    Raises:
        InputError: see :func:`read_curves`.
    """
    gaps: dict[str, set[int]] = {}
    for key, step, value in _values(metrics_file):
        if value is None:
            gaps.setdefault(key, set()).add(step)
    return {key: sorted(steps) for key, steps in gaps.items()}


def _values(metrics_file: Path | str) -> Iterator[tuple[str, int, float | None]]:
    """Yield key, step and number of a record; None where it is not finite."""
    for record in _records(Path(metrics_file)):
        for key, value in record.items():
            if key != "step" and (value is None or isinstance(value, int | float)):
                number = math.nan if value is None else float(value)
                yield key, record["step"], number if math.isfinite(number) else None


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a record without a torn last one."""
    if not path.is_file():
        raise InputError(
            f"a learning curve needs the record of a run, but there is no file {path}:"
            " name the directory of a run that has trained"
        )
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = parse_step(line)
        if record is None:
            if number == len(lines):  # no line break after it: torn
                break
            raise InputError(
                f"a line of a record is a JSON object with a step, but line {number} of"
                f" {path} is not"
            )
        yield record


def fingerprint(sources: Sequence[str], references: Sequence[Sequence[str]]) -> str:
    """Return 16 digits of a hash: scores compare only where it is equal."""
    digest = hashlib.sha256()
    for lines in (sources, *references):
        digest.update(json.dumps(list(lines)).encode())
    return digest.hexdigest()[:16]


def write_result(
    directory: Path,
    record: dict[str, Any],
    hypotheses: Sequence[str] | None,
    *,
    variant: str = "",
) -> Path | None:
    """Write translations or predictions into the run, and their record into
    ``results.json``.

    Each data set and variant has one entry, which a new result replaces; each text of a
    pipe has its own. The entry has the hash of its translations. Processes that write
    at the same time wait for each other, except in a bucket.

    Args:
        directory: of the run.
        record: from :func:`jaxformer.evaluation.evaluate.evaluate` or
            :func:`jaxformer.evaluation.texts.evaluate`.
        hypotheses: the translations or predictions, one a line; None: the result has
            none.
        variant: settings that differ from those of the run, such as ``beam_size=1``.

    Returns:
        Their file.

    Raises:
        InputError: a file cannot be written, ``results.json`` is damaged, or the bucket
            cannot be read or written.
    """
    name = f"{record['dataset']} {variant}".rstrip()
    if re.search("[:,]/(dev|proc)/", name):  # a pipe, which has any text
        name += f" text={record['text']}"
    output, text, entry = None, b"", record
    if hypotheses is not None:
        output = directory / f"hypotheses.{_stem(name)}.txt"
        text = "".join(line + "\n" for line in hypotheses).encode()
        digest = hashlib.sha256(text).hexdigest()
        named = {"hypotheses": output.name, "hypotheses_sha256": digest}
        entry = {**record, **named}
    with in_turn(directory):
        bucket.refresh(directory / "results.json")
        records = finite({**read_results(directory), name: entry})
        if output is not None:
            write_whole(output, text)
        write_whole(
            directory / "results.json",
            json.dumps(records, indent=2, ensure_ascii=False) + "\n",
        )
        bucket.push(directory)
    return output


def read_hypotheses(directory: Path, record: Mapping[str, Any]) -> list[str]:
    """Read the translations of a record.

    Raises:
        InputError: the file cannot be read, or is not the text that was scored.
    """
    path = directory / record["hypotheses"]
    lines = read_lines(path)
    written = hashlib.sha256(path.read_bytes()).hexdigest()
    if record.get("hypotheses_sha256") not in (None, written):
        raise InputError(
            f"{path} is not the text that results.json has the score of: evaluate the"
            " run again"
        )
    return lines


def read_results(directory: Path) -> dict[str, Any]:
    """Read the records of ``results.json`` by name; empty before an evaluation.

    Raises:
        InputError: the file is damaged.
    """
    path = directory / "results.json"
    try:
        records = parse_json(path.read_bytes()) if path.exists() else {}
    except InputError as error:
        raise InputError(f"{path} is not JSON ({error}); move it away") from None
    if not isinstance(records, dict) or not all(
        isinstance(record, dict) for record in records.values()
    ):
        raise InputError(f"{path} holds no JSON object of objects; move it away")
    return records


def _stem(name: str) -> str:
    """Return a unique part of a file's name for the name of a data set."""
    stem = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    # Names such as bundled:en-de/test stay unique. Others, such as paths, could
    # collide or be too long for a file.
    plain = re.fullmatch(r"[a-z]+:[A-Za-z0-9.-]+(/[A-Za-z0-9.-]+)?", name)
    if plain and len(stem) <= 100:
        return stem
    return f"{stem[-80:]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"
