"""The section ``decoding`` of a run's configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from jaxformer.errors import InputError, check_keys, key

Precision = Literal["model", "float32", "bfloat16", "int8"]
"""Names of the number formats that a model is decoded in."""

LengthPenalty = Literal["gnmt", "average", "none"]
"""Names of length penalties."""

EarlyStopping = Literal["never", "length", "full"]
"""Names of the moments at which a beam search leaves a sentence."""

LENGTH_PENALTIES: tuple[LengthPenalty, ...] = get_args(LengthPenalty)

MOST_COUNTED, MOST_MEASURED = 10**9, 10**4
"""Greatest counts and strengths: a search computes in 32 bits, which overflow beyond
them.
"""

MOST_BEAM = 10_000
"""Most hypotheses of a sentence: the widest beam, and the most samples."""

ADDED_TOKENS = 128
"""Most tokens that are added to a prompt, where nothing else is asked for."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "epsilon", "seed")
"""Keys that only sampling reads."""


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """How a trained model translates; the defaults are the paper's (Vaswani et al.
    2017, section 6.1).

    Raises:
        InputError: a value is out of range, or two values contradict each other.
    """

    # 1 follows only the most probable token.
    beam_size: int = key(
        4,
        least=1,
        most=MOST_BEAM,
        flag="W",
        help="hypotheses alive at a time; 1 is greedy search",
    )
    # 0 compares plain log-probabilities; larger values favour long translations.
    alpha: float = key(
        0.6, least=-10, most=10, flag="A", help="strength of the length penalty"
    )
    # Divides the log-probability of a hypothesis of n tokens.
    length_penalty: LengthPenalty = key(
        "gnmt",
        choices=LENGTH_PENALTIES,
        flag="NAME",
        help="gnmt: ((5+n)/6)^alpha, average: n^alpha, or none",
    )
    # Beta of GNMT, for source tokens without attention. It changes scores.
    coverage_penalty: float = key(
        0.0,
        least=0,
        most=MOST_MEASURED,
        flag="B",
        help="strength of the coverage penalty; 0: there is none",
    )
    # Each group avoids the tokens that earlier groups chose at the same position. The
    # number of groups divides beam_size; 1: no groups.
    diversity_groups: int = key(
        1,
        least=1,
        most=MOST_COUNTED,
        flag="G",
        help="groups of the beam that avoid each other's words",
    )
    # Subtracted from a token's log-probability for each hypothesis of an earlier group
    # that chose it. Scores do not change.
    diversity_strength: float = key(
        0.5, least=0, most=MOST_MEASURED, flag="X", help="how much they avoid them"
    )
    # Maximum lengths take precedence over minimum lengths.
    min_length: int = key(
        1,
        least=0,
        most=MOST_COUNTED,
        flag="N",
        help="least tokens of a translation, its end included",
    )
    min_length_ratio: float = key(
        0.0,
        least=0,
        most=MOST_MEASURED,
        flag="X",
        help="least tokens of a translation, as a multiple of its source's",
    )
    # Default None: no limit.
    max_target_length: int | None = key(
        None, least=1, most=MOST_COUNTED, flag="N", help="most tokens of a translation"
    )
    # Default None: no limit.
    max_length_ratio: float | None = key(
        None,
        above=0,
        most=MOST_MEASURED,
        flag="X",
        help="most tokens of a translation, as a multiple of its source's",
    )
    max_extra_length: int = key(
        50,
        least=0,
        most=MOST_COUNTED,
        flag="N",
        help="most tokens of a translation beyond those of its source",
    )
    no_repeat_ngram: int = key(
        0,
        least=0,
        most=MOST_COUNTED,
        flag="N",
        help="no N tokens occur twice in the same order; 0: they may",
    )
    # Multiplies the log-probabilities of tokens that occurred before. It changes
    # scores, not the reported log-probabilities.
    repetition_penalty: float = key(
        1.0,
        above=0,
        most=MOST_MEASURED,
        flag="X",
        help="above 1: tokens that occurred before become less probable",
    )
    # Of weights and matmuls.
    precision: Precision = key(
        "model",
        choices=get_args(Precision),
        flag="NAME",
        help="model: as in training, float32, bfloat16 or int8: 8 bits, fastest for"
        " large models",
    )
    # For each device. It changes speed and memory, and results only by rounding.
    batch_size: int = key(
        64,
        least=1,
        most=MOST_COUNTED,
        flag="N",
        help="most sentences that are decoded together",
        changes="speed",
    )
    # For each device: batches of long sentences are smaller, which bounds memory. The
    # default allows 64 sentences of up to 128 tokens.
    tokens_per_batch: int = key(
        8192,
        least=1,
        most=MOST_COUNTED,
        flag="N",
        help="most source tokens that are decoded together, padding included",
        changes="speed",
    )
    temperature: float = key(
        1.0,
        least=0,
        most=MOST_MEASURED,
        flag="X",
        help="below 1 probable tokens become more probable; 0: only the most probable",
    )
    # The four truncations apply in this order, each to the result of the one before.
    top_k: int = key(
        0,
        least=0,
        most=MOST_COUNTED,
        flag="K",
        help="draw from the K most probable tokens; 0: from all",
    )
    top_p: float = key(
        1.0,
        above=0,
        most=1,
        flag="P",
        help="draw from the most probable tokens that have probability P together",
    )
    min_p: float = key(
        0.0,
        least=0,
        most=1,
        flag="P",
        help="draw from tokens at least P times as probable as the most probable",
    )
    epsilon: float = key(
        0.0, least=0, most=1, flag="P", help="draw from tokens of probability P or more"
    )
    # A translation that reaches its limit gets its end there, at no cost.
    end_at_limit: bool = key(False)
    # "never" leaves a sentence when its result is certain, "length" when no hypothesis
    # beats beam_size ended ones at its present length, "full" when there are as many:
    # early_stopping of transformers, "never", False and True.
    early_stopping: EarlyStopping = key("never", choices=get_args(EarlyStopping))
    # Translations cut at the limit rank by their score; by default after those that
    # ended.
    rank_unfinished: bool = key(False)
    # Normalise the probabilities of the allowed tokens. It changes scores, not the
    # reported log-probabilities.
    renormalize: bool = key(False)
    # The same seed samples the same translations of the same sentences.
    seed: int = key(
        0, least=0, below=2**32, flag="N", help="of the sampling", changes="speed"
    )
    sample: bool = key(
        False, help="draw translations at random instead of searching for the best"
    )
    no_unknown: bool = key(False, help="never write the unknown token")
    # Maximum number of tokens of a source that is translated at once, special tokens
    # included. Default None: as in training (data.max_length) or, if that is unknown,
    # the positions of the model.
    max_source_length: int | None = key(
        None, least=8, most=MOST_COUNTED, changes="speed"
    )
    # What becomes of longer sources: "split" (their parts are translated and joined) or
    # "refuse" (an error before anything is translated). They are cut between sentences,
    # and sentences that are still too long between clauses or words. If they are
    # refused without max_source_length, only sources beyond the model's positions are;
    # sources longer than in training are translated whole, with a warning, and may lose
    # much of their text.
    long_sources: Literal["refuse", "split"] = key(
        "split", choices=("refuse", "split"), changes="speed"
    )

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("decoding", self)
        if self.min_length > (self.max_target_length or self.min_length):
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
    """Find the settings of a recorded search that change results and differ from the
    expected ones.

    Args:
        record: ``decoding`` of an entry of ``results.json``; keys that
            :class:`DecodingConfig` does not have are ignored.
        **expected: settings that are expected to differ from the defaults.

    Returns:
        For each key that differs, its value and the expected one.
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
