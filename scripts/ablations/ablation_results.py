"""The rows of the ablations in small, and the scores of their runs in a folder."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError
from jaxformer.paper.parameters import count_parameters
from jaxformer.runs import config as configuration
from jaxformer.runs import records
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import read_results

BASE_ROW = "base"
"""The row that all others are compared with."""

ROWS: Mapping[str, str | None] = types.MappingProxyType(
    {
        BASE_ROW: "base",
        "a_h1": "a_h1",
        "a_h2": "a_h4",
        "a_h8": "a_h16",
        "b_dk8": "b_dk16",
        "b_dk16": "b_dk32",
        "c_n1": "c_n4",
        "c_n3": "c_n8",
        "c_d64": "c_d256",
        "c_d256": "c_d1024",
        "c_ff256": "c_ff1024",
        "c_ff1024": "c_ff4096",
        "d_dropout00": "d_dropout00",
        "d_dropout02": "d_dropout02",
        "d_smoothing00": "d_smoothing00",
        "d_smoothing02": "d_smoothing02",
        "e_learned": "e_learned",
        "pre_norm": None,
    }
)
"""The rows, ``configs/proxy.py:ROW``, and the row of Table 3 for each; None if there is
none.
"""

AVERAGED = 5
"""Checkpoints of the average that is scored too (Vaswani et al. 2017, section 6.1)."""

_OF_A_RECORD = ("dataset", "text", "sentences", "checkpoint", "bleu", "bleu_signature")


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How a run is scored: a search, of the last checkpoint or of the average of the
    last ones.
    """

    name: str
    beam_size: int = 4
    alpha: float = 0.6
    averaged: bool = False


USUAL = Decoding("beam 4, alpha 0.6")
"""How every run is scored: as in the paper."""

OTHERS = (
    Decoding("beam 1", beam_size=1),
    Decoding("alpha 0", alpha=0.0),
    Decoding("alpha 1", alpha=1.0),
    Decoding(f"mean of {AVERAGED} checkpoints", averaged=True),
)
"""How those of the base are scored besides; each changes one thing."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a finished run scored by one search.

    Attributes:
        row: of the ablation_results.
        seed: of the run.
        decoding: the name of the search.
        changes: what the run has otherwise than the base, by the keys of a
            configuration.
        steps: that it was trained for.
        parameters: of its model.
        valid: the text of the perplexity.
        perplexity: a piece of the vocabulary, after the last step.
        dataset: the text of the score.
        text: the fingerprint of that text.
        sentences: of it.
        checkpoint: what was scored: the last step, or the name of an average.
        bleu: the score.
        bleu_signature: sacreBLEU's.
    """

    row: str
    seed: int
    decoding: str
    changes: Mapping[str, Any]
    steps: int
    parameters: int
    valid: str
    perplexity: float
    dataset: str
    text: str
    sentences: int
    checkpoint: int | str
    bleu: float
    bleu_signature: str


def decodings(row: str) -> tuple[Decoding, ...]:
    """Return the searches that a row is scored by."""
    return (USUAL, *OTHERS) if row == BASE_ROW else (USUAL,)


def average_name(steps: int) -> str:
    """Name the average of the last checkpoints of a run of this length."""
    return f"last-{AVERAGED}-at-{steps}"


def run_directory(output: Path, row: str, seed: int) -> Path:
    """Name the directory of a run in a folder of ablation_results."""
    return output / f"{row}-{seed}"


def find_runs(
    output: Path, rows: Iterable[str] = tuple(ROWS)
) -> Iterator[tuple[str, int, Path]]:
    """Find the runs in a folder, finished or not: row, seed and directory, in the
    order of rows and seeds.
    """
    for row in rows:
        names = (
            path.parent.name.removeprefix(f"{row}-")
            for path in output.glob(f"{row}-*/config.json")
        )
        # base-01 is no run of seed 1: that one is base-1
        for seed in sorted(
            int(name) for name in names if name.isdecimal() and name == str(int(name))
        ):
            yield row, seed, run_directory(output, row, seed)


