"""From the name of a training set to training data: read, clean, tokenise, mix."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jaxformer.data import sources
from jaxformer.data.cleaning import (
    Counts,
    find_duplicates,
    summary,
    why_nothing_is_left,
)
from jaxformer.data.config import DataConfig
from jaxformer.data.files import check_regular
from jaxformer.data.mixing import Part, Share, level, parse
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.records import Pair
from jaxformer.data.shards import Prepared, read_manifest, read_vocabularies
from jaxformer.data.sources import Corpus
from jaxformer.data.store import Joined, Spool, Store
from jaxformer.data.tokenizing import Piece, Sampling, Tokenizer, tokenize
from jaxformer.data.vocabulary import Vocabularies, load_or_train
from jaxformer.errors import InputError

PREPARED = "prepared:"
Report: TypeAlias = Callable[[str], None]
"""Gets a line for each thing worth telling while text is read."""

_TELL_EVERY = 500_000


class TextPart(NamedTuple):
    """A data set of raw text in a mixture."""

    part: Part
    corpus: Corpus


@dataclass(frozen=True)
class TrainingText:
    """What ``data.train`` names: data sets of raw text, or folders of prepared ones.

    Raises:
        InputError: both are mixed.
    """

    config: DataConfig
    texts: tuple[TextPart, ...]
    prepared: tuple[Part, ...]

    @classmethod
    def open(cls, config: DataConfig) -> TrainingText:
        """Find what the configuration names; text is read later.

        Raises:
            InputError: a name is wrong, or it names text and prepared folders together.
        """
        parts = parse(config.train, config.source_language, config.target_language)
        prepared = tuple(part for part in parts if part.name.startswith(PREPARED))
        if prepared and len(prepared) < len(parts):
            raise InputError(
                f"data.train={config.train!r} mixes text with prepared folders: prepare"
                " the text too, into a folder of its own, with the vocabulary of the"
                " others"
            )
        if prepared and config.segmentation_alpha is not None:
            raise InputError(
                "data.segmentation_alpha segments the text anew in each epoch, and a"
                " prepared folder has no text: name the text itself in data.train, or"
                " set data.segmentation_alpha=None"
            )
        _check_directions(config, parts)
        if config.temperature != 1.0 and any(part.weight != 1.0 for part in parts):
            raise InputError(
                f"data.temperature={config.temperature} and the weights of"
                f" data.train={config.train!r} both say how often pairs come: give one"
                " of them"
            )
        texts = tuple(
            TextPart(
                part,
                sources.load(part.name, part.source_language, part.target_language),
            )
            for part in parts
            if not part.name.startswith(PREPARED)
        )
        for text in texts:
            check_regular(text.corpus.files)
        return cls(config, texts, prepared)

    @property
    def pairs(self) -> Corpus:
        """The raw text of all parts, one after another, as it is before cleaning."""
        return Corpus(
            self.config.train,
            lambda: itertools.chain.from_iterable(text.corpus for text in self.texts),
        )

    @property
    def languages(self) -> list[str]:
        """The target languages, sorted."""
        return sorted({text.part.target_language for text in self.texts})

    def vocabularies(
        self, directory: Path, *, report: Report = lambda _: None
    ) -> Vocabularies:
        """Load the vocabularies from a run's folder, or take those of the prepared
        folder, or train them on the text.

        ``report`` is told when they are to be trained.

        Raises:
            InputError: they do not fit the configuration, or prepared folders disagree.
        """
        if not self.prepared:
            tags = self.languages if self.config.language_tags else ()
            if not any(directory.glob("*.model")):
                report(f"training the vocabulary on {self.config.train}")
            return load_or_train(directory, self.config, self.pairs, tags=tags)
        folders = [_folder(part) for part in self.prepared]
        manifests = [read_manifest(folder) for folder in folders]
        for folder, manifest in zip(folders, manifests, strict=True):
            self._check_request(folder, manifest)
        hashes = {manifest["vocabulary"] for manifest in manifests}
        if len(hashes) > 1:
            raise InputError(
                f"the prepared folders of data.train={self.config.train!r} have"
                " different vocabularies: prepare them with one and the same, by"
                " jaxformer prepare --vocabulary"
            )
        return read_vocabularies(folders[0], manifests[0])

    def load(
        self, vocabularies: Vocabularies, *, seed: int, report: Report = lambda _: None
    ) -> TrainingData:
        """Read everything and choose the shapes of the batches; ``report`` is told now
        and then how far it is.

        Raises:
            InputError: the text cannot be read, no pair is left, or a prepared folder
                does not fit.
        """
        if self.prepared:
            return self._load_prepared(vocabularies, seed)
        readers = [self._reader(text, vocabularies) for text in self.texts]
        stores, counts = _spool(readers, vocabularies, report=report)
        shares = self._shares(
            [text.part for text in self.texts], [len(store) for store in stores]
        )
        refuse_nothing(sum(map(len, stores)), counts)
        store = Joined.of(stores)
        resample = None
        if self.config.segmentation_alpha is not None:
            # The shapes of the batches are chosen for the best segmentation: no drawn
            # one is longer than its longest.
            longest = int(store.source_lengths.max()), int(store.target_lengths.max())
            sampling = Sampling(self.config.segmentation_alpha, seed, 0, longest)
            resample = partial(_resample, readers, vocabularies, sampling, counts)
        return TrainingData.of(
            store,
            self.config,
            seed=seed,
            shares=shares,
            counts=counts,
            resample=resample,
        )

    def read(
        self,
        text: TextPart,
        vocabularies: Vocabularies,
        *,
        report: Report = lambda _: None,
    ) -> Iterator[Piece]:
        """Clean and tokenise one part, piece by piece, in its order; ``report`` is
        told now and then how far it is.
        """
        return self._reader(text, vocabularies)(None, report)

    def _reader(self, text: TextPart, vocabularies: Vocabularies) -> _Reader:
        config = self.config
        cleaning = config.cleaning
        tokenizer = Tokenizer(
            vocabularies,
            cleaning,
            (text.part.source_language, text.part.target_language),
            source_eos=config.source_eos,
            max_length=config.max_length,
            tagged=config.language_tags,
            duplicates=find_duplicates(text.corpus, cleaning),
        )
        return _Reader(text.part.name, text.corpus, tokenizer, config.workers)

    def _load_prepared(self, vocabularies: Vocabularies, seed: int) -> TrainingData:
        pad_id = vocabularies.source.pad_id, vocabularies.target.pad_id
        size = max(vocabularies.source.size, vocabularies.target.size)
        stores: list[Store] = []
        counts: dict[str, Counts] = {}
        for part in self.prepared:
            folder = _folder(part)
            manifest = read_manifest(folder)
            self._check_manifest(manifest, folder, vocabularies)
            whole = Prepared.open(folder, pad_id=pad_id, vocabulary_size=size)
            store = whole.limited(self.config.max_length)
            stores.append(store)
            count = sum(
                (Counts(**count) for count in manifest["counts"].values()), Counts()
            )
            count.dropped["max_length"] = (
                count.dropped.get("max_length", 0) + len(whole) - len(store)
            )
            counts[part.name] = counts.get(part.name, Counts()) + count
        refuse_nothing(sum(map(len, stores)), counts)
        shares = self._shares(self.prepared, [len(store) for store in stores])
        store = Joined.of(stores)
        return TrainingData.of(
            store, self.config, seed=seed, shares=shares, counts=counts
        )

    def _check_manifest(
        self, manifest: Mapping[str, Any], folder: Path, vocabularies: Vocabularies
    ) -> None:
        """Refuse a folder that was prepared for other training than this."""
        if manifest["vocabulary"] != vocabularies.hash:
            raise InputError(
                f"{folder} was tokenised with another vocabulary (hash"
                f" {manifest['vocabulary'][:12]}) than this run's"
                f" ({vocabularies.hash[:12]}): remove it and prepare it again, or"
                " choose another --workdir"
            )
        self._check_request(folder, manifest)

    def _check_request(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Refuse a folder that was prepared with other values than the configuration
        has.
        """
        request = manifest["request"]
        lost = [key for key in self.config.request if key not in request]
        if lost or type(request["max_length"]) is not int:
            raise InputError(
                f"{folder} does not say with which data.{(lost or ['max_length'])[0]}"
                " it was prepared: prepare it again"
            )
        others = [
            f"--config.data.{key}={shlex.quote(str(request[key]))}"
            for key, value in self.config.request.items()
            if key not in ("train", "max_length") and request[key] != value
        ]
        if others:
            raise InputError(
                f"{folder} was prepared with other values: give {' '.join(others)}, or"
                " prepare the text into another folder with the values of this run"
            )
        if request["max_length"] < self.config.max_length:
            raise InputError(
                f"{folder} was prepared with data.max_length={request['max_length']}"
                " and lacks longer pairs: give"
                f" --config.data.max_length={request['max_length']} or less, or prepare"
                " the text into another folder"
            )

    def _shares(self, parts: Sequence[Part], sizes: Sequence[int]) -> list[Share]:
        weights = [part.weight for part in parts]
        if self.config.temperature != 1.0:
            weights = level(sizes, self.config.temperature)
        stops = list(itertools.accumulate(sizes))
        return [
            Share(part.name, stop - size, stop, weight)
            for part, size, stop, weight in zip(
                parts, sizes, stops, weights, strict=True
            )
        ]


