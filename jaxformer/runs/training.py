"""The section ``training`` of a configuration: how a model is trained, on what
devices, and what is kept of it.
"""

from __future__ import annotations

import dataclasses

from jaxformer.errors import InputError, check_keys, key
from jaxformer.functional.losses import SMOOTHING_CONVENTIONS

SCHEDULES = ("paper", "inverse_sqrt", "linear", "cosine", "constant")
OPTIMIZERS = ("adam", "adamw", "adafactor", "lion")
ENGINES = ("auto", "jit", "pmap", "mesh")
ON_FAILED_SAVE = ("stop", "continue")

MOST_COUNTED, MOST_MEASURED = 10**9, 1e30
"""Greatest counts and measures: 32-bit integers and floats hold them."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained; the defaults are the paper's (Vaswani et al. 2017,
    section 5).

    Raises:
        InputError: a value out of range, or values that do not go together.
    """

    # Updates of the parameters.
    steps: int = key(100_000, least=1, most=MOST_COUNTED, may_change=True)

    # The learning rate: paper (d_model^-0.5 * min(step^-0.5, step *
    # warmup_steps^-1.5)), or a linear warm-up to the highest rate and then inverse_sqrt
    # (falls with the inverse square root of the step), linear or cosine (fall to 0 at
    # training.steps) or constant.
    schedule: str = key("paper", choices=SCHEDULES)
    # Factor on the paper's schedule; with any other the highest rate itself.
    learning_rate: float = key(1.0, above=0, most=MOST_MEASURED)
    # Steps over which the learning rate rises linearly.
    warmup_steps: int = key(4_000, least=0, most=MOST_COUNTED)
    # Last steps over which the rate falls linearly to 0 whatever the schedule (paper,
    # inverse_sqrt and constant).
    cooldown_steps: int = key(0, least=0, most=MOST_COUNTED, may_change=True)

    # adam (section 5.3), adamw, adafactor or lion.
    optimizer: str = key("adam", choices=OPTIMIZERS)
    # Decay rates of the moments and Adam's epsilon (section 5.3); Lion has the decay
    # rates, Adafactor none of them.
    adam_b1: float = key(0.9, least=0, below=1)
    adam_b2: float = key(0.98, least=0, below=1)
    adam_epsilon: float = key(1e-9, above=0, most=MOST_MEASURED)
    # Decoupled weight decay of adamw, adafactor and lion, on kernels and embeddings.
    weight_decay: float = key(0.0, least=0, most=MOST_MEASURED)
    # Largest global norm of the gradient; None: it is not clipped.
    gradient_clip: float | None = key(None, above=0, most=MOST_MEASURED)
    # Decay of a moving average of the parameters, which is then what is evaluated, kept
    # and translated with.
    ema_decay: float | None = key(None, least=0, below=1)
    # Parameters that stay as they are: patterns of their paths, separated by commas,
    # such as encoder/*,embedding/*.
    frozen: str | None = key(
        None,
    )

    # Probability that label smoothing takes from the true token (section 5.4), and who
    # gets it: others (the V - 1 other tokens, tensor2tensor) or all (all V tokens,
    # Szegedy et al. 2016).
    label_smoothing: float = key(0.1, least=0, below=1)
    smoothing_convention: str = key("others", choices=SMOOTHING_CONVENTIONS)
    # Weight of the squared logarithm of the softmax's denominator, a token (Chowdhery
    # et al. 2022).
    z_loss: float = key(0.0, least=0, most=MOST_MEASURED)
    # Weight of the divergence between two passes with different dropout (R-Drop, Wu et
    # al. 2021); 0: one pass.
    r_drop: float = key(0.0, least=0, most=MOST_MEASURED)
    # Parts into which each batch is cut to need less memory; their gradients are added
    # before the update.
    accumulation_steps: int = key(
        1, least=1, most=10**6, changes="speed", may_change=True
    )

    # Seed of parameters, dropout and data order.
    seed: int = key(0, least=0, most=2**32 - 1)
    # The directory of a run whose best checkpoint the training starts from, with its
    # optimizer or without.
    initial_run: str | None = key(
        None,
    )
    initial_optimizer: bool = key(
        False,
    )

    # auto (pmap with several devices, jit with one), jit (one device), pmap (replicated
    # over the devices of all hosts) or mesh (parameters sharded over the devices of all
    # hosts).
    engine: str = key("auto", choices=ENGINES, changes="speed", may_change=True)
    # Of the mesh: over how many devices parameters are sharded (fsdp), and over how
    # many each layer's heads and hidden units (tensor); the batch is shared by all
    # devices but those of tensor.
    mesh_fsdp: int = key(1, least=1, most=10**6, changes="speed", may_change=True)
    mesh_tensor: int = key(1, least=1, most=10**6, changes="speed", may_change=True)
    # Whether the optimizer's moments are sharded over the data axis too (ZeRO), on a
    # mesh.
    shard_moments: bool = key(False, changes="speed", may_change=True)
    # First scale of the loss under model.dtype=float16.
    loss_scale: float = key(32_768.0, above=0, most=MOST_MEASURED, changes="speed")
    # Steps in a row whose loss or gradient is not finite (they change nothing) before
    # the run stops.
    max_bad_steps: int = key(
        10, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )

    # Steps between lines of the log, between evaluations, and between checkpoints
    # besides those of evaluations.
    log_every: int = key(
        100, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    evaluate_every: int = key(
        5_000, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    checkpoint_every: int = key(
        1_000, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    # Evaluations without a better score by evaluation.best_metric before training ends;
    # None: it does not end so.
    patience: int | None = key(None, least=1, most=MOST_COUNTED, may_change=True)
    # Checkpoints that are kept: the latest, the best by evaluation.best_metric, and
    # every k-th step (None: no more).
    keep_latest: int = key(
        2, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    keep_best: int = key(
        1, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    keep_every: int | None = key(
        None, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    # Whether to stop when a checkpoint cannot be saved, or to continue with the last
    # good one.
    on_failed_save: str = key(
        "stop", choices=ON_FAILED_SAVE, changes="speed", may_change=True
    )

    # First step of a profiler trace, written to profile/ in the run's directory (None:
    # none), and how many it holds.
    profile_step: int | None = key(
        None, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    profile_steps: int = key(
        5, least=1, most=MOST_COUNTED, changes="speed", may_change=True
    )
    # Seconds without a batch before the log says that training waits for its data.
    stall_seconds: float = key(
        60.0, above=0, most=1e9, changes="speed", may_change=True
    )
    # Project on Weights & Biases that gets the metrics too; None: none.
    wandb_project: str | None = key(None, changes="speed", may_change=True)

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("training", self)
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
