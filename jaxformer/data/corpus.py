"""Training text by name: open it, encode it, load it for training."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data import sources
from jaxformer.data.cleaning import (
    Counts,
    find_duplicates,
    is_empty,
    summary,
    why_nothing_is_left,
)
from jaxformer.data.config import DataConfig
from jaxformer.data.duplicates import Duplicates
from jaxformer.data.encoding import (
    CHUNK,
    SubwordSampling,
    Tokenizer,
    keep,
    map_chunks,
    tokenize,
)
from jaxformer.data.files import check_regular
from jaxformer.data.frame import make_frame
from jaxformer.data.language_codes import same_language
from jaxformer.data.mixing import Part, Share, level, parse
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.prepared import Manifest, Report
from jaxformer.data.records import Pair
from jaxformer.data.sources import Corpus
from jaxformer.data.store import Encoded, TokenWriter
from jaxformer.data.text_pairs import draw_pairs, find_pairs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_training import check_normalization, load_or_train
from jaxformer.data.windows import cut_epoch, cut_windows
from jaxformer.errors import InputError

PREPARED = "prepared:"
NEEDS_TEXT = (
    "data.segmentation_alpha needs the text in each epoch, and a prepared folder has no"
    " text: train from the text, or set data.segmentation_alpha=None"
)
_REPORT_EVERY = 500_000


class Preparation(NamedTuple):
    """What encoding the training text read and dropped."""

    counts: dict[str, Counts]
    """What was read and dropped, by data set."""
    lengths: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Entry n is the number of source (target) sentences of n tokens, including those
    that are too long.
    """