def load_evaluation(name: str, config: DataConfig) -> tuple[list[Pair], str]:
    """Read a data set that is translated and judged, and say into which language it
    goes.

    Args:
        name: one data set, with its languages behind it where they are not those of
            ``config``.
        config: of the run.

    Raises:
        InputError: it cannot be read, holds no pair, or is no single set of raw text.
    """
    corpus, language = open_evaluation(name, config)
    pairs = list(corpus)
    if not pairs:
        raise InputError(
            f"{corpus.name} holds no pair: name a data set that is not empty"
        )
    return pairs, language


def open_evaluation(name: str, config: DataConfig) -> tuple[Corpus, str]:
    """Find a data set that is translated and judged, without reading it; say into which
    language it goes.

    Raises:
        InputError: it is not there, or is no single set of raw text.
    """
    part, *others = parse(name, config.source_language, config.target_language)
    _check_directions(config, [part])
    if others or part.weight != 1.0 or part.name.startswith(PREPARED):
        raise InputError(
            f"{name!r} cannot be judged by: name one data set of raw text, without a"
            " weight (mixtures and prepared folders are for data.train)"
        )
    return (
        sources.load(part.name, part.source_language, part.target_language),
        part.target_language,
    )


def name_sources(name: str, config: DataConfig) -> str:
    """Say what an error calls the text whose line i is source i of a data set: its
    file, or the set where it is no one.

    Raises:
        InputError: as :func:`open_evaluation`.
    """
    corpus, _ = open_evaluation(name, config)
    sides = 2 if corpus.name.startswith("text:") else 1
    return str(corpus.files[0]) if len(corpus.files) == sides else corpus.name


