"""Labels, numbers or places as the target vocabulary of a run.

The file ``target.labels.json`` says which: ``{"labels": ["neg", "pos"]}``,
``{"numbers": 1}`` (a target is one number) or ``{"places": 2}`` (where a span begins
and ends).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import LABELS, Vocabulary
from jaxformer.errors import InputError, did_you_mean
from jaxformer.files import parse_json

# More are no classes: a column of texts was taken for labels.
_MOST = 10_000
_NAMED = 12


@dataclass(frozen=True)
class LabelVocabulary(Vocabulary):
    """The labels of a text in the order of their ids, or numbers, or places.

    ``size`` is the number of outputs that a model needs. Labels have ids below it, and
    ``pad_id``, which is ``size``, is no label. Numbers are the bits of float32 as
    int32, places are themselves; both are padded with 0.

    Example:
        >>> labels = LabelVocabulary.from_labels(["neg", "pos"])
        >>> labels.encode("pos"), labels.size, labels.pad_id
        ([1], 2, 2)
        >>> LabelVocabulary.of_kind("scored").encode("1.0")
        [1065353216]
    """

    content: bytes = field(repr=False)
    """The content of the file."""
    labels: tuple[str, ...] = field(init=False, compare=False)
    """By id; none of numbers and places."""

    def __post_init__(self) -> None:
        ((what, value),) = parse_json(self.content).items()
        labels = tuple(map(str, value)) if what == "labels" else ()
        size = {"numbers": 1, "places": 2}.get(what, len(labels))
        pad_id = size if labels else 0
        for name in ("pad_id", "unk_id", "bos_id", "eos_id"):
            object.__setattr__(self, name, pad_id)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "labels", labels)

    def fits(self, kind: str) -> bool:
        """Whether these are targets of a kind of data."""
        sizes = {"scored": 1, "spans": 2}
        if self.labels:
            return kind not in sizes
        return self.size == sizes.get(kind)

    @classmethod
    def from_labels(cls, labels: Sequence[str]) -> LabelVocabulary:
        """Number labels in this order."""
        return cls(_write({"labels": [*labels]}))

    @classmethod
    def of_kind(cls, kind: str) -> LabelVocabulary:
        """Return the targets of scored text, or of spans."""
        return cls(_write({"numbers": 1} if kind == "scored" else {"places": 2}))

    @classmethod
    def collect(
        cls, kind: str, named: str | None, pairs: Iterable[Pair]
    ) -> LabelVocabulary:
        """Return the targets of a kind of data.

        Args:
            kind: of the data, one of :data:`jaxformer.data.config.WITH_LABELS`.
            named: the labels separated by commas; None: those of ``pairs``, sorted, as
                numbers where all are numbers.
            pairs: are read only for the labels of labelled and tagged text.

        Raises:
            InputError: fewer than two labels, or more than 10,000.
        """
        if kind in ("scored", "spans"):
            return cls.of_kind(kind)
        if named is not None:
            found = [label.strip() for label in named.split(",")]
            if "" in found or len({*found}) < max(2, len(found)):
                raise InputError(
                    f"data.labels={named!r} must name two labels or more, each once,"
                    " separated by commas"
                )
            return cls.from_labels(found)
        labels: set[str] = set()
        for pair in pairs:
            labels.update(
                split_words(pair.target) if kind == "tagged" else [pair.target]
            )
            if len(labels) > _MOST:
                raise InputError(
                    f"data.train has more than {_MOST:,} labels, which cannot be"
                    " classes: name the column of the labels last"
                )
        labels.discard("")
        if len(labels) < 2:
            some = f"only the label {labels.pop()!r}" if labels else "no labels"
            raise InputError(
                f"data.train has {some}: name text with two labels or more, or give"
                " data.labels"
            )
        numbers = all(label.isdecimal() for label in labels)
        return cls.from_labels(sorted(labels, key=int if numbers else str))

    def __reduce__(self) -> tuple[type[LabelVocabulary], tuple[bytes]]:
        return LabelVocabulary, (self.content,)

    @property
    def files(self) -> dict[str, bytes]:
        """The labels."""
        return {LABELS: self.content}

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {label: id_ for id_, label in enumerate(self.labels)}

    def id_of(self, label: str) -> int:
        """Return the id of a label.

        Raises:
            InputError: there is no such label; the nearest is named.
        """
        found = self._ids.get(label)
        if found is None:
            more = f" and {self.size - _NAMED} more" if self.size > _NAMED else ""
            raise InputError(
                f"no label {label!r}: the labels are"
                f" {', '.join(self.labels[:_NAMED])}{more}"
                f"{did_you_mean(label, self.labels)}"
            )
        return found

    def encode_batch(
        self, texts: Sequence[str], *, threads: int = -1
    ) -> list[list[int]]:
        """Return the id of each label, the bits of each number, or the places.

        Raises:
            InputError: an unknown label.
        """
        del threads
        if self.labels:
            return [[self.id_of(text)] for text in texts]
        if self.size == 1:
            bits = np.array([float(text) for text in texts], np.float32).view(np.int32)
            return [[bit] for bit in bits.tolist()]
        return [[int(place) for place in text.split()] for text in texts]

    def sample_batch(
        self, texts: Sequence[str], *, alpha: float, seed: int
    ) -> list[list[int]]:
        """Encode: labels have one form."""
        del alpha, seed
        return self.encode_batch(texts)

    @property
    def languages(self) -> dict[str, int]:
        """None."""
        return {}

    def decode(
        self, ids: Sequence[int] | NDArray[np.integer], *, lines: bool = False
    ) -> str:
        """Return the labels, numbers or places with blanks between them."""
        del lines
        return " ".join(self.pieces(ids))

    def _text(self, ids: list[int]) -> str:
        return self.decode(ids)

    def pieces(self, ids: Sequence[int] | NDArray[np.integer]) -> list[str]:
        """Return each label, number or place; nothing of an id that is no label."""
        if self.labels:
            return [self.labels[id_] for id_ in ids if 0 <= id_ < self.size]
        if self.size == 1:
            return [str(number) for number in np.array(ids, np.int32).view(np.float32)]
        return [str(int(place)) for place in ids]


def split_words(text: str) -> list[str]:
    """Split the words or the tags of tagged text: at each blank, at nothing else."""
    return text.split(" ")


def _write(record: dict[str, object]) -> bytes:
    return f"{json.dumps(record, ensure_ascii=False)}\n".encode()
