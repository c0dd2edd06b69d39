"""Checks of the configuration against the paper's recipe (Vaswani et al. 2017, section
5).

The paper's figures bind models of its width. For narrower models they are shown, and
only values that harm any model are worth a look.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from jaxformer.data.mixing import parse
from jaxformer.data.sources import IMPORTED
from jaxformer.diagnosis.evidence import Evidence, UnseenError
from jaxformer.diagnosis.findings import Finding, Verdict, judge
from jaxformer.models.config import TransformerConfig
from jaxformer.paper.tables import BASE, LEARNING_KEYS
from jaxformer.runs.config import RunConfig
from jaxformer.runs.training import WITHOUT_TERMS, TrainingConfig
from jaxformer.training.schedules import make_schedule

_WIDTH, _BATCH = int(BASE["model.d_model"]), int(BASE["data.tokens_per_batch"])
_STEPS, _WARMUP = int(BASE["training.steps"]), int(BASE["training.warmup_steps"])
# Above it Adam trained no Transformer of any width that was tried.
_HIGHEST_RATE = 0.01
# Sizes and epsilon are not judged, and `regularization` judges the dropout rate.
_ARCHITECTURE = [
    field.name
    for field in dataclasses.fields(TransformerConfig)
    if field.metadata["changes"] == "result"
    and type(field.default) in (str, bool, float)
    and field.name not in ("dropout_rate", "norm_epsilon")
]
# Other checks judge the rate and averages.
_OPTIMIZER = [
    key
    for key in LEARNING_KEYS
    if key not in ("schedule", "learning_rate", "ema_decay")
]


def is_paper_sized(config: RunConfig) -> bool:
    """Return whether the model is at least as wide as the paper's base model."""
    return config.model.d_model >= _WIDTH


def name_width(config: RunConfig) -> str:
    """Return a note that a figure of the paper does not bind a narrower model."""
    width = config.model.d_model
    return "" if is_paper_sized(config) else f"; not asked of width {width}"


def is_imported(config: RunConfig) -> bool:
    """Return whether a run was imported."""
    return config.data.train.startswith(IMPORTED)


def is_given(config: RunConfig) -> bool:
    """Return whether model and vocabulary are imported or those of another run."""
    return is_imported(config) or config.training.initial_run is not None


def on_trained(check: Callable[[Evidence], Finding]) -> Callable[[Evidence], Finding]:
    """Return a check of the training that does not see imported runs, which have had
    none here.
    """

    def see(run: Evidence) -> Finding:
        if is_imported(run.config):
            raise UnseenError("how an imported model was trained is not in the run")
        return check(run)

    return see


def check_batch(run: Evidence) -> Finding:
    """Compare the tokens of a batch with the paper's (section 5.1)."""
    tokens = run.config.data.tokens_per_batch
    few = is_paper_sized(run.config) and tokens < 0.8 * _BATCH
    return judge(
        "look" if few else "ok",
        f"at most {tokens:,} token slots a side in a batch, all devices together",
        f"about {_BATCH:,} a side for the paper's models, all devices together"
        " (paper, section 5.1)" + name_width(run.config),
        f"--config.data.tokens_per_batch={_BATCH}; where memory is short,"
        " --config.training.accumulation_steps=4",
    )


def check_warm_up(run: Evidence) -> Finding:
    """Check the steps of warm-up: enough for post-LN, and not most of training."""
    training, order = run.config.training, run.config.model.norm_order
    warmup, steps = training.warmup_steps, training.steps
    least = 0 if order != "post" else 1_000 if is_paper_sized(run.config) else 1
    verdict: Verdict = "look" if warmup > steps / 2 or warmup < least else "ok"
    return judge(
        "wrong" if warmup >= steps else verdict,
        f"{warmup:,} of {steps:,} steps, {order}-LN",
        f"{_WARMUP:,} of {_STEPS:,} for the paper's base model (paper, section 5.3),"
        " and less than the steps",
        f"--config.training.warmup_steps={min(_WARMUP, max(steps // 4, 1))} in a new"
        " --workdir",
    )


