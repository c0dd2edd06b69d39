"""The section ``decoding`` of a run's configuration."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any, Literal

from jaxformer.errors import InputError

Precision = Literal["model", "float32", "bfloat16", "int8"]
"""Names of the numbers that a model is decoded in."""

PRECISIONS: tuple[Precision, ...] = ("model", "float32", "bfloat16", "int8")

LongSources = Literal["refuse", "split"]
"""What becomes of sentences that are too long to translate."""

LengthPenalty = Literal["gnmt", "average", "none"]
"""Names of length penalties."""

LENGTH_PENALTIES: tuple[LengthPenalty, ...] = ("gnmt", "average", "none")

LEAST = {
    "beam_size": 1,
    "coverage_penalty": 0,
    "diversity_groups": 1,
    "diversity_strength": 0,
    "max_extra_length": 0,
    "max_target_length": 1,
    "min_length": 0,
    "min_length_ratio": 0,
    "no_repeat_ngram": 0,
    "max_source_length": 8,
    "batch_size": 1,
    "tokens_per_batch": 1,
    "temperature": 0,
    "top_k": 0,
    "seed": 0,
}
"""Least values of numbers; None, where it is allowed, is none."""

WHOLE = (
    *(
        "beam_size",
        "diversity_groups",
        "max_extra_length",
        "max_target_length",
        "min_length",
        "no_repeat_ngram",
    ),
    *("max_source_length", "batch_size", "tokens_per_batch", "top_k", "seed"),
)
"""Settings that count something."""

MOST_COUNTED, MOST_MEASURED, STEEPEST_ALPHA = 10**9, 10**4, 10
"""Greatest values of what is counted, of what is measured and of a length penalty's
strength: beyond them numbers of 32 bits, which a search computes with, overflow.
"""

MOST_BEAM = 10_000
"""Most hypotheses of a sentence: of a beam, and samples."""

OFF = {"top_p": 1, "min_p": 0, "epsilon": 0}
"""Where a truncation of sampling cuts nothing off."""

LONG_SOURCES: tuple[LongSources, ...] = ("refuse", "split")

SAME_RESULTS = (
    "batch_size",
    "tokens_per_batch",
    "max_source_length",
    "long_sources",
    "seed",
)
"""What of a search changes no result but by rounding, or only those of sources that
are longer than training saw.
"""


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a trained model translates; the defaults are the paper's (Vaswani et al.
    2017, section 6.1).

    Raises:
        InputError: a value out of range.
    """

    # Hypotheses that beam search keeps alive in each sentence; 1 follows the most
    # probable token alone.
    beam_size: int = 4
    # What divides the log-probability of a hypothesis of n tokens: "gnmt", ((5 + n) /
    # 6)^alpha; "average", n^alpha; or "none".
    length_penalty: LengthPenalty = "gnmt"
    # Strength of the length penalty: 0 compares plain log-probabilities, more favours
    # long output.
    alpha: float = 0.6
    # Strength of what a hypothesis loses for source tokens that it has not attended to:
    # beta of the coverage penalty of GNMT. It changes the scores of hypotheses; 0: off.
    coverage_penalty: float = 0.0
    # Groups that the beam is divided into, for n_best translations that differ: each
    # avoids the tokens that those before it chose at the same place. They divide
    # beam_size; 1: none. The strength is what a token loses, as a natural logarithm,
    # for each hypothesis that chose it; scores stay as they are.
    diversity_groups: int = 1
    diversity_strength: float = 0.5
    # A translation has at most the tokens of its source and this many more, its
    # end-of-sentence token included.
    max_extra_length: int = 50
    # Nor has it more tokens than this, or more than this many times those of its
    # source. Default None: no such limit.
    max_target_length: int | None = None
    max_length_ratio: float | None = None
    # Least tokens of a translation, its end-of-sentence token included, and least in
    # parts of the source's; a shorter limit goes before them.
    min_length: int = 1
    min_length_ratio: float = 0.0
    # No so many tokens come twice in the same order; 0: they may.
    no_repeat_ngram: int = 0
    # Multiplies the log-probabilities of tokens that came before: above 1 they come
    # less often. It changes the scores of hypotheses, and not their log-probabilities,
    # which stay the model's.
    repetition_penalty: float = 1.0
    # Whether the unknown token is never written.
    no_unknown: bool = False
    # Most tokens of a source that is translated at once, with those added to it.
    # Default None: as many as training saw (data.max_length), or where that is not
    # known, as the model has positions.
    max_source_length: int | None = None
    # What becomes of longer ones. "split" (default): they are cut at the ends of their
    # sentences, and sentences that are still too long between clauses or words; all
    # parts are translated and joined. "refuse": an error, before anything is
    # translated. Without max_source_length only what the model has no positions for is
    # refused; other sources that are longer than training saw are translated whole,
    # with a warning: much of their text may be missing.
    long_sources: LongSources = "split"
    # Sentences that a device decodes together. It changes speed and memory, and results
    # by rounding alone.
    batch_size: int = 64
    # The numbers of weights and products: "model" (default), those of model.dtype; or
    # "float32", "bfloat16" or "int8", weights and products in 8 bits.
    precision: Precision = "model"
    # Source tokens that a device decodes together, padding counted: batches of
    # sentences too long for it have fewer of them, one at least, so that memory is
    # bounded. The default leaves batches of 64 whole up to 128 tokens a sentence.
    tokens_per_batch: int = 8192
    # Draw translations at random instead of searching for the best.
    sample: bool = False
    # Below 1 the probable becomes more probable; 0 draws the most probable token
    # always.
    temperature: float = 1.0
    # What is drawn from, each on what the one before has left: the so many most
    # probable tokens (0: all), those that have so much probability together (1: all),
    # those with so great a part of the most probable one's (0: all), and those with so
    # much probability (0: all).
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    epsilon: float = 0.0
    # Of the drawing: the same seed draws the same translations of the same sentences.
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not least <= value:
                raise InputError(
                    f"decoding.{name} must be at least {least}, not {value}"
                )
            most = (
                MOST_BEAM
                if name == "beam_size"
                else MOST_COUNTED
                if name in WHOLE
                else MOST_MEASURED
            )
            if value > most and name != "seed":
                raise InputError(
                    f"decoding.{name} must be at most {most:,}, not {value}"
                )
            if name in WHOLE and not isinstance(value, numbers.Integral):
                raise InputError(f"decoding.{name} must be a whole number, not {value}")
        if (
            self.max_target_length is not None
            and self.min_length > self.max_target_length
        ):
            raise InputError(
                f"decoding.min_length {self.min_length} is above"
                f" decoding.max_target_length {self.max_target_length}: lower the one"
                " or raise the other"
            )
        for name in ("top_p", "min_p", "epsilon"):
            value = getattr(self, name)
            if not 0 <= value <= 1 or (name == "top_p" and value == 0):
                raise InputError(
                    f"decoding.{name} must be a probability, not {value}; {OFF[name]}"
                    " cuts nothing off"
                )
        for name in ("repetition_penalty", "max_length_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= MOST_MEASURED:
                raise InputError(
                    f"decoding.{name} must be above 0 and at most {MOST_MEASURED:,},"
                    f" not {value}"
                )
        if self.beam_size % self.diversity_groups:
            raise InputError(
                "decoding.diversity_groups must divide decoding.beam_size"
                f" {self.beam_size}, and {self.diversity_groups} does not: the groups"
                " have equal parts of the beam"
            )
        if self.sample and self.diversity_groups > 1:
            raise InputError(
                "decoding.diversity_groups must be 1 where decoding.sample is True,"
                f" not {self.diversity_groups}: samples differ by themselves"
            )
        if self.seed >= 2**32:
            raise InputError(f"decoding.seed must be below 2**32, not {self.seed}")
        if self.long_sources not in LONG_SOURCES:
            raise InputError(
                f"decoding.long_sources must be {' or '.join(LONG_SOURCES)}, not"
                f" {self.long_sources!r}"
            )
        if self.length_penalty not in LENGTH_PENALTIES:
            names = " or ".join(LENGTH_PENALTIES)
            raise InputError(
                f"decoding.length_penalty must be {names}, not {self.length_penalty!r}"
            )
        if self.precision not in PRECISIONS:
            raise InputError(
                f"decoding.precision must be {' or '.join(PRECISIONS)}, not"
                f" {self.precision!r}"
            )
        if not abs(self.alpha) <= STEEPEST_ALPHA:
            raise InputError(
                f"decoding.alpha must be from -{STEEPEST_ALPHA} to {STEEPEST_ALPHA},"
                f" not {self.alpha}; the paper has 0.6"
            )


def differing_settings(
    record: Mapping[str, Any], **expected: Any
) -> dict[str, tuple[Any, Any]]:
    """Find what of a recorded search changes results and is not as expected.

    Args:
        record: ``decoding`` of an entry of ``results.json``; keys that no
            :class:`DecodingConfig` has are passed over.
        **expected: settings that are not to be the defaults.

    Returns:
        For each key that differs what it is, and what was expected.
    """
    wanted = {**dataclasses.asdict(DecodingConfig()), "shortlist": False, **expected}
    return {
        key: (value, wanted[key])
        for key, value in record.items()
        if key in wanted and key not in SAME_RESULTS and value != wanted[key]
    }
