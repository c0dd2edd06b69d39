"""Read translations to compare, from files or from runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.data import sources
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import load_evaluation
from jaxformer.data.files import read_lines
from jaxformer.errors import InputError, UsageError
from jaxformer.runs.config import load
from jaxformer.runs.records import fingerprint, read_hypotheses, read_results


class ScoredSet(NamedTuple):
    """Hold references and sources of translations.

    Attributes:
        references: flat lists, each with one reference for each sentence.
        sources: the text that was translated, or None.
        language: of the references, or None.
    """

    references: list[list[str]]
    sources: list[str] | None
    language: str | None


def read_systems(
    paths: Sequence[Path],
    entry: str | None,
    references: Sequence[str] | None,
    source: str | None,
) -> tuple[list[list[str]], ScoredSet]:
    """Read the translations of systems, and their references.

    Args:
        paths: files of translations, one a line, or directories of evaluated runs.
        entry: name of a result of the runs, or of its data set; None: the only one that
            they share.
        references: files; None: the text that the runs were evaluated on.
        source: file of the text that was translated.

    Raises:
        UsageError: references are missing, or ``entry`` is given and no run.
        InputError: something is missing, or the runs do not share a text.
    """
    directories = [path for path in paths if path.is_dir()]
    if len(directories) < len(paths) and references is None:
        raise UsageError("files of translations need references: give --reference=FILE")
    if entry is not None and not directories:
        raise UsageError(
            "--dataset chooses among the results of runs, and no run is given: leave"
            " it out"
        )
    wanted = entry or (_choose_set(directories) if directories else "")
    records, systems = [], []
    for path in paths:
        if path.is_dir():
            record, lines = _read_run(path, wanted)
            records.append(record)
        else:
            lines = read_lines(path)
        systems.append(lines)
    if references is None:
        scored = _load(directories[0], records)
    else:
        scored = ScoredSet([read_lines(file) for file in references], None, None)
    return systems, (
        scored if source is None else scored._replace(sources=read_lines(source))
    )


def _choose_set(directories: Sequence[Path]) -> str:
    """Return the data set that all runs were evaluated on."""
    found = []
    for directory in directories:
        records = read_results(directory)
        if not records:
            raise InputError(
                f"{directory} has no results: run jaxformer evaluate"
                f" --workdir={directory} first"
            )
        names = [r["dataset"] for r in records.values() if "dataset" in r]
        found.append(list(dict.fromkeys(names)))
    shared = [name for name in found[0] if all(name in names for names in found)]
    if len(shared) == 1:
        return shared[0]
    if shared:
        raise InputError(
            "the runs share several results: choose one by --dataset of"
            f" {_quoted(shared)}"
        )
    have = ", ".join(
        f"{directory} has {_quoted(names)}"
        for directory, names in zip(directories, found, strict=True)
    )
    raise InputError(f"the runs share no result: {have}; evaluate all on one")


def find_entries(records: Mapping[str, Mapping[str, Any]], wanted: str) -> list[str]:
    """Return the names of the results that a name, or that of a data set, means."""
    if wanted in records:
        return [wanted]
    return [name for name in records if records[name].get("dataset") == wanted]


def _read_run(directory: Path, wanted: str) -> tuple[dict[str, Any], list[str]]:
    """Read the result of a name, or the only one of a data set, and its lines."""
    records = read_results(directory)
    names = find_entries(records, wanted)
    if len(names) > 1:
        raise InputError(
            f"{directory} has several results for {wanted}: give one of its"
            " hypotheses.*.txt instead"
        )
    if not names:
        raise InputError(
            f"{directory} has no result {wanted!r}; it has {_quoted(list(records))}"
        )
    record = records[names[0]]
    if "hypotheses" not in record:
        raise InputError(
            f"the result {wanted!r} of {directory} names no translations: evaluate the"
            " run again"
        )
    return record, read_hypotheses(directory, record)


def _load(directory: Path, records: Sequence[dict[str, Any]]) -> ScoredSet:
    """Load the sentences that all runs were evaluated on, by the first run."""
    prints = [record.get("text") for record in records]
    if None in prints:
        raise InputError(
            "results of an earlier version do not record their text: evaluate again, or"
            " give --reference"
        )
    if len(set(prints)) != 1:
        raise InputError(
            "the runs were evaluated on different text, each called"
            f" {records[0]['dataset']}: evaluate again"
        )
    name, data = records[0]["dataset"], load(directory / "config.json").data
    if name.startswith("text:"):
        pairs = list(sources.load(name, "", ""))
        language = records[0].get("target_language")
    else:
        pairs, (_, language) = load_evaluation(name, direct(data, records[0]))
    texts, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    if prints[0] != fingerprint(texts, [references]):
        raise InputError(
            f"{name} is not the text that {directory} was evaluated on, or it had"
            " several references: give --reference"
        )
    return ScoredSet([references], texts, language)


def direct(data: DataConfig, record: Mapping[str, Any]) -> DataConfig:
    """Return the configuration of a run's data in the direction of a result."""
    return data.between(record.get("source_language"), record.get("target_language"))


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names)
