"""The configuration of a run: five frozen sections, every key known and every value checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxformer.data.config import DataConfig
from jaxformer.decoding.config import DecodingConfig
from jaxformer.errors import InputError, require
from jaxformer.functional.losses import SMOOTHING_CONVENTIONS
from jaxformer.models.config import TransformerConfig

ENGINES = ("auto", "jit", "pmap")
BEST_METRICS = ("bleu", "chrf", "loss")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """How a model is trained; the defaults are the paper's (Vaswani et al. 2017, section 5).

    Raises:
        InputError: a value out of range.
    """

    # Updates of the parameters.
    steps: int = 100_000
    # Factor on the paper's schedule d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).
    learning_rate: float = 1.0
    # Steps over which the learning rate rises linearly.
    warmup_steps: int = 4_000
    # Adam's decay rates and epsilon (section 5.3).
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_epsilon: float = 1e-9
    # Probability that label smoothing takes from the true token (section 5.4), and who gets it: others (the V - 1 other
    # tokens, tensor2tensor) or all (all V tokens, Szegedy et al. 2016).
    label_smoothing: float = 0.1
    smoothing_convention: str = "others"
    # Seed of parameters, dropout and data order.
    seed: int = 0
    # auto (pmap with several devices, jit with one), jit (one device) or pmap (replicated over all local devices).
    engine: str = "auto"
    # Steps between lines of the log, between evaluations, and between checkpoints besides those of evaluations.
    log_every: int = 100
    evaluate_every: int = 5_000
    checkpoint_every: int = 1_000
    # Checkpoints that are kept: the latest, and the best by evaluation.best_metric.
    keep_latest: int = 2
    keep_best: int = 1

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("steps", "log_every", "evaluate_every", "checkpoint_every", "keep_latest", "keep_best"):
            _check(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "at least 1")
        _check(self.warmup_steps >= 0, "training.warmup_steps", self.warmup_steps, "at least 0")
        _check(self.seed >= 0, "training.seed", self.seed, "at least 0")
        for name in ("learning_rate", "adam_epsilon"):
            _check(getattr(self, name) > 0.0, f"training.{name}", getattr(self, name), "above 0")
        for name in ("adam_b1", "adam_b2", "label_smoothing"):
            value = getattr(self, name)
            _check(0.0 <= value < 1.0, f"training.{name}", value, "at least 0 and below 1")
        _check_choice("training.engine", self.engine, ENGINES)
        _check_choice("training.smoothing_convention", self.smoothing_convention, SMOOTHING_CONVENTIONS)


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """How a run is validated while it trains.

    Raises:
        InputError: a value out of range.
    """

    # Validation sentences translated at each evaluation; None: all of them.
    max_sentences: int | None = None
    # Beam of those translations; 1 is greedy search. The final scores use decoding.beam_size.
    beam_size: int = 1
    # How many of the translations samples.jsonl keeps.
    samples: int = 5
    # What makes a checkpoint the best: bleu, chrf (both of the translations) or loss (unsmoothed, a token).
    best_metric: str = "bleu"

    def __post_init__(self) -> None:
        """Check every value."""
        sentences = self.max_sentences
        _check(sentences is None or sentences >= 1, "evaluation.max_sentences", sentences, "at least 1, or None")
        _check(self.beam_size >= 1, "evaluation.beam_size", self.beam_size, "at least 1")
        _check(self.samples >= 0, "evaluation.samples", self.samples, "at least 0")
        _check_choice("evaluation.best_metric", self.best_metric, BEST_METRICS)


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that a run is made of; saved as ``config.json`` in its directory.

    Raises:
        InputError: sections that do not go together.
    """

    model: TransformerConfig
    data: DataConfig
    training: TrainingConfig
    decoding: DecodingConfig
    evaluation: EvaluationConfig

    def __post_init__(self) -> None:
        """Check what no section can check alone."""
        if self.data.max_length > self.model.max_length:
            raise InputError(
                f"data.max_length {self.data.max_length} is more than the model.max_length {self.model.max_length} "
                "positions of the model; lower the one or raise the other"
            )
        if self.model.tied_embeddings == "all" and not self.data.shared_vocabulary:
            raise InputError(
                "model.tied_embeddings=all is one table for both languages and needs data.shared_vocabulary=True; "
                "share the vocabulary or set model.tied_embeddings=target"
            )


