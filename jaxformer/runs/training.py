"""The section ``training`` of a configuration."""

from __future__ import annotations

import dataclasses
import functools

from jaxformer.errors import InputError, check_keys, key
from jaxformer.functional.losses import SMOOTHING_CONVENTIONS

SCHEDULES = ("paper", "inverse_sqrt", "linear", "cosine", "constant")
OPTIMIZERS = ("adam", "adamw", "adafactor", "lion", "muon", "sgd")
OBJECTIVES = (
    *("translation", "causal", "masked", "masked_and_next"),
    *("classification", "regression", "tagging", "span"),
)
ENGINES = ("auto", "jit", "pmap", "mesh")
INITIALIZERS = ("glorot", "normal", "normal_residual")

WITHOUT_TERMS = {
    "regression": ("label_smoothing", "z_loss", "r_drop"),
    "span": ("label_smoothing",),
}
"""Terms of the loss that an objective does not have: a number has no distribution, and
the positions of a span include padding, which must get no probability.
"""

MOST_COUNTED, MOST_MEASURED = 10**9, 1e30
"""Greatest counts and measures: 32-bit integers and floats hold them."""

# Keys that a resumed run may change since they change no result.
_free = functools.partial(key, changes="speed", may_change=True)
_count = functools.partial(_free, least=1, most=MOST_COUNTED)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained; the defaults are the paper's (Vaswani et al. 2017,
    section 5).

    Raises:
        InputError: a value out of range, or values that contradict each other.
    """

    # What is minimised: translation; causal (each word from those before it) for a
    # decoder-only model; masked (words from those around them), masked_and_next (also
    # whether a text follows another, Devlin et al. 2019), classification, regression,
    # tagging or span for an encoder-only one.
    objective: str = key("translation", choices=OBJECTIVES)
    # Share of the words of a text that masked and masked_and_next predict.
    mask_rate: float = key(0.15, above=0, below=1)
    # How parameters are drawn: glorot (kernels uniform by their fans, embeddings of
    # deviation d_model^-0.5), normal (deviation 0.02, Devlin et al. 2019) or
    # normal_residual (as normal, and kernels that write into the residual stream
    # divided by the square root of their number, Radford et al. 2019).
    initializer: str = key("glorot", choices=INITIALIZERS)

    # Updates of the parameters.
    steps: int = key(100_000, least=1, most=MOST_COUNTED, may_change=True)

    # Schedule of the learning rate: paper (d_model^-0.5 * min(step^-0.5, step *
    # warmup_steps^-1.5)), or linear warm-up to the peak rate and then inverse_sqrt
    # (of the step), linear or cosine (to 0 at training.steps) or constant.
    schedule: str = key("paper", choices=SCHEDULES)
    # Factor on the paper's schedule; the peak rate of any other schedule.
    learning_rate: float = key(1.0, above=0, most=MOST_MEASURED)
    # Steps over which the learning rate rises linearly.
    warmup_steps: int = key(4_000, least=0, most=MOST_COUNTED)
    # Last steps over which the rate falls linearly to 0 (paper, inverse_sqrt and
    # constant).
    cooldown_steps: int = key(0, least=0, most=MOST_COUNTED, may_change=True)

    # adam (section 5.3), adamw, adafactor, lion, muon or sgd.
    optimizer: str = key("adam", choices=OPTIMIZERS)
    # Decay rates of the moments and Adam's epsilon (section 5.3); Lion uses the decay
    # rates, Adafactor none of them.
    adam_b1: float = key(0.9, least=0, below=1)
    adam_b2: float = key(0.98, least=0, below=1)
    adam_epsilon: float = key(1e-9, above=0, most=MOST_MEASURED)
    # Momentum of sgd and muon; 0: plain gradient descent.
    momentum: float = key(0.9, least=0, below=1)
    # Decoupled weight decay of all optimizers but adam, on kernels and embeddings.
    weight_decay: float = key(0.0, least=0, most=MOST_MEASURED)
    # Greatest global norm of the gradient; None: no clipping.
    gradient_clip: float | None = key(None, above=0, most=MOST_MEASURED)
    # Decay of a moving average of the parameters, which is then evaluated, kept and
    # used to translate.
    ema_decay: float | None = key(None, least=0, below=1)
    # Parameters that are not trained: patterns of their paths, separated by commas,
    # such as encoder/*,embedding/*.
    frozen: str | None = key(None)
    # LoRA (Hu et al. 2021): only adapters of this rank are trained, next to the kernels
    # of training.initial_run that match a pattern, by default those that the paper
    # chooses (section 4.2); None: no adapters. Their product is scaled by alpha / rank.
    lora_rank: int | None = key(None, least=1, most=MOST_COUNTED)
    lora_alpha: float = key(16.0, above=0, most=MOST_MEASURED)
    lora_kernels: str = key("*/query/kernel,*/value/kernel")
    # Probability that the adapter of a kernel does not see an input feature in a step.
    lora_dropout: float = key(0.0, least=0, below=1)

    # Probability that label smoothing takes from the true token (section 5.4), and the
    # tokens that share it: others (the V - 1 other tokens, tensor2tensor) or all (all V
    # tokens, Szegedy et al. 2016). regression and span need 0.
    label_smoothing: float = key(0.1, least=0, below=1)
    smoothing_convention: str = key("others", choices=SMOOTHING_CONVENTIONS)
    # Weight of the squared logarithm of the softmax's denominator, a token (Chowdhery
    # et al. 2022).
    z_loss: float = key(0.0, least=0, most=MOST_MEASURED)
    # Weight of the divergence between two passes with different dropout (R-Drop, Wu et
    # al. 2021); 0: one pass.
    r_drop: float = key(0.0, least=0, most=MOST_MEASURED)
    # Micro-batches of each batch, to save memory; their gradients are summed before
    # the update.
    accumulation_steps: int = _free(1, least=1, most=10**6)

    # Seed of parameters, dropout and data order.
    seed: int = key(0, least=0, most=2**32 - 1)
    # Directory of a run whose best checkpoint initialises training, with or without
    # its optimizer state.
    initial_run: str | None = key(None)
    initial_optimizer: bool = key(False)

    # auto (pmap with several devices, jit with one), jit (one device), pmap (parameters
    # replicated over the devices of all hosts) or mesh (parameters sharded over them).
    engine: str = _free("auto", choices=ENGINES)
    # Devices of the mesh over which parameters are sharded (fsdp), and over which each
    # layer's heads and hidden units are (tensor). The batch is split over all devices
    # but those of tensor.
    mesh_fsdp: int = _free(1, least=1, most=10**6)
    mesh_tensor: int = _free(1, least=1, most=10**6)
    # Whether the mesh shards the optimizer's moments over the data axis too (ZeRO).
    shard_moments: bool = _free(False)
    # Whether a step on a GPU gives equal bits whenever it is repeated, which may be
    # slower; on other devices it changes nothing.
    deterministic: bool = _free(False)
    # First scale of the loss under model.dtype=float16.
    loss_scale: float = key(32_768.0, above=0, most=MOST_MEASURED, changes="speed")
    # Consecutive steps with a loss or gradient that is not finite before the run stops;
    # such steps change nothing.
    max_bad_steps: int = _count(10)

    # Steps between lines of the log, between evaluations, and between checkpoints;
    # evaluations save checkpoints too.
    log_every: int = _count(100)
    evaluate_every: int = _count(5_000)
    checkpoint_every: int = _count(1_000)
    # Evaluations without a better evaluation.best_metric before training ends; None:
    # no early stopping.
    patience: int | None = key(None, least=1, most=MOST_COUNTED, may_change=True)
    # Checkpoints to keep: the latest, the best by evaluation.best_metric, and those of
    # every k-th step (None: no others).
    keep_latest: int = _count(2)
    keep_best: int = _count(1)
    keep_every: int | None = _count(None)

    # First step of a profiler trace of 5 steps, written to profile/ in the run's
    # directory; None: no trace.
    profile_step: int | None = _count(None)
    # Project on Weights & Biases that gets the metrics too; None: none.
    wandb_project: str | None = _free(None)

    @property
    def masks(self) -> bool:
        """Whether words are masked and predicted."""
        return self.objective in ("masked", "masked_and_next")

    @property
    def predicts_words(self) -> bool:
        """Whether the loss is that of words, and not only of labels."""
        return self.masks or self.objective in ("translation", "causal")

    @property
    def fixes_steps(self) -> bool:
        """Whether the rates fall to 0 at the last step, and so depend on its number."""
        return self.schedule in ("linear", "cosine")

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("training", self)
        if self.weight_decay and self.optimizer == "adam":
            raise InputError(
                f"training.weight_decay={self.weight_decay} needs decoupled decay, and"
                " training.optimizer=adam has none: set training.optimizer=adamw"
            )
        if self.cooldown_steps and self.fixes_steps:
            raise InputError(
                f"training.schedule={self.schedule} falls to 0 by itself: set"
                " training.cooldown_steps=0, or another schedule"
            )
        if self.cooldown_steps and (
            self.warmup_steps + self.cooldown_steps > self.steps
        ):
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
        for name in WITHOUT_TERMS.get(self.objective, ()):
            if getattr(self, name):
                raise InputError(
                    f"training.{name}={getattr(self, name)} is not for"
                    f" training.objective={self.objective}: set training.{name}=0"
                )
        self._check_lora()

    def _check_lora(self) -> None:
        if self.lora_rank is None:
            for name in ("lora_alpha", "lora_kernels", "lora_dropout"):
                if getattr(self, name) != getattr(TrainingConfig, name):
                    raise InputError(
                        f"training.{name}={getattr(self, name)} is of adapters: set"
                        " training.lora_rank"
                    )
            return
        if self.initial_run is None:
            raise InputError(
                f"training.lora_rank={self.lora_rank} adapts a trained model: name its"
                " run as training.initial_run"
            )
        if self.initial_optimizer:
            raise InputError(
                f"training.lora_rank={self.lora_rank} trains none of the parameters"
                " that training.initial_optimizer=True has moments of: leave one out"
            )
        if self.frozen is not None:
            raise InputError(
                f"training.lora_rank={self.lora_rank} trains only adapters: leave out"
                f" training.frozen={self.frozen}, and choose kernels by"
                " training.lora_kernels"
            )
