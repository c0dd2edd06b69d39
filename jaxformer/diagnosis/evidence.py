"""What of a run can be seen without training, translating, fetching or writing
anything.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxformer.checkpoints.average import Average, list_averages
from jaxformer.checkpoints.manager import SavedCheckpoints
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.data import sources
from jaxformer.data.cleaning import Counts
from jaxformer.data.config import DataConfig
from jaxformer.data.loading import PREPARED, open_evaluation
from jaxformer.data.mixing import parse
from jaxformer.data.records import Pair
from jaxformer.data.shards import read_manifest
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.diagnosis import survey
from jaxformer.diagnosis.survey import Survey
from jaxformer.errors import InputError
from jaxformer.evaluation.outputs import ScoredSet, read_systems
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import (
    Curve,
    read_curves,
    read_gaps,
    read_hypotheses,
    read_results,
)

# the others may have to be fetched
_LOCAL = ("bundled", "text", "tsv", "jsonl", "synthetic")


@dataclass(frozen=True)
class Unseen:
    """What could not be seen.

    Attributes:
        reason: why, in a line.
        broken: whether it is damaged, or gone from a run that cannot do without it.
    """

    reason: str
    broken: bool = False


@dataclass(frozen=True)
class Evidence:
    """What a run directory, and the text that it names, show.

    Attributes:
        directory: of the run.
        config: of the run.
        curves: what ``metrics.jsonl`` recorded.
        gaps: at which steps it recorded no finite number, by key.
        vocabularies: of the run.
        trained_vocabulary: hash of the vocabulary that the best checkpoint was trained
            with.
        saved: the steps of the checkpoints that are there, ascending.
        averages: of checkpoints.
        records: what ``results.json`` holds, by name.
        name: of the one of them that is looked at; None: there is none.
        record: that one.
        hypotheses: its translations.
        scored: what they were compared with.
        test: the pairs that the result looked at is of; without a result those of
            ``data.test``.
        survey: of the training text.
        counts: what cleaning leaves out of the training text, or of a sample of it.
    """

    directory: Path
    config: RunConfig
    curves: Mapping[str, Curve] | Unseen
    gaps: Mapping[str, Sequence[int]] | Unseen
    vocabularies: Vocabularies | Unseen
    trained_vocabulary: str | Unseen
    saved: list[int] | Unseen
    averages: list[Average] | Unseen
    records: Mapping[str, Any] | Unseen
    name: str | None
    record: Mapping[str, Any] | Unseen
    hypotheses: list[str] | Unseen
    scored: ScoredSet | Unseen
    test: list[Pair] | Unseen
    survey: Survey | Unseen
    counts: Counts | Unseen

    @property
    def chosen(self) -> bool:
        """Whether what was scored may have been chosen among others: all but the
        checkpoint of the last step.
        """
        return (
            not isinstance(self.record, Unseen)
            and self.record.get("checkpoint") != self.config.training.steps
        )


Seen = TypeVar("Seen")


def read_evidence(directory: Path, dataset: str | None = None) -> Evidence:
    """Look at a run.

    Args:
        directory: of the run.
        dataset: which result to look at, by its name or that of its data set; None:
            that of ``data.test``, or the last.

    Raises:
        InputError: it is no directory of a run, or has no such result.
    """
    config = configuration.load(directory / "config.json")
    data = config.data
    records = _try(
        lambda: (
            read_results(directory) or Unseen("no results.json: run jaxformer evaluate")
        ),
        broken=True,
    )
    name = None if isinstance(records, Unseen) else _choose(records, data.test, dataset)
    if dataset is not None and name is None:
        if isinstance(records, Unseen) and (directory / "results.json").exists():
            raise InputError(records.reason)
        there = "none" if isinstance(records, Unseen) else ", ".join(records)
        raise InputError(
            f"{directory} has no result {dataset!r} (there: {there}); evaluate it"
            " first, or leave out --dataset"
        )
    record = records if isinstance(records, Unseen) or name is None else records[name]
    metrics = directory / "metrics.jsonl"
    learned = _try(lambda: read_curves(metrics), broken=metrics.exists())
    vocabularies = _try(
        lambda: Vocabularies.load(directory / "vocabulary"), broken=True
    )
    averages = _try(lambda: list_averages(directory), broken=True)
    saved = _try(lambda: _list_steps(directory / "checkpoints"), broken=True)
    test = _read_test(
        data, data.test if isinstance(record, Unseen) else str(record.get("dataset"))
    )
    surveyed = _survey(data, [] if isinstance(test, Unseen) else test)
    return Evidence(
        directory,
        config,
        learned,
        _try(lambda: read_gaps(metrics), broken=metrics.exists()),
        vocabularies,
        _read_trained(
            directory, config, learned, averages, saved, scored=name is not None
        ),
        saved,
        averages,
        records,
        name,
        record,
        _read_hypotheses(directory, record),
        _read_scored(directory, name, record, config),
        test,
        surveyed,
        _count(data, vocabularies, surveyed),
    )


def _try(look: Callable[[], Seen | Unseen], *, broken: bool = False) -> Seen | Unseen:
    """Look at something; where that fails, keep the reason."""
    try:
        return look()
    except (InputError, OSError) as error:
        return Unseen(" ".join(str(error).split()), broken)


def _choose(records: Mapping[str, Any], test: str, wanted: str | None) -> str | None:
    """Name the result to look at: by name, else the first of that data set, else the
    last of all.
    """
    named = [
        name
        for name, record in records.items()
        if record.get("dataset") == (wanted or test)
    ]
    for choice in (wanted or test, *named):
        if choice in records:
            return choice
    return None if wanted is not None else list(records)[-1]


def _is_local(name: str) -> bool:
    return name.partition(":")[0] in _LOCAL


def _far(key: str, name: str) -> Unseen:
    return Unseen(
        f"{key}={name} is not read: only files, the bundled corpus and synthetic"
        " tasks are"
    )


def _read_test(data: DataConfig, name: str) -> list[Pair] | Unseen:
    def find() -> sources.Corpus | Unseen:
        # whose paths may hold what separates the parts of a mixture
        if name.startswith("text:"):
            return sources.load(name, data.source_language, data.target_language)
        if not _is_local(
            parse(name, data.source_language, data.target_language)[0].name
        ):
            return _far(
                "data.test" if name == data.test else "the result's dataset", name
            )
        return open_evaluation(name, data)[0]

    corpus = _try(find)
    return (
        corpus
        if isinstance(corpus, Unseen)
        else _try(lambda: list(corpus), broken=True)
    )


def _survey(data: DataConfig, test: list[Pair]) -> Survey | Unseen:
    def find() -> list[sources.Corpus] | Unseen:
        parts = parse(data.train, data.source_language, data.target_language)
        far = [part.name for part in parts if not _is_local(part.name)]
        if far:
            return _far("data.train", far[0])
        return [
            sources.load(part.name, part.source_language, part.target_language)
            for part in parts
        ]

    corpora = _try(find)
    if isinstance(corpora, Unseen):
        return corpora
    return _try(
        lambda: survey.take(itertools.chain.from_iterable(corpora), test), broken=True
    )


def _count(
    data: DataConfig, vocabularies: Vocabularies | Unseen, surveyed: Survey | Unseen
) -> Counts | Unseen:
    """Take the counts of prepared folders, or count in the sample."""

    def prepared() -> Counts:
        folders = [
            Path(part.name.removeprefix(PREPARED).strip()).expanduser()
            for part in parts
        ]
        manifests = [read_manifest(folder) for folder in folders]
        return sum(
            (
                Counts(**count)
                for manifest in manifests
                for count in manifest["counts"].values()
            ),
            Counts(),
        )

    parts = parse(data.train, data.source_language, data.target_language)
    if all(part.name.startswith(PREPARED) for part in parts):
        return _try(prepared)
    if isinstance(surveyed, Unseen):
        return dataclasses.replace(surveyed, broken=False)
    if isinstance(vocabularies, Unseen):
        return dataclasses.replace(vocabularies, broken=False)
    return _try(lambda: survey.count_dropped(surveyed.sample, data, vocabularies))


def _read_trained(
    directory: Path,
    config: RunConfig,
    learned: Mapping[str, Curve] | Unseen,
    averages: Sequence[Average] | Unseen,
    saved: Sequence[int] | Unseen,
    *,
    scored: bool,
) -> str | Unseen:
    """Read what vocabulary the best checkpoint was trained with; that there is none is
    no fault of a run that begins.

    The folder of checkpoints is made before the first line of the log is written, and a
    checkpoint before a result.
    """
    folder = directory / "checkpoints"
    expected = scored or (
        not isinstance(learned, Unseen) and bool(learned) and not folder.exists()
    )
    if expected and not averages and not saved:
        return Unseen(
            f"no checkpoint in {folder}, of a run that has"
            f" {'results' if scored else 'steps'}",
            broken=True,
        )
    return _try(
        lambda: (
            find_parameters(directory, "best", config.evaluation.best_metric).vocabulary
        ),
        broken=bool(saved),
    )


def _list_steps(folder: Path) -> list[int]:
    """List the steps of checkpoints, ascending.

    Raises:
        InputError: one is damaged.
    """
    checkpoints = SavedCheckpoints(folder)
    for step in checkpoints.steps:
        checkpoints.check(step)
    return checkpoints.steps


def _read_hypotheses(
    directory: Path, record: Mapping[str, Any] | Unseen
) -> list[str] | Unseen:
    if isinstance(record, Unseen):
        return dataclasses.replace(record, broken=False)
    if not isinstance(record.get("hypotheses"), str):
        return Unseen("the result names no file of translations")
    return _try(lambda: read_hypotheses(directory, record))


def _read_scored(
    directory: Path,
    name: str | None,
    record: Mapping[str, Any] | Unseen,
    config: RunConfig,
) -> ScoredSet | Unseen:
    """Read what the translations were compared with, if it is here and still the
    same.
    """
    if isinstance(record, Unseen) or name is None:
        return Unseen("there is no result")
    dataset = str(record.get("dataset"))
    if not _is_local(dataset):
        return _far("the result's dataset", dataset)
    languages = config.data.source_language, config.data.target_language
    plain = (
        dataset if dataset.startswith("text:") else parse(dataset, *languages)[0].name
    )
    found = _try(lambda: sources.load(plain, *languages))
    if isinstance(found, Unseen):
        return found
    # Of several references the run keeps one, and translations may have been left
    # elsewhere: neither is a fault.
    whole = "text" in record and all(
        "nrefs:1|" in text for text in _signatures(record) if "nrefs:" in text
    )
    kept = (directory / str(record.get("hypotheses"))).is_file()
    return _try(lambda: _read_run(directory, name), broken=whole and kept)


def _read_run(directory: Path, name: str) -> ScoredSet:
    (hypotheses,), scored = read_systems([directory], name, None, None)
    if len(hypotheses) != len(scored.references[0]):
        raise InputError(
            f"the result {name!r} of {directory} has {len(hypotheses)} translations of"
            f" {len(scored.references[0])} sentences: evaluate the run again"
        )
    return scored


def _signatures(record: Mapping[str, Any]) -> list[str]:
    return [str(value) for key, value in record.items() if key.endswith("_signature")]
