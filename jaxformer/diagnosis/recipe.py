"""Checks of the configuration against the paper's recipe (Vaswani et al. 2017, section
5).

What the paper says of its own models binds a model of their width. Of smaller ones
nobody measured it: there the value is told, and only what harms any model is worth a
look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxformer.data.mixing import parse
from jaxformer.diagnosis.findings import Opinion, Verdict, judge
from jaxformer.models.config import TransformerConfig
from jaxformer.paper.tables import BASE, LEARNING_KEYS
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Curve
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.schedules import make_schedule

PAPER_WIDTH, PAPER_BATCH, PAPER_STEPS, PAPER_WARMUP = (
    int(BASE[key])
    for key in (
        "model.d_model",
        "data.tokens_per_batch",
        "training.steps",
        "training.warmup_steps",
    )
)
"""Those of the base model; models at least as wide are held against the paper's
figures.
"""

# beyond it Adam does not train a Transformer of any width that was tried
_HIGHEST_RATE = 0.01
_ARCHITECTURE = (
    *(
        "norm_order",
        "activation",
        "positions",
        "tied_embeddings",
        "scale_embedding",
        "output_bias",
    ),
    *("attention_dropout_rate", "activation_dropout_rate"),
)
# `peak rate` judges the first two, and `averaging` the third.
_OPTIMIZER = tuple(
    key
    for key in LEARNING_KEYS
    if key not in ("schedule", "learning_rate", "ema_decay")
)


def is_paper_sized(config: RunConfig) -> bool:
    """Return whether the model is as wide as the paper's base model."""
    return config.model.d_model >= PAPER_WIDTH


def batch(config: RunConfig) -> Opinion:
    """Hold the tokens of a batch against the paper's, of all devices together
    (section 5.1).
    """
    tokens = config.data.tokens_per_batch
    few = is_paper_sized(config) and tokens < 0.8 * PAPER_BATCH
    return judge(
        "look" if few else "ok",
        f"at most {tokens:,} token slots a side in a batch, all devices together",
        f"about {PAPER_BATCH:,} a side for the paper's models, all devices together"
        " (paper, section 5.1)" + not_asked(config),
        f"--config.data.tokens_per_batch={PAPER_BATCH}; where memory is short,"
        " --config.training.accumulation_steps=4",
    )


def tokens_seen(config: RunConfig, curves: Mapping[str, Curve]) -> Opinion:
    """Hold the target tokens that training saw against the paper's 100,000 batches
    of 25,000.
    """
    seen = sum(value for _, value in curves.get("train/tokens", ()))
    if not seen:
        return Opinion("unseen", "metrics.jsonl has no train/tokens")
    few = is_paper_sized(config) and seen < 0.5 * PAPER_STEPS * PAPER_BATCH
    return judge(
        "look" if few else "ok",
        f"{seen:,.0f} target tokens seen",
        f"{PAPER_STEPS * PAPER_BATCH:,} for the paper's base model, three times as many"
        " for big (paper, section 5.2)" + not_asked(config),
        "train for more steps (--config.training.steps), or in larger batches",
    )


def warm_up(config: RunConfig) -> Opinion:
    """Judge the steps of warm-up: the paper's 4,000, at least some for post-LN, and
    not most of training.
    """
    training, post = config.training, config.model.norm_order == "post"
    verdict: Verdict = "ok"
    if training.warmup_steps >= training.steps:
        verdict = "wrong"
    elif training.warmup_steps > training.steps / 2 or (
        post and training.warmup_steps < (1_000 if is_paper_sized(config) else 1)
    ):
        verdict = "look"
    return judge(
        verdict,
        f"{training.warmup_steps:,} of {training.steps:,} steps,"
        f" {config.model.norm_order}-LN",
        f"{PAPER_WARMUP:,} of {PAPER_STEPS:,} for the paper's base model (paper,"
        " section 5.3), and less than the steps",
        f"--config.training.warmup_steps={min(PAPER_WARMUP, max(training.steps // 4, 1))}"
        " in a new --workdir",
    )


