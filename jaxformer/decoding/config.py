"""The section ``decoding`` of a run's configuration."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

from jaxformer.errors import InputError

LongSources = Literal["refuse", "split"]
"""What becomes of sentences that are too long to translate."""

LONG_SOURCES: tuple[LongSources, ...] = ("refuse", "split")


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a trained model translates; the defaults are the paper's (Vaswani et al. 2017, section 6.1).

    Raises:
        InputError: a value out of range.
    """

    # Hypotheses that beam search keeps alive in each sentence; 1 follows the most probable token alone.
    beam_size: int = 4
    # Strength of the length penalty ((5 + n) / 6)^alpha: 0 compares plain log-probabilities, more favours long output.
    alpha: float = 0.6
    # A translation has at most the tokens of its source and this many more, its end-of-sentence token included.
    max_extra_length: int = 50
    # Most tokens of a source sentence, with those added to it. Default None: the positions of the model. A model
    # translates badly what is much longer than the sentences it was trained on (data.max_length).
    max_source_length: int | None = None
    # What becomes of longer ones. "refuse" (default): an error, before anything is translated. "split": they are cut
    # between sentences or words, translated in parts, and the parts put together. Nothing is ever left out.
    long_sources: LongSources = "refuse"
    # Sentences decoded together. It changes speed and memory, and results by rounding alone.
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Check every value."""
        for name, least in (("beam_size", 1), ("max_extra_length", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"decoding.{name} must be at least {least}, not {value}")
        if self.max_source_length is not None and self.max_source_length < 8:
            raise InputError(f"decoding.max_source_length must be at least 8, not {self.max_source_length}")
        if self.long_sources not in LONG_SOURCES:
            raise InputError(f"decoding.long_sources must be {' or '.join(LONG_SOURCES)}, not {self.long_sources!r}")
        if not math.isfinite(self.alpha):
            raise InputError(f"decoding.alpha must be a finite number, not {self.alpha}; the paper has 0.6")