# The vocabulary knows these better than a person: they are no keys of a configuration file.
OF_THE_VOCABULARY = ("vocabulary_size", "source_vocabulary_size", "pad_id", "bos_id")

# What may change when a run is resumed, since what is already trained stays right.
MAY_CHANGE = (
    "training.steps",
    "training.engine",
    "training.log_every",
    "training.evaluate_every",
    "training.checkpoint_every",
    "training.keep_latest",
    "training.keep_best",
    "data.valid",
    "data.test",
    "data.workers",
    "decoding.",
    "evaluation.",
)


def default_config() -> Any:
    """Give the defaults of every section as an ``ml_collections.ConfigDict``, for configuration files to change.

    Its keys are those of the sections' dataclasses, whose comments say what each means. A value of the wrong type and,
    once the file is read, an unknown key are refused.
    """
    ml_collections = require("ml_collections", "train")
    config = ml_collections.ConfigDict()
    for section in dataclasses.fields(RunConfig):
        values = ml_collections.ConfigDict()
        kind = typing.get_type_hints(RunConfig)[section.name]
        for name, default, hint in _keys(kind):
            if section.name == "model" and name in OF_THE_VOCABULARY:
                continue
            if default is None:
                (inner,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
                default = ml_collections.config_dict.placeholder(inner)
            values[name] = default
        config[section.name] = values
    return config


def parse(config: Mapping[str, Any]) -> RunConfig:
    """Turn a configuration of plain values into checked dataclasses.

    Raises:
        InputError: an unknown key (with the nearest known one), a value of the wrong type or out of range.
    """
    sections = typing.get_type_hints(RunConfig)
    _refuse_unknown("", config, sections)
    values = {name: dict(config.get(name) or {}) for name in sections}
    data = values["data"]
    if "vocabulary_size" not in values["model"] and type(data.get("vocabulary_size")) is int:
        # Until the vocabulary itself is there, its configured size stands for it.
        values["model"]["vocabulary_size"] = data["vocabulary_size"]
        if data.get("shared_vocabulary") is False:
            values["model"]["source_vocabulary_size"] = data.get("source_vocabulary_size")
    return RunConfig(**{name: _section(kind, name, values[name]) for name, kind in sections.items()})


def save(config: RunConfig, path: Path) -> None:
    """Write a configuration as JSON, whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> RunConfig:
    """Read a configuration that :func:`save` wrote.

    Raises:
        InputError: there is none, or it does not fit this version.
    """
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; --workdir must name the directory of a run") from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(f"{path} is not a configuration: {error}") from None
    if not isinstance(record, dict) or not all(isinstance(section, dict) for section in record.values()):
        raise InputError(f"{path} is not a configuration: it must be an object of sections")
    return parse(record)


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """List what differs between two configurations of a run and must not: ``section.key: old -> new``."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in before
        if before.get(key) != after.get(key) and not key.startswith(MAY_CHANGE)
    ]


Section = TypeVar("Section")


def _section(kind: type[Section], name: str, values: Mapping[str, Any]) -> Section:
    hints = typing.get_type_hints(kind)
    _refuse_unknown(f"{name}.", values, hints)
    checked = {key: _typed(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    return kind(**checked)


def _refuse_unknown(prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise InputError(f"there is no configuration key {prefix}{key}; did you mean {prefix}{near[0]}?")


def _typed(key: str, value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is typing.Literal:  # which of its values are allowed, the section itself checks
        allowed = tuple({type(choice) for choice in typing.get_args(hint)})
    else:
        allowed = typing.get_args(hint) or (hint,)
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed:
        names = " or ".join("None" if kind is types.NoneType else kind.__name__ for kind in allowed)
        raise InputError(f"{key} must be of type {names}, not {value!r} of type {type(value).__name__}")
    return value


def _keys(kind: type) -> list[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field.name, field.default, hints[field.name]) for field in dataclasses.fields(kind)]


def _flat(config: RunConfig) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, values in dataclasses.asdict(config).items()
        for key, value in values.items()
    }


def _check(condition: bool, key: str, value: object, rule: str) -> None:
    if not condition:
        raise InputError(f"{key} must be {rule}, not {value}")


def _check_choice(key: str, value: str, choices: tuple[str, ...]) -> None:
    _check(value in choices, key, repr(value), f"one of {', '.join(choices)}")
