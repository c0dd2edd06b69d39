"""How far a run is: the loop's own counters, saved with each checkpoint."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jaxformer import __version__
from jaxformer.data.pipeline import Position
from jaxformer.errors import InputError


@dataclasses.dataclass
class Progress:
    """The loop's own counters.

    Attributes:
        step: batches trained on.
        position: the next batch.
        sums: metrics summed since the last line of the log, as Python floats.
        bad_steps: steps in a row, up to now, whose loss or gradient was not finite.
        evaluated: step of the last evaluation.
        scores: those of the last evaluation.
        best_metric: by which score the best is chosen.
        best: the best score so far; None before there is one.
        stale: evaluations since then.
    """

    step: int = 0
    position: Position = dataclasses.field(default_factory=Position)
    sums: dict[str, float] = dataclasses.field(default_factory=dict)
    bad_steps: int = 0
    evaluated: int = 0
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    best_metric: str = ""
    best: float | None = None
    stale: int = 0

    def add(self, metrics: dict[str, float]) -> None:
        """Add the metrics of a step."""
        skipped = metrics["skipped"] > 0.0
        # Sums of a skipped step are not finite.
        counted = ("skipped", "slots", "source_tokens") if skipped else metrics
        for name in counted:
            self.sums[name] = self.sums.get(name, 0.0) + metrics[name]
        self.sums["steps"] = self.sums.get("steps", 0.0) + 1.0
        self.sums["learning_rate"] = metrics["learning_rate"]

    def judge(self, scores: dict[str, float], metric: str) -> None:
        """Note the scores of an evaluation at this step; the best has the highest ``metric``, or the lowest loss."""
        self.evaluated, self.scores = self.step, scores
        if metric not in scores:
            return
        if metric != self.best_metric:
            self.best_metric, self.best, self.stale = metric, None, 0
        sign = -1.0 if metric == "loss" else 1.0
        better = self.best is None or sign * scores[metric] > sign * self.best
        if better and math.isfinite(scores[metric]):
            self.best, self.stale = scores[metric], 0
        else:
            self.stale += 1

    def to_json(self) -> dict[str, Any]:
        """Give the counters as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Progress:
        """Read what :meth:`to_json` gave, in this version or an earlier one: what it did not count yet begins at 0.

        Raises:
            InputError: a later version counted what this one does not know.
        """
        for known, given in ((cls, record), (Position, record["position"])):
            unknown = sorted(set(given) - {field.name for field in dataclasses.fields(known)})
            if unknown:
                raise InputError(
                    f"the checkpoint has {', '.join(unknown)}, which jaxformer {__version__} does not know: go on with "
                    "the version that wrote it"
                )
        return cls(**{**record, "position": Position(**record["position"])})
