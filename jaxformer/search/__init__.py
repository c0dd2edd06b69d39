"""Search over a step function, without a model or a text. Text in, text out is
:class:`jaxformer.Translator`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.search.beam import (
        beam_finish,
        beam_init,
        beam_search,
        beam_step,
    )
    from jaxformer.search.config import DecodingConfig
    from jaxformer.search.constraints import Constraints
    from jaxformer.search.ensemble import mean_log_probabilities
    from jaxformer.search.rules import (
        Sampling,
        SearchResult,
        SearchRules,
    )
    from jaxformer.search.scoring import coverage_penalty, length_penalty
    from jaxformer.search.single import greedy_search, sample_search

__all__ = [
    "Constraints",
    "DecodingConfig",
    "Sampling",
    "SearchResult",
    "SearchRules",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "beam": "beam_finish beam_init beam_search beam_step",
        "config": "DecodingConfig",
        "constraints": "Constraints",
        "ensemble": "mean_log_probabilities",
        "rules": "Sampling SearchResult SearchRules",
        "scoring": "coverage_penalty length_penalty",
        "single": "greedy_search sample_search",
    },
)