@dataclass(frozen=True)
class _Reader:
    """Reads one data set as often as it is asked to."""

    name: str
    corpus: Iterable[Pair]
    tokenizer: Tokenizer
    workers: int | None

    def __call__(self, sampling: Sampling | None, report: Report) -> Iterator[Piece]:
        read = told = 0
        tokenizer = dataclasses.replace(self.tokenizer, sampling=sampling)
        for piece in tokenize(self.corpus, tokenizer, workers=self.workers):
            read += piece.counts.read
            if read - told >= _TELL_EVERY:
                told = read
                report(f"{self.name}: {read:,} pairs read")
            yield piece


def _spool(
    readers: Sequence[_Reader],
    vocabularies: Vocabularies,
    sampling: Sampling | None = None,
    stop: Callable[[], bool] = lambda: False,
    report: Report = lambda _: None,
) -> tuple[list[Store], dict[str, Counts]]:
    """Read data sets into temporary files; give a store for each, and what was
    dropped by name.
    """
    pad_id = vocabularies.source.pad_id, vocabularies.target.pad_id
    size = max(vocabularies.source.size, vocabularies.target.size)
    stores: list[Store] = []
    counts: dict[str, Counts] = {}
    for reader in readers:
        total = Counts()
        with Spool(pad_id, size) as spool:
            for piece in reader(sampling, report):
                spool.add(piece.pairs)
                total += piece.counts
                if stop():
                    break
            stores.append(spool.finish())
        counts[reader.name] = counts.get(reader.name, Counts()) + total
    return stores, counts


def _resample(
    readers: Sequence[_Reader],
    vocabularies: Vocabularies,
    sampling: Sampling,
    before: Mapping[str, Counts],
    epoch: int,
    stop: Callable[[], bool],
) -> Store:
    """Read everything once more, in the segmentation of an epoch; what ``stop``
    breaks off is of no use.
    """
    stores, counts = _spool(readers, vocabularies, sampling._replace(epoch=epoch), stop)
    if counts != before and not stop():
        raise InputError(
            "the text of data.train has changed since training began"
            f" ({summary(sum(counts.values(), Counts()))} of"
            f" {sum(count.read for count in counts.values()):,} pairs): put it back and"
            " give the same command again"
        )
    return Joined.of(stores)


def _check_directions(config: DataConfig, parts: Sequence[Part]) -> None:
    """Refuse what a model could not tell apart, and one text that is read in two
    directions as if it were one.
    """
    if not config.language_tags:
        for part in parts:
            if part.target_language != config.target_language:
                raise InputError(
                    f"{part.name} is to be translated into {part.target_language} and"
                    f" the run into {config.target_language}: set"
                    " data.language_tags=True for several languages"
                )
    directions: dict[str, tuple[str, str]] = {}
    for part in parts:
        direction = part.source_language, part.target_language
        first = directions.setdefault(part.name, direction)
        if part.name.startswith(("text:", "tsv:")) and first != direction:
            raise InputError(
                f"{part.name} is named in two directions, and its source is the same in"
                " both: name the source file or column of each direction first"
            )


def refuse_nothing(pairs: int, counts: Mapping[str, Counts]) -> None:
    """Refuse training text of which no pair is left.

    Raises:
        InputError: the line says what dropped them.
    """
    if not pairs:
        raise InputError(
            f"data.train: {why_nothing_is_left(sum(counts.values(), Counts()))}"
        )


def _folder(part: Part) -> Path:
    return Path(part.name.removeprefix(PREPARED).strip()).expanduser()
