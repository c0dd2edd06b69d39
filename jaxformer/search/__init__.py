"""Search over a step function, without a model or a text. Text in, text out is
:class:`jaxformer.Translator`.
"""

from jaxformer.search.beam import (
    BeamState,
    beam_finish,
    beam_init,
    beam_search,
    beam_step,
)
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.search.ensemble import mean_log_probabilities
from jaxformer.search.rules import Coverage, SearchResult, SearchRules, Step
from jaxformer.search.scoring import coverage_penalty, length_penalty
from jaxformer.search.single import Sampling, greedy_search, sample_search

__all__ = [
    "BeamState",
    "Constraints",
    "Coverage",
    "DecodingConfig",
    "Sampling",
    "SearchResult",
    "SearchRules",
    "Step",
    "beam_finish",
    "beam_init",
    "beam_search",
    "beam_step",
    "coverage_penalty",
    "greedy_search",
    "length_penalty",
    "mean_log_probabilities",
    "sample_search",
]
