"""The section ``decoding`` of a run's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from jaxformer.errors import InputError, check_keys, key

Precision = Literal["model", "float32", "bfloat16", "int8"]
"""Names of the numbers that a model is decoded in."""

PRECISIONS: tuple[Precision, ...] = ("model", "float32", "bfloat16", "int8")

LongSources = Literal["refuse", "split"]
"""What becomes of sentences that are too long to translate."""

LengthPenalty = Literal["gnmt", "average", "none"]
"""Names of length penalties."""

LENGTH_PENALTIES: tuple[LengthPenalty, ...] = ("gnmt", "average", "none")

MOST_COUNTED, MOST_MEASURED, STEEPEST_ALPHA = 10**9, 10**4, 10
"""Greatest counts, measures and strength of the length penalty: beyond them the 32-bit
numbers of a search overflow.
"""

MOST_BEAM = 10_000
"""Most hypotheses of a sentence: of a beam, and samples."""

LONG_SOURCES: tuple[LongSources, ...] = ("refuse", "split")


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a trained model translates; the defaults are the paper's (Vaswani et al.
    2017, section 6.1).

    Raises:
        InputError: a value out of range.
    """

    # Hypotheses that beam search keeps alive in each sentence; 1 follows the most
    # probable token alone.
    beam_size: int = key(4, least=1, most=MOST_BEAM)
    # What divides the log-probability of a hypothesis of n tokens: "gnmt", ((5 + n) /
    # 6)^alpha; "average", n^alpha; or "none".
    length_penalty: LengthPenalty = key("gnmt", choices=LENGTH_PENALTIES)
    # Strength of the length penalty: 0 compares plain log-probabilities, more favours
    # long output.
    alpha: float = key(0.6, least=-STEEPEST_ALPHA, most=STEEPEST_ALPHA)
    # Strength of what a hypothesis loses for source tokens that it has not attended to:
    # beta of the coverage penalty of GNMT. It changes the scores of hypotheses; 0: off.
    coverage_penalty: float = key(0.0, least=0, most=MOST_MEASURED)
    # Groups that the beam is divided into, for n_best translations that differ: each
    # avoids the tokens that those before it chose at the same place. They divide
    # beam_size; 1: none. The strength is what a token loses, as a natural logarithm,
    # for each hypothesis that chose it; scores stay as they are.
    diversity_groups: int = key(1, least=1, most=MOST_COUNTED)
    diversity_strength: float = key(0.5, least=0, most=MOST_MEASURED)
    # A translation has at most the tokens of its source and this many more, its
    # end-of-sentence token included.
    max_extra_length: int = key(50, least=0, most=MOST_COUNTED)
    # Nor has it more tokens than this, or more than this many times those of its
    # source. Default None: no such limit.
    max_target_length: int | None = key(None, least=1, most=MOST_COUNTED)
    max_length_ratio: float | None = key(None, above=0, most=MOST_MEASURED)
    # Least tokens of a translation, its end-of-sentence token included, and least in
    # parts of the source's; a shorter limit goes before them.
    min_length: int = key(1, least=0, most=MOST_COUNTED)
    min_length_ratio: float = key(0.0, least=0, most=MOST_MEASURED)
    # No so many tokens come twice in the same order; 0: they may.
    no_repeat_ngram: int = key(0, least=0, most=MOST_COUNTED)
    # Multiplies the log-probabilities of tokens that came before: above 1 they come
    # less often. It changes the scores of hypotheses, and not their log-probabilities,
    # which stay the model's.
    repetition_penalty: float = key(1.0, above=0, most=MOST_MEASURED)
    # Whether the unknown token is never written.
    no_unknown: bool = key(False)
    # Most tokens of a source that is translated at once, with those added to it.
    # Default None: as many as training saw (data.max_length), or where that is not
    # known, as the model has positions.
    max_source_length: int | None = key(
        None, least=8, changes="speed", most=MOST_COUNTED
    )
    # What becomes of longer ones. "split" (default): they are cut at the ends of their
    # sentences, and sentences that are still too long between clauses or words; all
    # parts are translated and joined. "refuse": an error, before anything is
    # translated. Without max_source_length only what the model has no positions for is
    # refused; other sources that are longer than training saw are translated whole,
    # with a warning: much of their text may be missing.
    long_sources: LongSources = key("split", choices=LONG_SOURCES, changes="speed")
    # Sentences that a device decodes together. It changes speed and memory, and results
    # by rounding alone.
    batch_size: int = key(64, least=1, changes="speed", most=MOST_COUNTED)
    # The numbers of weights and products: "model" (default), those of model.dtype; or
    # "float32", "bfloat16" or "int8", weights and products in 8 bits.
    precision: Precision = key("model", choices=PRECISIONS)
    # Source tokens that a device decodes together, padding counted: batches of
    # sentences too long for it have fewer of them, one at least, so that memory is
    # bounded. The default leaves batches of 64 whole up to 128 tokens a sentence.
    tokens_per_batch: int = key(8192, least=1, changes="speed", most=MOST_COUNTED)
    # Draw translations at random instead of searching for the best.
    sample: bool = key(False)
    # Below 1 the probable becomes more probable; 0 draws the most probable token
    # always.
    temperature: float = key(1.0, least=0, most=MOST_MEASURED)
    # What is drawn from, each on what the one before has left: the so many most
    # probable tokens (0: all), those that have so much probability together (1: all),
    # those with so great a part of the most probable one's (0: all), and those with so
    # much probability (0: all).
    top_k: int = key(0, least=0, most=MOST_COUNTED)
    top_p: float = key(1.0, above=0, most=1)
    min_p: float = key(0.0, least=0, most=1)
    epsilon: float = key(0.0, least=0, most=1)
    # Of the drawing: the same seed draws the same translations of the same sentences.
    seed: int = key(0, least=0, below=2**32, changes="speed")

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("decoding", self)
        if (
            self.max_target_length is not None
            and self.min_length > self.max_target_length
        ):
            raise InputError(
                f"decoding.min_length {self.min_length} is above"
                f" decoding.max_target_length {self.max_target_length}: lower the one"
                " or raise the other"
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


def differing_settings(
    record: Mapping[str, Any], **expected: Any
) -> dict[str, tuple[Any, Any]]:
    """Return the recorded settings that change results and are not as expected.

    Args:
        record: ``decoding`` of an entry of ``results.json``; unknown keys are ignored.
        **expected: settings whose expected value is not the default.

    Returns:
        The recorded and the expected value by key.
    """
    wanted = {
        field.name: field.default
        for field in dataclasses.fields(DecodingConfig)
        if field.metadata["changes"] != "speed"
    }
    wanted |= {"shortlist": False, **expected}
    return {
        name: (value, wanted[name])
        for name, value in record.items()
        if name in wanted and value != wanted[name]
    }