def check_peak_rate(run: Evidence) -> Finding:
    """Check the highest learning rate of the schedule."""
    training, width = run.config.training, run.config.model.d_model
    reached = max(min(training.warmup_steps, training.steps) - 1, 0)
    peak = float(make_schedule(training, width)(reached))
    paper = (width * _WARMUP) ** -0.5
    # Within a factor of two and rounding: the parser's warm-up, four times as long,
    # halves the rate.
    far = is_paper_sized(run.config) and not 0.49 <= peak / paper <= 2.04
    high = peak > _HIGHEST_RATE and training.optimizer not in ("adafactor", "sgd")
    return judge(
        "look" if far or high else "ok",
        f"highest rate {peak:.2e} ({training.schedule}, factor"
        f" {training.learning_rate:g})",
        f"{paper:.2e} by the paper's schedule at width {width} with {_WARMUP:,}"
        " steps of warm-up (equation 3)" + name_width(run.config),
        "--config.training.schedule=paper --config.training.learning_rate=1.0 "
        f"--config.training.warmup_steps={_WARMUP} in a new --workdir",
    )


def check_regularization(run: Evidence) -> Finding:
    """Check dropout and label smoothing."""
    objective = run.config.training.objective
    if "label_smoothing" in WITHOUT_TERMS.get(objective, ()):
        raise UnseenError(f"training.objective={objective} takes no label smoothing")
    dropout = run.config.model.dropout_rate
    smoothing = run.config.training.label_smoothing
    strong = is_paper_sized(run.config) and max(dropout, smoothing) > 0.3
    return judge(
        "look" if not dropout or not smoothing or strong else "ok",
        f"dropout {dropout:g}, label smoothing {smoothing:g}",
        "dropout 0.1 (0.3 for big En-De), smoothing 0.1 (paper, section 5.4); base"
        " without dropout -1.2 BLEU, without smoothing -0.5 (Table 3, D)",
        "--config.model.dropout_rate=0.1 --config.training.label_smoothing=0.1 in a new"
        " --workdir",
    )


def check_optimizer(run: Evidence) -> Finding:
    """List the differences from the paper's Adam."""
    training = run.config.training
    others = write_differences(
        (name, getattr(training, name), getattr(TrainingConfig, name))
        for name in _OPTIMIZER
    )
    return judge(
        "look" if others and not is_given(run.config) else "ok",
        others or "Adam with 0.9, 0.98, 1e-9, no decay and no clipping",
        "Adam with 0.9, 0.98, 1e-9 (paper, section 5.3); what others cost or gain is"
        f" not known in general{_name_given(run.config)}",
        "first compare with a run of the paper's values",
    )


def check_architecture(run: Evidence) -> Finding:
    """List the differences from the paper's architecture, apart from sizes."""
    model = run.config.model
    others = write_differences(
        (name, getattr(model, name), getattr(TransformerConfig, name))
        for name in _ARCHITECTURE
    )
    return judge(
        "look" if others and not is_given(run.config) else "ok",
        f"{model.num_encoder_layers}+{model.num_decoder_layers} layers of width"
        f" {model.d_model}, {others or 'otherwise as the paper'}",
        "post-LN, ReLU, sinusoids, one tied embedding (paper, section 3); base is 6+6"
        f" of 512, and 2+2 of it cost 2.1 BLEU (Table 3, C){_name_given(run.config)}",
        "first compare with a run of the paper's values",
    )


def _name_given(config: RunConfig) -> str:
    return "; not asked of a model that was given" if is_given(config) else ""


def check_selection(run: Evidence) -> Finding:
    """Check by name that the test set neither trained the model nor chose the
    checkpoint.

    The checkpoint of the last step was not chosen: the set of Table 3 validates too.
    """
    data = run.config.data
    train, valid, test = (
        [part.name for part in parse(name, data.source_language, data.target_language)]
        for name in (data.train, data.valid, data.test)
    )
    found = [
        f"data.{key} is part of data.train"
        for key, names in (("valid", valid), ("test", test))
        if names[0] in train
    ]
    verdict: Verdict = "wrong" if found else "ok"
    if valid[0] == test[0]:
        last = run.config.training.steps
        chosen = run.name is not None and run.record.get("checkpoint") != last
        verdict = "wrong" if found or chosen else "look"
        found.append(
            "data.valid is data.test, which"
            f" {'so chose' if chosen else 'must not choose'} the checkpoint"
        )
    return judge(
        verdict,
        "; ".join(found)
        or "three data sets to train, to choose (by"
        f" {run.config.evaluation.best_metric}) and to test",
        "newstest2013 to choose, newstest2014 to test, neither in the training text"
        " (paper, section 6.1)",
        "name other text in data.valid or data.train, or the score is too high; where"
        " one set does both, as in Table 3, score the last step: --checkpoint=latest",
    )


def write_differences(
    values: Iterable[tuple[str, object, object]], whose: str = "paper"
) -> str:
    """List the names whose first value differs from the second, the paper's."""
    return ", ".join(
        f"{name}={found} ({whose}: {wanted})"
        for name, found, wanted in values
        if found != wanted
    )
