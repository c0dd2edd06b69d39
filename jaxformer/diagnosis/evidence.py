"""The evidence of a run: what can be read without training, translating, fetching or
writing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.average import Average, list_averages
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.data import sources
from jaxformer.data.cleaning import Counts
from jaxformer.data.corpus import PREPARED, open_evaluation, prepared_folder
from jaxformer.data.mixing import Part, parse
from jaxformer.data.prepared import Manifest
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.diagnosis.survey import Survey, count_dropped, survey_text
from jaxformer.errors import InputError
from jaxformer.evaluation.outputs import direct, find_entries
from jaxformer.runs import config as configuration
from jaxformer.runs.records import (
    Curve,
    fingerprint,
    last_step,
    read_curves,
    read_gaps,
    read_hypotheses,
    read_results,
)

# Other data sets may have to be fetched.
_LOCAL = ("bundled", "text", "tsv", "jsonl", "synthetic")


class UnseenError(InputError):
    """A part of the evidence is missing.

    Attributes:
        broken: whether the part is damaged, or the run needs it.
    """

    def __init__(self, reason: str, *, broken: bool = False) -> None:
        """Keep the reason in one line."""
        super().__init__(" ".join(reason.split()))
        self.broken = broken


@contextlib.contextmanager
def _needed(needed: object = True) -> Iterator[None]:
    """Treat errors of reading as damage, if the part is needed."""
    try:
        yield
    except (InputError, OSError) as error:
        raise UnseenError(str(error), broken=bool(needed)) from error


class Evidence:
    """The evidence of a run: its directory, and the text that it names."""

    def __init__(self, directory: Path, dataset: str | None = None) -> None:
        """Read the configuration and choose the result to examine.

        Args:
            directory: of the run.
            dataset: name of a result, or of its data set; None: the result of
                ``data.test``, or the last.

        Raises:
            InputError: the directory is no run, or has no such result.
        """
        self.directory = directory
        self.config = configuration.load(directory / "config.json")
        self.name = self._choose(dataset)

    def list_faults(self) -> list[str]:
        """List the reasons of all damaged parts."""
        faults = {}
        for name, kind in vars(Evidence).items():
            if isinstance(kind, functools.cached_property):
                try:
                    getattr(self, name)
                except UnseenError as error:
                    faults |= {str(error): None} if error.broken else {}
                except (InputError, OSError):
                    pass  # not needed
        return list(faults)

    @functools.cached_property
    def curves(self) -> Mapping[str, Curve]:
        """The curves of ``metrics.jsonl``."""
        with _needed(self._log.exists()):
            return read_curves(self._log)

    @functools.cached_property
    def gaps(self) -> Mapping[str, Sequence[int]]:
        """Steps of ``metrics.jsonl`` without a finite number, by key."""
        with _needed(self._log.exists()):
            return read_gaps(self._log)

    @functools.cached_property
    def vocabularies(self) -> Vocabularies:
        """The vocabularies of the run."""
        with _needed():
            return Vocabularies.load(self.directory / "vocabulary")

    @functools.cached_property
    def trained_vocabulary(self) -> str:
        """The hash of the vocabulary of the best checkpoint.

        A run that has just begun has no checkpoint yet. Its folder of checkpoints is
        older than the first line of its log, and a checkpoint is older than a result.

        Raises:
            UnseenError: a checkpoint is missing, or does not name its vocabulary.
        """
        folder = self.directory / "checkpoints"
        begun = last_step(self._log) and not folder.exists()
        if (self.name or begun) and not self.averages and not self.saved:
            raise UnseenError(
                f"no checkpoint in {folder}, of a run that has"
                f" {'results' if self.name else 'steps'}",
                broken=True,
            )
        with _needed(self.saved):
            return find_parameters(
                self.directory, "best", self.config.evaluation.best_metric
            ).vocabulary

    @functools.cached_property
    def saved(self) -> list[int]:
        """The steps of the checkpoints, ascending."""
        with _needed():
            checkpoints = SavedCheckpoints(self.directory / "checkpoints")
            for step in checkpoints.steps:
                checkpoints.progress(step)
            return checkpoints.steps

    @functools.cached_property
    def averages(self) -> list[Average]:
        """The averages of checkpoints."""
        with _needed():
            return list_averages(self.directory)

    @functools.cached_property
    def results(self) -> Mapping[str, Mapping[str, Any]]:
        """The records of ``results.json`` by name.

        Raises:
            UnseenError: there are none.
        """
        with _needed():
            found = read_results(self.directory)
        if not found:
            raise UnseenError("no results.json: run jaxformer evaluate")
        return found

    @functools.cached_property
    def record(self) -> Mapping[str, Any]:
        """The record of the result to examine."""
        return self.results[str(self.name)]

    @functools.cached_property
    def hypotheses(self) -> list[str]:
        """The translations of the result.

        Raises:
            UnseenError: the result names no file of translations.
        """
        file = self.record.get("hypotheses")
        if file is None:
            raise UnseenError("the result names no file of translations")
        # Translations may have been left elsewhere.
        with _needed((self.directory / file).is_file()):
            return read_hypotheses(self.directory, self.record)

    @functools.cached_property
    def references(self) -> list[str]:
        """The references of the result, one for each translation.

        Raises:
            UnseenError: the text is not recorded, or, with the InputError that says
                how, it is not that of the translations.
        """
        record, count = self.record, len(self.hypotheses)
        sources, references = ([pair[side] for pair in self.test] for side in (0, 1))
        if record.get("text") is None:
            raise UnseenError("the result does not record its text: evaluate again")
        # A run keeps only the first of several references: that is no damage.
        signatures = [str(record[key]) for key in record if key.endswith("_signature")]
        with _needed(all("nrefs:1|" in x for x in signatures if "nrefs:" in x)):
            if not count == len(references) == record.get("sentences"):
                raise InputError(
                    f"the result {self.name!r} of {self.directory} has {count}"
                    f" translations of {len(references)} sentences, and records"
                    f" {record.get('sentences')}: evaluate the run again"
                )
            if record["text"] != fingerprint(sources, [references]):
                raise InputError(
                    f"{record['dataset']} is not the text that {self.directory} was"
                    " evaluated on: evaluate the run again"
                )
        return references

    @functools.cached_property
    def test(self) -> list[Pair]:
        """The pairs of the result, or else of ``data.test``."""
        data, name = self.config.data, self.config.data.test
        if self.name:
            data, name = direct(data, self.record), str(self.record.get("dataset"))
        # A path may contain the separator of a mixture.
        if name.startswith("text:"):
            corpus = sources.load(name, *data.languages, data.kind)
        else:
            key = "data.test" if name == data.test else "the result's dataset"
            _check_local(key, name, parse(name, *data.languages)[0].name)
            corpus = open_evaluation(name, data)[0]
        with _needed():
            return list(corpus)

    @functools.cached_property
    def survey(self) -> Survey:
        """The survey of the training text."""
        for part in self._parts:
            _check_local("data.train", part.name)
        kind = self.config.data.kind
        corpora = [
            sources.load(part.name, *part.languages, kind) for part in self._parts
        ]
        test: Sequence[Pair] = ()
        with contextlib.suppress(InputError, OSError):
            test = self.test
        with _needed():
            return survey_text(itertools.chain.from_iterable(corpora), test)

    @functools.cached_property
    def counts(self) -> Counts:
        """What cleaning drops from the training text, or from a sample of it."""
        if not all(part.name.startswith(PREPARED) for part in self._parts):
            return count_dropped(
                self.survey.sample, self.config.data, self.vocabularies
            )
        manifests = [Manifest.load(prepared_folder(part)) for part in self._parts]
        counts = (count for one in manifests for count in one.counts.values())
        return sum(counts, Counts())

    @property
    def _log(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def _parts(self) -> tuple[Part, ...]:
        data = self.config.data
        return parse(data.train, data.source_language, data.target_language)

    def _choose(self, dataset: str | None) -> str | None:
        """Choose a result by name, else by data set, else the last."""
        try:
            results = self.results
        except UnseenError as error:
            if dataset is not None and error.broken:
                raise InputError(str(error)) from None
            results = {}
        found = find_entries(results, dataset or self.config.data.test)
        if dataset is not None and not found:
            raise InputError(
                f"{self.directory} has no result {dataset!r} (there:"
                f" {', '.join(results) or 'none'}); evaluate it first, or leave out"
                " --dataset"
            )
        return found[0] if found else next(reversed(list(results)), None)


def find_curve(run: Evidence, key: str, fewest: int = 1) -> Curve:
    """Return a curve of at least so many points.

    Raises:
        UnseenError: there are fewer.
    """
    points = run.curves.get(key, [])
    if len(points) < fewest:
        raise UnseenError(f"metrics.jsonl has fewer than {fewest} points of {key}")
    return points


def _check_local(key: str, name: str, plain: str | None = None) -> None:
    if (plain or name).partition(":")[0] not in _LOCAL:
        raise UnseenError(
            f"{key}={name} is not read: only files, the bundled corpus and synthetic"
            " tasks are"
        )
