"""How far a run is: the loop's own counters, saved with each checkpoint."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any

from jaxformer import __version__
from jaxformer.checkpoints.saved import rank
from jaxformer.data.pipeline import Position
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.runs.config import BEST_METRICS, UNTRANSLATED


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
        best_scores: the others of that evaluation, by which equal ones are compared.
        stale: evaluations since then.
        vocabulary: its hash.
        data: hash of the training text.
        valid: hash of the text that each score was measured on; see
            :func:`hash_validation`.
        base: what adapters are trained for, as of
            :class:`jaxformer.checkpoints.parameters.Base`; None without LoRA.
        drawn: parts of the model that ``training.initial_run`` does not have and that
            began as newly drawn.
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
    vocabulary: str = ""
    data: str = ""
    valid: dict[str, str] = dataclasses.field(default_factory=dict)
    base: dict[str, Any] | None = None
    drawn: list[str] = dataclasses.field(default_factory=list)
    best_scores: dict[str, float] = dataclasses.field(default_factory=dict)

    def add(self, metrics: dict[str, float]) -> None:
        """Add the metrics of a step."""
        # Sums of a skipped step are not finite.
        for name in ("skipped",) if metrics["skipped"] else metrics:
            self.sums[name] = self.sums.get(name, 0.0) + metrics[name]
        self.sums["steps"] = self.sums.get("steps", 0.0) + 1.0
        latest = {"learning_rate", "loss_scale"} & metrics.keys()
        self.sums |= {name: metrics[name] for name in latest}

    def judge(self, scores: dict[str, float], metric: str) -> None:
        """Note the scores of an evaluation at this step, which may be the best by
        :func:`~jaxformer.checkpoints.saved.rank`.
        """
        self.evaluated, self.scores = self.step, scores
        if metric not in scores:
            return
        self.choose_by(metric)
        better = self.best is None or rank(scores, metric) > rank(
            {**self.best_scores, metric: self.best}, metric
        )
        if better and math.isfinite(scores[metric]):
            self.best, self.best_scores, self.stale = scores[metric], scores, 0
        else:
            self.stale += 1

    def choose_by(self, metric: str) -> bool:
        """Choose the best by this score from now on; return whether the best so far,
        by another one, is forgotten.
        """
        if metric == self.best_metric:
            return False
        known = bool(self.best_metric)
        self.best_metric, self.best, self.stale = metric, None, 0
        return known

    def to_json(self) -> dict[str, Any]:
        """Return the counters as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Progress:
        """Read what :meth:`to_json` gave; what is not counted yet begins at 0.

        Raises:
            InputError: a later version counted what this one does not know.
        """
        for known, given in ((cls, record), (Position, record["position"])):
            unknown = sorted(
                set(given) - {field.name for field in dataclasses.fields(known)}
            )
            if unknown:
                raise InputError(
                    f"the checkpoint has {', '.join(unknown)}, which jaxformer"
                    f" {__version__} does not know: continue with the version that"
                    " wrote it"
                )
        return cls(**{**record, "position": Position(**record["position"])})


def hash_validation(pairs: Sequence[Pair], translated: int | None) -> dict[str, str]:
    """Return the SHA-256 of the text that each score is measured on.

    Args:
        pairs: of ``data.valid``, on which the loss is measured.
        translated: how many of them are translated and scored, from the first on; None:
            all.
    """
    whole, part = (
        hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        for texts in (pairs, pairs[:translated])
    )
    return {name: whole if name in UNTRANSLATED else part for name in BEST_METRICS}
