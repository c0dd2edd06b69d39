"""The optimizer of the paper: Adam under its own schedule."""

from __future__ import annotations

import optax

from jaxformer.training.config import TrainingConfig
from jaxformer.training.schedules import paper_schedule


def make_optimizer(config: TrainingConfig, d_model: int) -> optax.GradientTransformation:
    """Build Adam with the paper's schedule (Vaswani et al. 2017, section 5.3); no clipping and no weight decay."""
    schedule = paper_schedule(d_model, config.warmup_steps, config.learning_rate)
    return optax.adam(schedule, b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_epsilon)
