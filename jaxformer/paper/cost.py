"""Estimate the cost of training: FLOPs by formula, and hours on given devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jaxformer.errors import UsageError
from jaxformer.models import flops
from jaxformer.models.config import TransformerConfig

SENTENCE = 25
"""Assumed tokens of a sentence, on each side.

The length matters only to the matmuls of attention: with sentences twice as long the
base model needs less than 1 % more FLOPs.
"""


UTILISATION = 0.31
"""Share of the published peak for the estimate of hours: that of the base model in
bfloat16 on one H200 (docs/benchmarks.md). Larger models reach more.
"""


def count_flops(
    config: TransformerConfig, *, steps: int, tokens_per_batch: int
) -> float:
    """Count the FLOPs of a whole training: real tokens, in batches full on both sides.

    :mod:`jaxformer.models.flops` says what is counted. The paper's Table 2 has time
    by devices by sustained FLOPs instead, whatever share of them the model used.

    Args:
        config: the model.
        steps: updates.
        tokens_per_batch: tokens on each side of a batch.

    Example:
        >>> base = TransformerConfig.base(vocabulary_size=37_000)
        >>> f"{count_flops(base, steps=100_000, tokens_per_batch=25_000):.2g}"
        '9.5e+17'
    """
    pairs = float(tokens_per_batch * SENTENCE)
    work = flops.Work(tokens_per_batch, tokens_per_batch, pairs, pairs, pairs)
    return steps * flops.training_flops(config, work)


def peak_flops_per_second(devices: Sequence[Any], dtype: str) -> float | None:
    """Sum the published peaks of devices, in FLOPs per second; None if one is unknown,
    as for every CPU.
    """
    peaks = [flops.peak_flops(device, dtype) for device in devices]
    known = [peak for peak in peaks if peak is not None]
    return math.fsum(known) if peaks and len(known) == len(peaks) else None


def expected_hours(
    operations: float, flops_per_second: float, utilisation: float
) -> float:
    """Estimate the hours that operations take.

    Args:
        operations: their number.
        flops_per_second: the peak of all devices together.
        utilisation: the share of the peak that training reaches, in (0, 1].

    Raises:
        UsageError: a value out of range.
    """
    check_utilisation(utilisation)
    if not 0 < flops_per_second < math.inf:
        raise UsageError(
            f"--flops_per_second must be above 0 and finite, not {flops_per_second}"
        )
    return operations / (flops_per_second * utilisation) / 3600


def check_utilisation(utilisation: float) -> None:
    """Check the share of a peak.

    Raises:
        UsageError: it is not above 0 and at most 1.
    """
    if not 0 < utilisation <= 1:
        raise UsageError(
            f"--utilisation must be above 0 and at most 1, not {utilisation}"
        )