def differences(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two configurations, but for seed, length and what
    the vocabulary decides.
    """
    free = {
        "training.seed",
        "training.steps",
        *(f"model.{name}" for name in configuration.OF_THE_VOCABULARY),
    }
    old, new = configuration.flatten(before), configuration.flatten(after)
    return {
        key: (old[key], new[key])
        for key in old
        if key not in free and old[key] != new[key]
    }


def find_record(
    directory: Path, config: RunConfig, decoding: Decoding
) -> Mapping[str, Any] | None:
    """Find what a run scored at its end by a search; None where it was not scored so.

    Entries that hold no BLEU of a search, such as the F1 of a parser, are passed over.

    Args:
        directory: of the run.
        config: of the run, which says where its end is.
        decoding: the search.

    Raises:
        InputError: the results of the run are damaged.
    """
    steps = config.training.steps
    checkpoint = f"average/{average_name(steps)}" if decoding.averaged else steps
    wanted = (config.data.test, checkpoint, decoding.beam_size, decoding.alpha)
    # as a record has it
    usual = json.loads(json.dumps(dataclasses.asdict(config.decoding)))
    usual |= {"beam_size": decoding.beam_size, "alpha": decoding.alpha}
    usual["shortlist"] = False
    for record in read_results(directory).values():
        if not {*_OF_A_RECORD, "decoding"} <= record.keys():
            continue
        search = record["decoding"]
        found = record["dataset"], record["checkpoint"]
        found += search.get("beam_size"), search.get("alpha")
        if found == wanted and all(
            search.get(key, value) == value for key, value in usual.items()
        ):
            return record
    return None


def is_finished(row: str, directory: Path, steps: int) -> bool:
    """Return whether a run was trained for so many steps and has all its scores."""
    if not (directory / "config.json").is_file():
        return False
    config = configuration.load(directory / "config.json")
    return config.training.steps == steps and all(
        find_record(directory, config, each) for each in decodings(row)
    )


def collect(output: Path) -> list[Result]:
    """Read the results of all finished runs in a folder that were trained for as long
    as the longest of them.

    Raises:
        InputError: no run of the base is finished, or the runs were scored on different
            text.
    """
    found = [
        (row, seed, directory, configuration.load(directory / "config.json"))
        for row, seed, directory in find_runs(output)
    ]
    steps = [
        config.training.steps * is_finished(row, directory, config.training.steps)
        for row, _, directory, config in found
    ]
    longest = max(steps, default=0)
    done = [each for each, own in zip(found, steps, strict=True) if 0 < own == longest]
    bases = [config for row, *_, config in done if row == BASE_ROW]
    if not bases:
        raise InputError(
            f"{output} has no finished run of the row {BASE_ROW}, which all are"
            " compared with: run it first"
        )
    results = [
        _result(row, seed, directory, config, bases[0], decoding)
        for row, seed, directory, config in done
        for decoding in decodings(row)
    ]
    _check_text(output, results)
    return results


def _result(
    row: str,
    seed: int,
    directory: Path,
    config: RunConfig,
    base: RunConfig,
    decoding: Decoding,
) -> Result:
    record = find_record(directory, config, decoding)
    assert record is not None  # the run is finished
    return Result(
        row=row,
        seed=seed,
        decoding=decoding.name,
        changes={key: new for key, (_, new) in differences(base, config).items()},
        steps=config.training.steps,
        parameters=count_parameters(config.model),
        valid=config.data.valid,
        perplexity=_last_perplexity(directory, config.training.steps),
        **{key: record[key] for key in _OF_A_RECORD},
    )


def _last_perplexity(directory: Path, steps: int) -> float:
    curve = dict(
        records.read_curves(directory / "metrics.jsonl").get("valid/perplexity", ())
    )
    if steps not in curve:
        raise InputError(
            f"{directory / 'metrics.jsonl'} has no valid/perplexity at step {steps}:"
            " move the run away"
        )
    return curve[steps]


def _check_text(output: Path, results: Sequence[Result]) -> None:
    if len({(result.text, result.bleu_signature) for result in results}) > 1:
        raise InputError(
            f"the runs in {output} were scored on different text or by different BLEU:"
            " move some away"
        )
