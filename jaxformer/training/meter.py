"""How fast a run is: tokens a second, utilisation of the devices, waiting for data, and
the time left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

import jax
import numpy as np

from jaxformer.models import flops
from jaxformer.models.config import TransformerConfig


class Meter:
    """Measures the steps between the lines of the log.

    Its clock runs from one moment without work on the devices to another: from the end
    of a compilation, an evaluation or a line of the log to the next of these. So it
    does not matter whether a step is done when its call returns, and steps that compile
    are not counted.

    The utilisation of the devices (MFU, Chowdhery et al. 2022, section 4.1 and appendix
    B) is that of this host's share of each batch: the operations of forward and
    backward over its real tokens, divided by the time and the published peak of the
    devices that compute it. ``mfu_slots`` is the same with padding.
    """

    def __init__(
        self,
        model: TransformerConfig,
        devices: float,
        *,
        passes: int = 1,
        predicted: float = 1.0,
    ) -> None:
        """Begin with a stopped clock; the first step compiles and starts it.

        Args:
            model: what is trained.
            devices: number that compute this host's share of a batch: all of them
                divided by the number of shares.
            passes: how often a step computes each batch; 2 with R-Drop.
            predicted: the share of the target that has logits.
        """
        peak = flops.peak_flops(jax.local_devices()[0], model.dtype)
        self._peak = None if peak is None else peak * devices
        self._model, self._passes, self._predicted = model, passes, predicted
        self._since: float | None = None  # the clock is stopped
        # For the time left: seconds with evaluations but without compilations.
        self._begun: float | None = None
        self._compiling, self._steps = 0.0, 0
        self._reset()

    def wait(self, seconds: float) -> None:
        """Count seconds that the loop has waited for a batch."""
        if self._since is not None:
            self._waited += seconds

    def add(self, tokens: float, batch: Mapping[str, np.ndarray]) -> None:
        """Count a step that is done, unless it compiled.

        Args:
            tokens: real target tokens of the whole batch, of all hosts.
            batch: this host's share of it, as the data gave it.
        """
        if self._since is None:
            return
        self._steps += 1
        self._tokens += tokens
        if self._peak is not None:
            for name, work in (
                (
                    "mfu",
                    flops.tokens(batch, self._model.pad_id, predicted=self._predicted),
                ),
                ("mfu_slots", flops.slots(batch, predicted=self._predicted)),
            ):
                self._flops[name] += flops.training_flops(
                    self._model, work, passes=self._passes
                )

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Stop the clock for a step that compiles; all steps are read before the block
        and at its end.
        """
        self._stop()
        begun = time.monotonic()
        yield
        now = self._since = time.monotonic()
        if self._begun is None:
            self._begun = now
        else:
            self._compiling += now - begun

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the block, such as for an evaluation."""
        runs = self._since is not None
        self._stop()
        try:
            yield
        finally:
            self._since = time.monotonic() if runs else None

    def read(self, steps_left: int, *, keep: bool = False) -> dict[str, float]:
        """Return the metrics since the last reading, and begin again unless ``keep``;
        all steps are read.

        Returns:
            ``train/tokens_per_second``, of real target tokens; ``train/data_wait``, the
            share of the time in which the loop waited for a batch (the devices may have
            worked meanwhile); ``train/mfu`` and ``train/mfu_slots`` where the devices'
            peak is known; and ``train/seconds_left`` from the second step on, with the
            time that evaluations and checkpoints take.
        """
        runs, now = self._since is not None, time.monotonic()
        self._stop()
        rates = {"tokens_per_second": self._tokens, "data_wait": self._waited}
        if self._peak is not None:
            rates |= {name: made / self._peak for name, made in self._flops.items()}
        # Without a counted step there is no speed.
        entry = {
            f"train/{name}": value / self._seconds
            for name, value in rates.items()
            if self._tokens and self._seconds > 0.0
        }
        if self._begun is not None and self._steps:
            seconds = now - self._begun - self._compiling
            entry["train/seconds_left"] = seconds / self._steps * steps_left
        if not keep:
            self._reset()
        self._since = now if runs else None
        return entry

    def _stop(self) -> None:
        if self._since is not None:
            self._seconds += time.monotonic() - self._since
        self._since = None

    def _reset(self) -> None:
        self._seconds, self._waited, self._tokens = 0.0, 0.0, 0.0
        self._flops = {"mfu": 0.0, "mfu_slots": 0.0}
