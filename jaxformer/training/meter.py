"""How fast a run is: tokens a second, utilisation of the devices, waiting for data,
time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import jax
import numpy as np

from jaxformer.models.config import TransformerConfig
from jaxformer.training import flops


class Meter:
    """Measures steps between the lines of the log; the first step, which compiles, is
    not counted.

    The utilisation of the devices (MFU, Chowdhery et al. 2022, section 4.1 and appendix
    B) is that of this host's share of each batch: the operations of forward and
    backward over its real tokens, by the time and the published peak of the devices
    that compute it. Padding, rematerialisation and whatever else is computed do not
    count as use; ``mfu_slots`` is the same with padding, so that the two tell apart
    what the shapes of batches cost and what the program leaves idle.
    """

    def __init__(
        self,
        model: TransformerConfig,
        devices: float,
        *,
        passes: int = 1,
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begin to measure.

        Args:
            model: what is trained.
            devices: how many compute this host's share of a batch: all of them by the
                number of shares.
            passes: how often a step computes each batch; 2 with R-Drop.
            waited: tells the seconds that the loop has waited for batches so far.
        """
        peak = flops.peak_flops(jax.local_devices()[0], model.dtype)
        self._peak = None if peak is None else peak * devices
        self._model, self._passes, self._waited = model, passes, waited
        self._first: float | None = None
        self._steps, self._left_out_in_all = 0, 0.0
        self.pause()

    def add(self, tokens: float, batch: Mapping[str, np.ndarray]) -> None:
        """Count a step that is done.

        Args:
            tokens: real target tokens of the whole batch, of all hosts.
            batch: this host's share of it, as the data gave it.
        """
        now = time.monotonic()
        if self._first is None:
            self._first, self._left_out_in_all = now, 0.0
        else:
            self._steps += 1
        if self._begun is None:
            self._begun, self._waited_before, self._left_out = now, self._waited(), 0.0
            return
        self._tokens += tokens
        if self._peak is not None:
            for name, work in (
                ("mfu", flops.tokens(batch, self._model.pad_id)),
                ("mfu_slots", flops.slots(batch)),
            ):
                self._flops[name] += flops.training_flops(
                    self._model, work, passes=self._passes
                )

    def leave_out(self, seconds: float) -> None:
        """Take seconds that were no training, such as those of a compilation, from
        what is measured.
        """
        self._left_out += seconds
        self._left_out_in_all += seconds

    def pause(self) -> None:
        """Count nothing until the next step is done: what lies between, such as an
        evaluation, is no training.
        """
        self._begun: float | None = None
        self._waited_before = 0.0
        self._tokens, self._flops = 0.0, {"mfu": 0.0, "mfu_slots": 0.0}
        self._left_out = 0.0

    def read(self, steps_left: int) -> dict[str, float]:
        """Return the metrics since the last reading, and begin anew.

        Returns:
            ``train/tokens_per_second``, of real target tokens; ``train/data_wait``, the
            share of the time in which the loop waited for a batch (the devices may have
            worked meanwhile); ``train/mfu`` and ``train/mfu_slots`` where the devices'
            peak is known; and ``train/seconds_left`` once there is something to tell it
            by, with the time that evaluations and checkpoints take.
        """
        now, waited = time.monotonic(), self._waited()
        seconds = now - (now if self._begun is None else self._begun + self._left_out)
        rates = {
            "tokens_per_second": self._tokens,
            "data_wait": waited - self._waited_before,
        }
        if self._peak is not None:
            rates |= {name: made / self._peak for name, made in self._flops.items()}
        # Where nothing was measured since a pause, nothing is said.
        entry = {
            f"train/{name}": value / seconds
            for name, value in rates.items()
            if self._tokens and seconds > 0.0
        }
        if self._first is not None and self._steps:
            entry["train/seconds_left"] = (
                (now - self._first - self._left_out_in_all) / self._steps * steps_left
            )
        self.pause()
        self._begun, self._waited_before = now, waited
        return entry
