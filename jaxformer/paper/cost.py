"""What training a row of a table costs: arithmetic by formula, and hours on given
devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxformer.errors import UsageError
from jaxformer.models.config import TransformerConfig
from jaxformer.training import flops
from jaxformer.training.flops import Device, Work

SENTENCE = 25
"""Tokens of a sentence, on each side, that the arithmetic of a batch is counted with:
an assumption.

The length matters to the products of attention alone: with twice as long sentences the
base model is less than 1 % dearer.
"""


UTILISATION = 0.28
"""Share of the published peak that hours are estimated with: what XLA's program of the
base model could reach on an H200, by the bytes that it moves. It is a bound by the
compiler, and not a measurement.
"""


def count_flops(
    config: TransformerConfig, *, steps: int, tokens_per_batch: int
) -> float:
    """Count the operations of a whole training: those of real tokens, in batches that
    are full on both sides.

    See :mod:`jaxformer.training.flops` for what is counted. The numbers of the paper's
    Table 2 are of another kind: time by devices by what a device sustains, so what was
    spent, whatever share of it went into the model.

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
    work = Work(tokens_per_batch, tokens_per_batch, pairs, pairs, pairs)
    return steps * flops.training_flops(config, work)


def peak_flops_per_second(devices: Sequence[Device], dtype: str) -> float | None:
    """Add up the published peaks of devices, in operations a second; None where one
    is not known, as of every CPU.
    """
    peaks = [flops.peak_flops(device, dtype) for device in devices]
    known = [peak for peak in peaks if peak is not None]
    return math.fsum(known) if peaks and len(known) == len(peaks) else None


def expected_hours(
    operations: float, flops_per_second: float, utilisation: float
) -> float:
    """Estimate how long operations take, in hours.

    Args:
        operations: how many.
        flops_per_second: the peak of all devices together.
        utilisation: the part of the peak that training gets, above 0 and at most 1.

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
    """Refuse what is no part of a peak.

    Raises:
        UsageError: it is not above 0 and at most 1.
    """
    if not 0 < utilisation <= 1:
        raise UsageError(
            f"--utilisation must be above 0 and at most 1, not {utilisation}"
        )