@dataclass(frozen=True)
class TrainingText:
    """What ``data.train`` names: data sets of raw text, or prepared folders."""

    config: DataConfig
    parts: tuple[Part, ...]
    corpora: tuple[Corpus, ...]
    """The raw text of each part; none of prepared folders."""
    _duplicates: list[Duplicates | None] = field(default_factory=list, init=False)

    @classmethod
    def open(cls, config: DataConfig) -> TrainingText:
        """Find what the configuration names, and check text files.

        Raises:
            InputError: a name is wrong, text is mixed with prepared folders, or
                :func:`check_text` finds a fault.
        """
        parts = parse(config.train, *config.languages)
        prepared = [part.name.startswith(PREPARED) for part in parts]
        if any(prepared) and not all(prepared):
            raise InputError(
                f"data.train={config.train!r} mixes text with prepared folders: prepare"
                " the text too, in another folder, with the vocabulary of the others"
            )
        if any(prepared) and config.segmentation_alpha is not None:
            raise InputError(NEEDS_TEXT)
        _check_directions(config, parts)
        if config.temperature != 1.0 and any(part.weight != 1.0 for part in parts):
            raise InputError(
                f"data.temperature={config.temperature} and the weights of"
                f" data.train={config.train!r} both set how often pairs occur: remove"
                " one of them"
            )
        corpora = () if any(prepared) else map(partial(_load, config), parts)
        return cls(config, parts, tuple(corpora))

    def kept(self, *, report: Report = lambda _: None) -> Corpus:
        """Return the text of all parts that cleaning keeps, one after another."""
        return Corpus(self.config.train, partial(self._read_kept, report))

    def _read_kept(self, report: Report) -> Iterator[Pair]:
        counts = {}
        for part, corpus, duplicates in self._parts(report):
            options = {"languages": part.languages, "duplicates": duplicates}
            clean = partial(keep, config=self.config, **options)
            counts[part] = Counts()
            for pairs, found in map_chunks(corpus, clean, clean, self.config.workers):
                yield from pairs
                counts[part] += found
                self._report(part, counts[part], found, report)
        if counts:
            check_not_empty(counts)

    def _parts(
        self, report: Report
    ) -> Iterator[tuple[Part, Corpus, Duplicates | None]]:
        """Yield each part and which of its pairs repeat earlier ones."""
        # Prepared folders have no corpora.
        parts = zip(self.parts, self.corpora, strict=False)
        for index, (part, corpus) in enumerate(parts):
            if index == len(self._duplicates):
                if self.config.drop_duplicates:
                    report(f"{part.name}: searching for duplicates")
                self._duplicates.append(find_duplicates(corpus, self.config))
            yield part, corpus, self._duplicates[index]

    def _report(self, part: Part, total: Counts, last: Counts, report: Report) -> None:
        """Report every 500,000 pairs."""
        if total.read // _REPORT_EVERY > (total.read - last.read) // _REPORT_EVERY:
            report(f"{part.name}: {total.read:,} {self.config.examples} read")

    @property
    def languages(self) -> list[str]:
        """The target languages, sorted."""
        return sorted({part.languages[1] for part in self.parts})

    def vocabularies(
        self, directory: Path, *, report: Report = lambda _: None
    ) -> Vocabularies:
        """Load the vocabularies of a run or of the prepared folders, or train them.

        Raises:
            InputError: they do not fit the configuration, or prepared folders disagree.
        """
        if self.corpora:
            tags = self.languages if self.config.language_tags else ()
            if not Vocabularies.exist(directory):
                check_normalization(self.config.normalization)
                report(f"training the vocabulary on {self.config.train}")
            return load_or_train(
                directory, self.config, self.kept(report=report), tags=tags
            )
        manifests = [Manifest.load(prepared_folder(part)) for part in self.parts]
        for manifest in manifests:
            manifest.check_request(self.config)
        if len({manifest.vocabulary for manifest in manifests}) > 1:
            raise InputError(
                f"the prepared folders of data.train={self.config.train!r} have"
                " different vocabularies: prepare them with one, using jaxformer"
                " prepare --vocabulary"
            )
        return manifests[0].read_vocabularies()

    def load(
        self, vocabularies: Vocabularies, *, seed: int, report: Report = lambda _: None
    ) -> TrainingData:
        """Read everything and choose the shapes of the batches.

        Raises:
            InputError: the text cannot be read, no pair is left, or a prepared folder
                does not fit.
        """
        resample = cut = None
        config, text = self.config, vocabularies.source
        if not self.corpora:
            store, sizes, counts = self._load_prepared(vocabularies)
        else:
            tokenizers = self.tokenizers(vocabularies, report=report)
            with TokenWriter(vocabularies, one_sided=config.one_sided) as writer:
                sizes, (counts, _) = self.encode(tokenizers, writer, report=report)
                store = writer.finish()
            if config.segmentation_alpha is not None:
                resample = partial(self._resample, tokenizers, counts, seed, store)
        check_not_empty(counts)
        if config.window is not None:
            cut = partial(cut_epoch, store, sizes, config.window, seed)
            store, sizes = cut_windows(store, sizes, config.window)
        elif config.kind == "documents":
            frame = make_frame(vocabularies, ("", ""))
            texts = find_pairs(store, sizes, frame, config.max_length)
            cut = partial(draw_pairs, texts, seed)
            store, sizes = texts.true_pairs, texts.sizes
        if cut is not None:  # which takes no time
            resample = lambda epoch, _: cut(epoch)  # noqa: E731
        return TrainingData.from_pairs(
            *(store, config),
            seed=seed,
            shares=self._shares(sizes),
            counts=counts,
            resample=resample,
            continuing=text.continuing if config.whole_words else None,
        )

    def _resample(
        self,
        tokenizers: Sequence[Tokenizer],
        counts: Mapping[str, Counts],
        seed: int,
        best: Encoded,
        epoch: int,
        stop: Callable[[], bool],
    ) -> Encoded:
        """Encode everything again, in the segmentation of an epoch."""
        alpha = self.config.segmentation_alpha
        assert alpha is not None
        # Shapes of batches are those of the best segmentation: no drawn one may be
        # longer than its longest.
        longest = int(best.source_lengths.max()), int(best.target_lengths.max())
        sampling = SubwordSampling(alpha, seed, epoch, longest)
        drawn = [dataclasses.replace(one, sampling=sampling) for one in tokenizers]
        with TokenWriter(tokenizers[0].vocabularies) as writer:
            _, (found, _) = self.encode(drawn, writer, stop=stop)
            if found != counts and not stop():
                total = sum(found.values(), Counts())
                raise InputError(
                    "the text of data.train has changed since training began"
                    f" ({summary(total)} of {total.read:,} pairs): put it back and"
                    " give the same command again"
                )
            return writer.finish()

    def tokenizers(
        self, vocabularies: Vocabularies, *, report: Report = lambda _: None
    ) -> list[Tokenizer]:
        """Return the tokenizer of each part; reads the text to find duplicates."""
        return [
            Tokenizer(vocabularies, self.config, part.languages, duplicates)
            for part, _, duplicates in self._parts(report)
        ]

    def encode(
        self,
        tokenizers: Sequence[Tokenizer],
        writer: TokenWriter,
        *,
        stop: Callable[[], bool] = lambda: False,
        report: Report = lambda _: None,
    ) -> tuple[list[int], Preparation]:
        """Clean and encode all parts in order; return how many pairs of each are kept.

        Args:
            tokenizers: of the parts.
            writer: gets the pairs.
            stop: returns whether to stop early.
            report: gets a line every 500,000 pairs.
        """
        sizes, counts = [], {}
        lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for part, corpus, tokenizer in zip(
            self.parts, self.corpora, tokenizers, strict=True
        ):
            total, size = Counts(), 0
            for piece in tokenize(corpus, tokenizer, workers=self.config.workers):
                writer.add(piece.pairs)
                size += len(piece.pairs)
                total += piece.counts
                source, target = map(_add, lengths, piece.lengths)
                lengths = source, target
                self._report(part, total, piece.counts, report)
                if stop():
                    break
            sizes.append(size)
            counts[part.name] = counts.get(part.name, Counts()) + total
        return sizes, Preparation(counts, lengths)

    def _load_prepared(
        self, vocabularies: Vocabularies
    ) -> tuple[Encoded, list[int], dict[str, Counts]]:
        """Map the one folder. Copy the pairs of several, or those within a lower
        ``max_length``, to temporary files.
        """
        sizes, counts = [], {}
        config = self.config
        with TokenWriter(vocabularies, one_sided=config.one_sided) as writer:
            for part in self.parts:
                manifest = Manifest.load(prepared_folder(part))
                manifest.check_request(config)
                pairs = manifest.open_pairs(vocabularies)
                kept = np.arange(len(pairs))
                count = sum(manifest.counts.values(), Counts())
                if not config.divides_later:
                    longer = np.maximum(pairs.source_lengths, pairs.target_lengths)
                    kept = np.flatnonzero(longer <= config.max_length)
                    too_long = count.dropped.get("max_length", 0)
                    count.dropped["max_length"] = too_long + len(pairs) - len(kept)
                counts[part.name] = counts.get(part.name, Counts()) + count
                sizes.append(len(kept))
                if len(self.parts) == 1 and len(kept) == len(pairs):
                    return pairs, sizes, counts
                for start in range(0, len(kept), CHUNK):
                    writer.add(pairs.take(kept[start : start + CHUNK]))
            return writer.finish(), sizes, counts

    def _shares(self, sizes: Sequence[int]) -> list[Share]:
        weights = [part.weight for part in self.parts]
        if self.config.temperature != 1.0:
            weights = level(sizes, self.config.temperature)
        stops = itertools.accumulate(sizes)
        return [
            Share(part.name, stop - size, stop, weight)
            for part, size, stop, weight in zip(
                self.parts, sizes, stops, weights, strict=True
            )
        ]


