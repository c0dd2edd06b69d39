"""The section ``training`` of a configuration: how a model is trained, on what
devices, and what is kept of it.
"""

from __future__ import annotations

import dataclasses
import math

from jaxformer.errors import InputError, check_most
from jaxformer.functional.losses import SMOOTHING_CONVENTIONS

SCHEDULES = ("paper", "inverse_sqrt", "linear", "cosine", "constant")
OPTIMIZERS = ("adam", "adamw", "adafactor", "lion")
ENGINES = ("auto", "jit", "pmap", "mesh")
ON_FAILED_SAVE = ("stop", "continue")

MOST_COUNTED, MOST_MEASURED = 10**9, 1e30
"""Greatest values of what is counted and of what is measured: integers and floats of
32 bits hold them.
"""

MOST = {
    **dict.fromkeys(
        ("steps", "warmup_steps", "cooldown_steps", "log_every", "evaluate_every"),
        MOST_COUNTED,
    ),
    **dict.fromkeys(
        ("checkpoint_every", "keep_latest", "keep_best", "keep_every", "patience"),
        MOST_COUNTED,
    ),
    **dict.fromkeys(("max_bad_steps", "profile_step", "profile_steps"), MOST_COUNTED),
    **dict.fromkeys(
        ("learning_rate", "adam_epsilon", "weight_decay", "gradient_clip", "z_loss"),
        MOST_MEASURED,
    ),
    **dict.fromkeys(("r_drop", "loss_scale"), MOST_MEASURED),
    "stall_seconds": 1e9,
    "seed": 2**32 - 1,
    **dict.fromkeys(("accumulation_steps", "mesh_fsdp", "mesh_tensor"), 10**6),
}
"""Greatest values of numbers."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained; the defaults are the paper's (Vaswani et al. 2017,
    section 5).

    Raises:
        InputError: a value out of range, or values that do not go together.
    """

    # Updates of the parameters.
    steps: int = 100_000

    # The learning rate: paper (d_model^-0.5 * min(step^-0.5, step *
    # warmup_steps^-1.5)), or a linear warm-up to the highest rate and then inverse_sqrt
    # (falls with the inverse square root of the step), linear or cosine (fall to 0 at
    # training.steps) or constant.
    schedule: str = "paper"
    # Factor on the paper's schedule; with any other the highest rate itself.
    learning_rate: float = 1.0
    # Steps over which the learning rate rises linearly.
    warmup_steps: int = 4_000
    # Last steps over which the rate falls linearly to 0 whatever the schedule (paper,
    # inverse_sqrt and constant).
    cooldown_steps: int = 0

    # adam (section 5.3), adamw, adafactor or lion.
    optimizer: str = "adam"
    # Decay rates of the moments and Adam's epsilon (section 5.3); Lion has the decay
    # rates, Adafactor none of them.
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_epsilon: float = 1e-9
    # Decoupled weight decay of adamw, adafactor and lion, on kernels and embeddings.
    weight_decay: float = 0.0
    # Largest global norm of the gradient; None: it is not clipped.
    gradient_clip: float | None = None
    # Decay of a moving average of the parameters, which is then what is evaluated, kept
    # and translated with.
    ema_decay: float | None = None
    # Parameters that stay as they are: patterns of their paths, separated by commas,
    # such as encoder/*,embedding/*.
    frozen: str | None = None

    # Probability that label smoothing takes from the true token (section 5.4), and who
    # gets it: others (the V - 1 other tokens, tensor2tensor) or all (all V tokens,
    # Szegedy et al. 2016).
    label_smoothing: float = 0.1
    smoothing_convention: str = "others"
    # Weight of the squared logarithm of the softmax's denominator, a token (Chowdhery
    # et al. 2022).
    z_loss: float = 0.0
    # Weight of the divergence between two passes with different dropout (R-Drop, Wu et
    # al. 2021); 0: one pass.
    r_drop: float = 0.0
    # Parts into which each batch is cut to need less memory; their gradients are added
    # before the update.
    accumulation_steps: int = 1

    # Seed of parameters, dropout and data order.
    seed: int = 0
    # The directory of a run whose best checkpoint the training starts from, with its
    # optimizer or without.
    initial_run: str | None = None
    initial_optimizer: bool = False

    # auto (pmap with several devices, jit with one), jit (one device), pmap (replicated
    # over the devices of all hosts) or mesh (parameters sharded over the devices of all
    # hosts).
    engine: str = "auto"
    # Of the mesh: over how many devices parameters are sharded (fsdp), and over how
    # many each layer's heads and hidden units (tensor); the batch is shared by all
    # devices but those of tensor.
    mesh_fsdp: int = 1
    mesh_tensor: int = 1
    # Whether the optimizer's moments are sharded over the data axis too (ZeRO), on a
    # mesh.
    shard_moments: bool = False
    # First scale of the loss under model.dtype=float16.
    loss_scale: float = 32_768.0
    # Steps in a row whose loss or gradient is not finite (they change nothing) before
    # the run stops.
    max_bad_steps: int = 10

    # Steps between lines of the log, between evaluations, and between checkpoints
    # besides those of evaluations.
    log_every: int = 100
    evaluate_every: int = 5_000
    checkpoint_every: int = 1_000
    # Evaluations without a better score by evaluation.best_metric before training ends;
    # None: it does not end so.
    patience: int | None = None
    # Checkpoints that are kept: the latest, the best by evaluation.best_metric, and
    # every k-th step (None: no more).
    keep_latest: int = 2
    keep_best: int = 1
    keep_every: int | None = None
    # Whether to stop when a checkpoint cannot be saved, or to continue with the last
    # good one.
    on_failed_save: str = "stop"

    # First step of a profiler trace, written to profile/ in the run's directory (None:
    # none), and how many it holds.
    profile_step: int | None = None
    profile_steps: int = 5
    # Seconds without a batch before the log says that training waits for its data.
    stall_seconds: float = 60.0
    # Project on Weights & Biases that gets the metrics too; None: none.
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        """Check every value, and those that depend on each other."""
        for name in (
            *(
                "steps",
                "accumulation_steps",
                "mesh_fsdp",
                "mesh_tensor",
                "max_bad_steps",
                "log_every",
            ),
            *(
                "evaluate_every",
                "checkpoint_every",
                "keep_latest",
                "keep_best",
                "profile_steps",
            ),
        ):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("patience", "keep_every", "profile_step"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, value, "at least 1, or None")
        for name in (
            "warmup_steps",
            "cooldown_steps",
            "seed",
            "weight_decay",
            "z_loss",
            "r_drop",
        ):
            _check(
                0 <= getattr(self, name) < math.inf,
                name,
                getattr(self, name),
                "at least 0 and finite",
            )
        for name in ("learning_rate", "adam_epsilon", "loss_scale", "stall_seconds"):
            _check(
                0.0 < getattr(self, name) < math.inf,
                name,
                getattr(self, name),
                "above 0 and finite",
            )
        _check(
            self.gradient_clip is None or self.gradient_clip > 0.0,
            "gradient_clip",
            self.gradient_clip,
            "above 0",
        )
        for name in ("adam_b1", "adam_b2", "label_smoothing", "ema_decay"):
            value = getattr(self, name)
            _check(
                value is None or 0.0 <= value < 1.0,
                name,
                value,
                "at least 0 and below 1",
            )
        check_most(self, MOST, "training.")
        for name, choices in (
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("engine", ENGINES),
            ("smoothing_convention", SMOOTHING_CONVENTIONS),
            ("on_failed_save", ON_FAILED_SAVE),
        ):
            _check(
                getattr(self, name) in choices,
                name,
                repr(getattr(self, name)),
                f"one of {', '.join(choices)}",
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.weight_decay and self.optimizer == "adam":
            raise InputError(
                f"training.weight_decay={self.weight_decay} needs decoupled decay, and"
                " training.optimizer=adam has none: set training.optimizer=adamw"
            )
        if self.cooldown_steps and self.schedule in ("linear", "cosine"):
            raise InputError(
                f"training.schedule={self.schedule} falls to 0 by itself: set"
                " training.cooldown_steps=0, or another schedule"
            )
        falls = self.cooldown_steps > 0 or self.schedule in ("linear", "cosine")
        if falls and self.warmup_steps + self.cooldown_steps > self.steps:
            raise InputError(
                f"training.warmup_steps={self.warmup_steps} and"
                f" training.cooldown_steps={self.cooldown_steps} are more than"
                f" training.steps={self.steps}: lower them, or train longer"
            )
        if self.engine != "mesh" and (
            self.mesh_fsdp > 1 or self.mesh_tensor > 1 or self.shard_moments
        ):
            raise InputError(
                "training.mesh_fsdp, training.mesh_tensor and training.shard_moments"
                " are of the mesh: set training.engine=mesh"
            )
        if self.initial_optimizer and self.initial_run is None:
            raise InputError(
                "training.initial_optimizer=True needs training.initial_run: name the"
                " run to start from"
            )


def _check(condition: bool, key: str, value: object, rule: str) -> None:
    if not condition:
        raise InputError(f"training.{key} must be {rule}, not {value}")
