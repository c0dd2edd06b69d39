"""The model in jaxformer that learns: the steps of training, by the engine that
training would take.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax

from jaxformer.data.batching import Batch
from jaxformer.data.config import DataConfig
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.store import Encoded
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.engines import make_engine
from tasks import BOS, PACKED_LENGTH, PAD, Task


class JaxLearner:
    """A model in jaxformer with its state; a
    :class:`tasks.Learner`.
    """

    def __init__(
        self, model: TransformerConfig, training: TrainingConfig, data: DataConfig
    ) -> None:
        """Draw the parameters.

        Args:
            model: its architecture and sizes.
            training: the recipe, and the seed of the parameters and of dropout.
            data: how batches are made of pairs.
        """
        self._data = data
        self.engine = make_engine(make_model(model), training)
        self._state = self.engine.create()

    def run(self, batches: Iterable[Batch]) -> None:
        """Update once with each batch, and wait for the last."""
        for batch in batches:
            self._state, metrics = self.engine.step(self._state, self.engine.put(batch))
            if jax.default_backend() == "cpu":
                jax.block_until_ready(metrics)  # as training reads them there
        jax.block_until_ready(self._state)

    def batches(self, pairs: Encoded) -> list[Batch]:
        """Make the batches of an epoch of real text."""
        plan = TrainingData.from_pairs(pairs, self._data, seed=0).plan(0)
        return [plan.batch(number, 0, 1) for number in range(len(plan))]


def make_learner(
    task: Task, precision: str, variation: str | None = None
) -> JaxLearner:
    """Make what learns a task.

    Args:
        task: what to learn.
        precision: the type of the computation.
        variation: ``packing`` of rows in place of length buckets, or ``scanned``
            layers; None: neither.
    """
    model = make_config(task, precision, scanned=variation == "scanned")
    training = TrainingConfig(
        label_smoothing=task.label_smoothing, smoothing_convention="all"
    )
    data = DataConfig(
        tokens_per_batch=task.tokens_per_batch,
        num_buckets=12,
        packing=variation == "packing",
        packed_length=PACKED_LENGTH,
    )
    return JaxLearner(model, training, data)


def make_config(
    task: Task, precision: str, *, scanned: bool = False
) -> TransformerConfig:
    """Describe the model of a task."""
    model = TransformerConfig(
        vocabulary_size=task.vocabulary_size,
        d_model=task.d_model,
        d_ff=task.d_ff,
        num_heads=task.num_heads,
        num_encoder_layers=task.num_layers,
        num_decoder_layers=task.num_layers,
        dropout_rate=task.dropout_rate,
        dtype=precision,
        scan_layers=scanned,
    )
    assert model.pad_id == PAD
    assert model.bos_id == BOS
    return model
