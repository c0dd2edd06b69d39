"""The programs that a server compiles before it is ready, and the choice of one for a
batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from jaxformer.translation.batch import Shape, power_of_two, round_width, rows_of_batch
from jaxformer.translation.models import Models
from jaxformer.translation.translator import Translator

MOST_ATTENDED = 64
"""Most tokens of either side of a pair whose attention is shown."""

MOST_REQUIRED = 8
"""Most required phrases of a sentence, and most tokens of each."""

MOST_READ = 256
"""Most tokens of either side of a pair that is scored, or whose words have
alternatives: a pass over it has a row of logits for each.
"""

_WIDTHS = (16, 32, 64, 128)
_SCORED = 4  # pairs of a batch, of one where they are longer than 64 tokens
_NEEDED = 64  # a server is ready when it can translate sentences of so many tokens


class SearchKind(NamedTuple):
    """A structure of a search: only these are compiled."""

    rich: bool
    """Whether it returns all hypotheses of the beam with alignments, and takes
    prefixes.
    """
    required: bool = False
    """Whether it takes required phrases; such a kind is rich too."""


PLAIN, RICH, TERMS = SearchKind(False), SearchKind(True), SearchKind(True, True)


class ServedProgram(NamedTuple):
    """What is compiled once."""

    use: SearchKind | str
    """A search, or ``attend``, ``candidates`` or ``score`` of pairs."""
    shape: Shape


class Programs:
    """All programs of a translator.

    Attributes:
        all: in the order in which they are compiled.
        needed: how many of them, the first, translate sentences of at most 64 tokens.
        rows: most sentences of a batch.
        longest: most tokens of a source that is searched at once.
        done: those that are compiled.
    """

    def __init__(
        self,
        translator: Translator,
        models: Models,
        kinds: Iterable[SearchKind],
        rows: int,
    ) -> None:
        """List them.

        Args:
            translator: of the run.
            models: that search.
            kinds: of searches; the first has the fewest options.
            rows: most sentences of a batch on each device.
        """
        decoding, codec = translator.decoding, translator.codec
        own = codec.longest if decoding.long_sources == "split" else codec.positions
        self.longest = min(decoding.max_source_length or own, codec.positions)
        widths = _widths(round_width(self.longest, codec.positions))
        counts, devices = _rows(translator, models, rows), models.devices
        most = decoding.tokens_per_batch * devices
        narrow, wide = {}, {}
        for kind in kinds:
            found = [
                ServedProgram(kind, _shape(translator, kind, count, width))
                for width in widths
                for count in (counts[:2] if kind.required else counts)
                if count == counts[0] or count * width <= most
            ]
            begin = sum(each.shape.width <= max(_NEEDED, widths[0]) for each in found)
            narrow[kind], wide[kind] = found[:begin], found[begin:]
        self.rows, self.needed = counts[-1], len(narrow[PLAIN])
        self.all = [*narrow[PLAIN], *narrow[RICH], *_of_pairs(codec.positions)]
        self.all += wide[PLAIN] + wide[RICH]
        self.all += narrow.get(TERMS, []) + wide.get(TERMS, [])
        self.done: set[ServedProgram] = set()

    def choose(self, use: SearchKind | str, count: int, width: int) -> ServedProgram:
        """Return the smallest program for a batch that is compiled, and the smallest of
        all if none is. A batch of more sentences than its rows is to be divided.

        Args:
            use: of the program.
            count: sentences or pairs.
            width: tokens of the longest.
        """
        own = [
            each for each in self.all if each.use == use and each.shape.width >= width
        ]
        found = [each for each in own if each in self.done] or own
        most = max(each.shape.rows for each in found)
        holding = [each for each in found if each.shape.rows >= min(count, most)]
        return min(holding, key=lambda each: each.shape.rows * each.shape.width)


def _widths(most: int) -> list[int]:
    """Return the tokens of sentences, padding included, ascending."""
    return [*(width for width in _WIDTHS if width < most), most]


def _rows(translator: Translator, models: Models, most: int) -> list[int]:
    """Return the rows of batches, ascending: 1, 4, 16 and so on for each device."""
    decoding, devices = translator.decoding, models.devices
    beam = 1 if decoding.sample else decoding.beam_size
    counts = [4**power for power in range(7) if 4**power < most] + [most]
    return sorted({rows_of_batch(count * devices, beam, models) for count in counts})


def _shape(translator: Translator, kind: SearchKind, rows: int, width: int) -> Shape:
    """Return the shape of a search, with room for all that its kind may ask for."""
    codec, listed = translator.codec, translator.shortlist
    length = min(width + translator.decoding.max_extra_length, codec.positions)
    room = length if kind.rich else len(codec.frame.target_before)
    size = None
    if listed is not None:  # the most tokens that so many sentences may need
        own = listed.best.shape[1] * width + room + MOST_REQUIRED**2
        special = len(listed.first) + len(listed.special) + 3
        size = power_of_two(special + rows * own)
    return Shape(
        rows,
        width,
        prefixes=(1, room) if room else None,
        required=(MOST_REQUIRED, MOST_REQUIRED) if kind.required else None,
        listed=size,
        aligned=tuple(sorted({min(2 * width, length), length})) * kind.rich,
    )


def _of_pairs(positions: int) -> list[ServedProgram]:
    """Return the programs of given pairs: one forward pass each."""
    shown = _widths(min(MOST_ATTENDED, positions))
    whole = _widths(min(MOST_READ, positions))
    scored = [(_SCORED if width <= _NEEDED else 1, width) for width in whole]
    return [
        *(ServedProgram("attend", Shape(1, width)) for width in shown),
        *(ServedProgram("candidates", Shape(1, width)) for width in whole),
        *(ServedProgram("score", Shape(*sizes)) for sizes in scored),
    ]