def _add(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add histograms of different lengths."""
    total = np.zeros(max(len(one), len(other)), np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def check_not_empty(counts: Mapping[str, Counts]) -> None:
    """Refuse training text of which no pair is left.

    Raises:
        InputError: the line names the steps that dropped the pairs.
    """
    total = sum(counts.values(), Counts())
    if not total.kept:
        raise InputError(f"data.train: {why_nothing_is_left(total)}")


def _check_directions(config: DataConfig, parts: Sequence[Part]) -> None:
    """Refuse a target language that needs a tag, and one text in two directions."""
    directions: dict[str, tuple[str, str]] = {}
    for part in parts:
        target = part.languages[1]
        if not config.language_tags and not same_language(
            target, config.target_language
        ):
            raise InputError(
                f"{part.name} is translated into {target} and the run into"
                f" {config.target_language}: set data.language_tags=True for several"
                " languages"
            )
        first = directions.setdefault(part.name, part.languages)
        if part.name.startswith(("text:", "tsv:")) and first != part.languages:
            raise InputError(
                f"{part.name} is named in two directions with the same source: name the"
                " source file or column of each direction first"
            )


def _load(config: DataConfig, part: Part) -> Corpus:
    corpus = sources.load(
        part.name, *part.languages, config.kind, drop_invalid=config.drop_invalid
    )
    check_regular(corpus.files)
    check_text(corpus, config.kind)
    return corpus


def check_text(corpus: Corpus, kind: str) -> None:
    """Read the lines of what ``text:`` names once, to find sides of different lengths
    before anything is trained.

    Raises:
        InputError: the line has both files and their numbers of lines.
    """
    if kind == "pairs" and corpus.name.startswith("text:"):
        for _ in corpus.read(strict=False):
            pass


def prepared_folder(part: Part) -> Path:
    """Return the folder that a part ``prepared:FOLDER`` names."""
    return Path(part.name.removeprefix(PREPARED).strip()).expanduser()


def load_evaluation(
    name: str, config: DataConfig
) -> tuple[list[Pair], tuple[str, str]]:
    """Read a data set for evaluation; return its pairs and its languages.

    Args:
        name: one data set, followed by its languages where they are not those of
            ``config``.
        config: of the run.

    Raises:
        InputError: it cannot be read, has no pair, or is not one set of raw text.
    """
    corpus, languages = open_evaluation(name, config)
    pairs = list(corpus)
    if config.kind != "pairs":
        pairs = [pair for pair in pairs if not is_empty(pair)]
    check_evaluation(corpus.name, pairs)
    return pairs, languages


def check_evaluation(name: str, pairs: Sequence[Pair]) -> int:
    """Return how many pairs of a data set have an empty side.

    Raises:
        InputError: all of them, or there are none.
    """
    empty = sum(map(is_empty, pairs))
    if empty == len(pairs):
        raise InputError(
            f"{name} has no pair with text on both sides: name another data set"
        )
    return empty


def open_evaluation(name: str, config: DataConfig) -> tuple[Corpus, tuple[str, str]]:
    """Find a data set for evaluation without reading it; return its languages too.

    Raises:
        InputError: it does not exist, or is not one set of raw text.
    """
    part, *others = parse(name, *config.languages)
    _check_directions(config, [part])
    if others or part.weight != 1.0 or part.name.startswith(PREPARED):
        raise InputError(
            f"{name!r} is not for evaluation: name one data set of raw text, without a"
            " weight (mixtures and prepared folders are for data.train)"
        )
    return sources.load(part.name, *part.languages, config.kind), part.languages


def name_sources(name: str, config: DataConfig) -> str:
    """Return what an error calls the text of the sources: their file, or the data set
    if there are several.

    Raises:
        InputError: as :func:`open_evaluation`.
    """
    corpus, _ = open_evaluation(name, config)
    sides = 1 + (config.kind == "pairs" and corpus.name.startswith("text:"))
    return str(corpus.files[0]) if len(corpus.files) == sides else corpus.name
