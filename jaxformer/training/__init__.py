"""Training: schedules, optimizers, and the step as a pure function."""

from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import make_optimizer, update_average
from jaxformer.training.schedules import (
    constant_schedule,
    cool_down,
    cosine_schedule,
    inverse_sqrt_schedule,
    linear_schedule,
    make_schedule,
    paper_schedule,
)
from jaxformer.training.state import create_state
from jaxformer.training.step import make_eval_step, make_train_step

__all__ = [
    "TrainingConfig",
    "constant_schedule",
    "cool_down",
    "cosine_schedule",
    "create_state",
    "inverse_sqrt_schedule",
    "linear_schedule",
    "make_eval_step",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "paper_schedule",
    "update_average",
]