def peak_rate(config: RunConfig) -> Opinion:
    """Judge the highest learning rate that the schedule reaches."""
    training, width = config.training, config.model.d_model
    reached = max(min(training.warmup_steps, training.steps) - 1, 0)
    peak, paper = (
        float(make_schedule(training, width)(reached)),
        (width * PAPER_WARMUP) ** -0.5,
    )
    # Twice and half, with room for rounding: four times the steps of warm-up, as a
    # parser has, are half the rate.
    far = is_paper_sized(config) and not 0.49 <= peak / paper <= 2.04
    return judge(
        (
            "look"
            if far or (peak > _HIGHEST_RATE and training.optimizer != "adafactor")
            else "ok"
        ),
        f"highest rate {peak:.2e} ({training.schedule}, factor"
        f" {training.learning_rate:g})",
        f"{paper:.2e} by the paper's schedule at width {width} with {PAPER_WARMUP:,}"
        " steps of warm-up (equation 3)" + not_asked(config),
        "--config.training.schedule=paper --config.training.learning_rate=1.0 "
        f"--config.training.warmup_steps={PAPER_WARMUP} in a new --workdir",
    )


def regularization(config: RunConfig) -> Opinion:
    """Judge dropout and label smoothing."""
    dropout, smoothing = config.model.dropout_rate, config.training.label_smoothing
    return judge(
        (
            "look"
            if not dropout
            or not smoothing
            or (is_paper_sized(config) and max(dropout, smoothing) > 0.3)
            else "ok"
        ),
        f"dropout {dropout:g}, label smoothing {smoothing:g}",
        "dropout 0.1 (0.3 for big En-De), smoothing 0.1 (paper, section 5.4); base"
        " without dropout -1.2 BLEU, without smoothing -0.5 (Table 3, D)",
        "--config.model.dropout_rate=0.1 --config.training.label_smoothing=0.1 in a new"
        " --workdir",
    )


def optimizer(config: RunConfig) -> Opinion:
    """List what differs from the paper's Adam."""
    others = _others(config.training, TrainingConfig(), _OPTIMIZER)
    return judge(
        "look" if others else "ok",
        others or "Adam with 0.9, 0.98, 1e-9, no decay and no clipping",
        "Adam with 0.9, 0.98, 1e-9 (paper, section 5.3); what others cost or gain is"
        " not known in general",
        "compare with a run of the paper's values before you blame anything else",
    )


def architecture(config: RunConfig) -> Opinion:
    """List what differs from the paper's kind of model, its size aside."""
    model, default = config.model, TransformerConfig()
    others = _others(model, default, _ARCHITECTURE)
    size = (
        f"{model.num_encoder_layers}+{model.num_decoder_layers} layers of width"
        f" {model.d_model}"
    )
    return judge(
        "look" if others else "ok",
        f"{size}, {others or 'otherwise as the paper'}",
        "post-LN, ReLU, sinusoids, one tied embedding (paper, section 3); base is 6+6"
        " of 512, and 2+2 of it cost 2.1 BLEU (Table 3, C)",
        "compare with a run of the paper's values before you blame anything else",
    )


def selection(config: RunConfig, chosen: bool) -> Opinion:
    """Refuse a test set that chose the checkpoint, or was trained on, by its name.

    Args:
        config: of the run.
        chosen: whether what was scored may have been chosen; the checkpoint of the last
            step is not, as in Table 3, whose set validates too.
    """
    data = config.data
    trained = {
        part.name
        for part in parse(data.train, data.source_language, data.target_language)
    }
    names = {
        key: (
            parse(getattr(data, key), data.source_language, data.target_language)[
                0
            ].name
        )
        for key in ("valid", "test")
    }
    found = [
        f"data.{key} is part of data.train"
        for key, name in names.items()
        if name in trained
    ]
    verdict: Verdict = "wrong" if found else "ok"
    if names["valid"] == names["test"]:
        verdict = "wrong" if found or chosen else "look"
        found.append(
            "data.valid is data.test, which"
            f" {'so chose' if chosen else 'must not choose'} the checkpoint"
        )
    return judge(
        verdict,
        "; ".join(found)
        or f"three data sets to train, to choose (by {config.evaluation.best_metric}) and to test",
        "newstest2013 to choose, newstest2014 to test, neither in the training text"
        " (paper, section 6.1)",
        "name other text in data.valid or data.train, or the score is higher than it"
        " should be; where one set does both, as in Table 3, score the last step:"
        " --checkpoint=latest",
    )


def not_asked(config: RunConfig) -> str:
    """Say of a figure of the paper's that it does not bind a model of this width."""
    return (
        "" if is_paper_sized(config) else f"; not asked of width {config.model.d_model}"
    )


def _others(section: object, default: object, names: tuple[str, ...]) -> str:
    """Word those values that differ from the defaults, which are the paper's."""
    found, paper = dataclasses.asdict(section), dataclasses.asdict(default)  # type: ignore[call-overload]
    return ", ".join(
        f"{name}={found[name]} (paper: {paper[name]})"
        for name in names
        if found[name] != paper[name]
    )
