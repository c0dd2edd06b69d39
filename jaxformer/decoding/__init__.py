"""Decoding: search over a step function, scores of hypotheses, and text in, text out.

What is offered here knows no model. Text in, text out is :class:`jaxformer.Translator`.
"""

from jaxformer.decoding.config import DecodingConfig
from jaxformer.decoding.constraints import Constraints
from jaxformer.decoding.ensemble import mean_log_probabilities
from jaxformer.decoding.rules import Coverage, SearchResult, SearchRules, Step
from jaxformer.decoding.sampling import Sampling, sample_search
from jaxformer.decoding.scoring import coverage_penalty, length_penalty
from jaxformer.decoding.search import BeamState, beam_finish, beam_init, beam_search, beam_step, greedy_search

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
