"""The section ``decoding`` of a run's configuration."""

from __future__ import annotations

import dataclasses
import math

from jaxformer.errors import InputError


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
    # Sentences decoded together. It changes speed and memory, and results by rounding alone.
    batch_size: int = 64

    def __post_init__(self) -> None:
        """Check every value."""
        for name, least in (("beam_size", 1), ("max_extra_length", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if value < least:
                raise InputError(f"decoding.{name} must be at least {least}, not {value}")
        if not math.isfinite(self.alpha):
            raise InputError(f"decoding.alpha must be a finite number, not {self.alpha}; the paper has 0.6")
