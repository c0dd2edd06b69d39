"""A little model of 16 positions behind a server, and what is asked of it."""

from __future__ import annotations

import numpy as np

import runs
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.programs import RICH
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator

POSITIONS, EXTRA = 16, 4


def translator(**changes) -> Translator:
    sizes = {"max_length": POSITIONS, "max_extra_length": EXTRA, "beam_size": 2}
    return runs.translator(**{**sizes, **changes})


def texts(count: int) -> list[str]:
    return runs.sentences(count, longest=POSITIONS - 4)


def search(
    engine: TranslationEngine, kind: str, sources: list[str], **asked: list
) -> list[list[Hypothesis]]:
    """Search sentences together and return each one's translations."""
    parts = [
        engine.encode(
            source,
            place=place,
            **({"aligned": None} if kind == RICH else {})
            | {name: values[place] for name, values in asked.items()},
        )
        for place, source in enumerate(sources)
    ]
    found = iter(engine.search(kind, [each for own in parts for each in own])[0])
    return [engine.join(own, [next(found) for _ in own]) for own in parts]


def assert_same(
    found: list[list[Hypothesis]], expected: list[list[Hypothesis]]
) -> None:
    """Compare texts, and scores to the rounding of other shapes."""
    for own, others in zip(found, expected, strict=True):
        assert [each.text for each in own] == [each.text for each in others]
        assert [each.tokens for each in own] == [each.tokens for each in others]
        scores = [each.score for each in own], [each.score for each in others]
        np.testing.assert_allclose(*scores, rtol=1e-4)
