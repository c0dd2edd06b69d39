"""Training: schedules, optimizers, the step as a pure function, engines that run it,
and the loop around them.
"""

from jaxformer.runs.training import TrainingConfig
from jaxformer.training.engines import Engine, make_engine
from jaxformer.training.optimizer import make_optimizer, update_average
from jaxformer.training.schedules import (
    Schedule,
    constant_schedule,
    cool_down,
    cosine_schedule,
    inverse_sqrt_schedule,
    linear_schedule,
    make_schedule,
    paper_schedule,
)
from jaxformer.training.state import TrainState, create_state
from jaxformer.training.step import make_eval_step, make_train_step

__all__ = [
    "Engine",
    "Schedule",
    "TrainState",
    "TrainingConfig",
    "constant_schedule",
    "cool_down",
    "cosine_schedule",
    "create_state",
    "inverse_sqrt_schedule",
    "linear_schedule",
    "make_engine",
    "make_eval_step",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "paper_schedule",
    "update_average",
]
