"""The task in jaxformer: the step of training, by the engine that training would take."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jaxformer.benchmark.task import BOS, PACKED_LENGTH, PAD, Task
from jaxformer.data import DataConfig, TrainingData
from jaxformer.data.batching import Batch
from jaxformer.data.transforms import Encoded
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import Transformer
from jaxformer.training.engines import make_engine
from jaxformer.training.recipe import TrainingConfig


class Learner:
    """A model in jaxformer with its state."""

    def __init__(self, task: Task, precision: str, batching: str) -> None:
        """Draw the parameters.

        Args:
            task: what to learn.
            precision: the type of the computation.
            batching: ``buckets`` or ``packing``.
        """
        self.task, self.batching = task, batching
        config = TransformerConfig(
            vocabulary_size=task.vocabulary_size,
            d_model=task.d_model,
            d_ff=task.d_ff,
            num_heads=task.num_heads,
            num_encoder_layers=task.num_layers,
            num_decoder_layers=task.num_layers,
            dropout_rate=task.dropout_rate,
            dtype=precision,
        )
        assert config.pad_id == PAD
        assert config.bos_id == BOS
        training = TrainingConfig(label_smoothing=task.label_smoothing, smoothing_convention="all")
        self.engine = make_engine(Transformer(config), training)
        self.state = self.engine.create()

    def run(self, batches: Sequence[Batch]) -> None:
        """Update once with each batch, of which one is put in place ahead, and wait for the last."""
        for batch in [self.engine.put(batch) for batch in batches]:
            self.state, _ = self.engine.step(self.state, batch)
        jax.block_until_ready(self.state)

    def batches(self, pairs: Encoded) -> list[Batch]:
        """Make the batches of an epoch of real text."""
        packing = self.batching == "packing"
        config = DataConfig(
            tokens_per_batch=self.task.tokens_per_batch, num_buckets=12, packing=packing, packed_length=PACKED_LENGTH
        )
        plan = TrainingData.of(pairs, config, seed=0).plan(0)
        return [plan.batch(number, 0, 1) for number in range(len(plan))]
