"""Mixtures: several data sets in one string, and how often their pairs occur in an
epoch.

A mixture joins names by `` + ``. A name may have a weight before it and its languages
after it::

    text:wmt.en,wmt.de + 2.5 * bundled:en-de/train
    text:a.en,a.de [en>de] + text:a.de,a.en [de>en] + tsv:b.tsv [en>fr]

A pair of weight 2.5 occurs twice in each epoch, and in half of the epochs a third time.
Instead of weights a temperature may level the sizes (Arivazhagan et al. 2019, section
4.2).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.sources import SCHEMES
from jaxformer.errors import InputError

_KINDS = f"({'|'.join(SCHEMES)})"
# Separates this generator from those of the order of pairs and batches.
_STREAM = 1

MOST_WEIGHT = 1_000_000
"""Most occurrences of a pair in an epoch."""


class Part(NamedTuple):
    """One data set of a mixture."""

    name: str
    weight: float
    languages: tuple[str, str]
    """Codes of source and target."""


class Share(NamedTuple):
    """The pairs ``start`` to ``stop``, and how often each occurs in an epoch."""

    name: str
    start: int
    stop: int
    weight: float


def parse(mixture: str, source_language: str, target_language: str) -> tuple[Part, ...]:
    """Parse a mixture; a plain name is a mixture of one.

    Args:
        mixture: as the module describes it.
        source_language: of the parts that do not name theirs.
        target_language: of the parts that do not name theirs.

    Example:
        >>> tuple(parse("2 * text:a.en,a.fr [en>fr]", "en", "de")[0])
        ('text:a.en,a.fr', 2.0, ('en', 'fr'))

    Raises:
        InputError: a part has no name, its weight is not positive, or its languages are
            not two.
    """
    parts = re.split(r"(?<!\S)\+(?!\S)", mixture)
    languages = source_language, target_language
    if bare := [x for x in parts[1:] if x.strip() and not re.search(f"{_KINDS}:", x)]:
        raise InputError(
            f"{bare[0].strip()!r} of {mixture!r} is no data set: write SCHEME:NAME, and"
            r" \+ for a plus between blanks in a path"
        )
    return tuple(_part(text.strip(), mixture, languages) for text in parts)


def _part(text: str, mixture: str, languages: tuple[str, str]) -> Part:
    found = re.fullmatch(
        r"(?:(?P<weight>[-+.\w]+)\s+\*\s+)?(?P<name>.*?)(?:\s+\[(?P<languages>[^\]]*)\])?",
        text,
    )
    if not (found and found["name"]):
        raise InputError(
            f"{mixture!r} has a part without a name: write [WEIGHT * ]NAME["
            " [SOURCE>TARGET]] + ..."
        )
    if re.search(
        rf"\A[\d.]+\*|\*(?={_KINDS}:)|\+(?=([\d.]+\s*\*\s*)?{_KINDS}:)", found["name"]
    ):
        raise InputError(
            f"{text!r} needs blanks around its * and +: WEIGHT * NAME + NAME"
        )
    weight = 1.0
    if found["weight"]:
        try:
            weight = float(found["weight"])
        except ValueError:
            weight = math.nan
        if not 0.0 < weight <= MOST_WEIGHT:
            most = f"; the most is {MOST_WEIGHT:,}" if weight > MOST_WEIGHT else ""
            raise InputError(
                f"the weight of {found['name']} must be a number above 0, not"
                f" {found['weight']}{most}"
            )
    if found["languages"] is not None:
        source, _, target = map(str.strip, found["languages"].partition(">"))
        if not source or not target or source == target:
            raise InputError(
                f"[{found['languages']}] of {found['name']} must name two languages,"
                " for example [en>de]"
            )
        languages = source, target
    return Part(found["name"], weight, languages)


def level(sizes: Sequence[int], temperature: float) -> list[float]:
    r"""Return the weights that draw from data sets of these sizes in proportion to
    :math:`n^{1/T}`.

    The largest has weight 1, smaller ones more: T = 1 keeps the sizes, T = 100 makes
    them nearly equal (Arivazhagan et al. 2019, section 4.2).
    """
    largest = max(sizes)
    return [
        (largest / size) ** (1.0 - 1.0 / temperature) if size else 1.0 for size in sizes
    ]


def choose_pairs(
    shares: Sequence[Share], *, seed: int, epoch: int
) -> NDArray[np.int32]:
    """Return the numbers of the pairs of an epoch, not yet shuffled: each
    ``floor(weight)`` or ``ceil(weight)`` times.

    Which pairs occur once more is drawn in each epoch, from the seed and the epoch. The
    fraction of a pair that an epoch leaves over goes to the next: in E epochs, n pairs
    occur ``round(weight * n * E)`` times.
    """
    chosen = []
    for number, share in enumerate(shares):
        pairs = np.arange(share.start, share.stop, dtype=np.int32)
        often = math.floor(share.weight)
        chosen += [pairs] * often
        rest = (share.weight - often) * len(pairs)
        more = round(rest * (epoch + 1)) - round(rest * epoch)
        if more:
            generator = np.random.default_rng([seed, epoch, _STREAM, number])
            chosen.append(np.sort(generator.choice(pairs, more, replace=False)))
    return np.concatenate([np.zeros(0, np.int32), *chosen])
