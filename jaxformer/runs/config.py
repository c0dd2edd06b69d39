"""The configuration of a run: five frozen sections, every key known and every value
checked before anything starts.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from jaxformer import __version__
from jaxformer.data.config import DataConfig
from jaxformer.errors import InputError, check_most, require
from jaxformer.files import parse_json, write_whole
from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import MOST_BEAM, DecodingConfig

BEST_METRICS = ("bleu", "chrf", "f1", "loss")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """How a run is validated while it trains.

    Raises:
        InputError: a value out of range.
    """

    # Validation sentences translated at each evaluation; None: all of them, 0: none,
    # for the loss alone.
    max_sentences: int | None = None
    # Beam of those translations; 1 is greedy search. The final scores use
    # decoding.beam_size.
    beam_size: int = 1
    # How many of the translations samples.jsonl keeps.
    samples: int = 5
    # What makes a checkpoint the best: bleu, chrf (both of the translations) or loss
    # (unsmoothed, a token); or f1, for targets that are linearised trees, which
    # `jaxformer evaluate` then scores by default too.
    best_metric: str = "bleu"

    def __post_init__(self) -> None:
        """Check every value."""
        sentences = self.max_sentences
        _check(
            sentences is None or sentences >= 0,
            "evaluation.max_sentences",
            sentences,
            "at least 0, or None",
        )
        if sentences == 0 and self.best_metric != "loss":
            raise InputError(
                "evaluation.max_sentences=0 translates nothing, and"
                f" evaluation.best_metric={self.best_metric} is a score of"
                " translations: set evaluation.best_metric=loss"
            )
        _check(
            self.beam_size >= 1, "evaluation.beam_size", self.beam_size, "at least 1"
        )
        _check(self.samples >= 0, "evaluation.samples", self.samples, "at least 0")
        check_most(
            self,
            {"max_sentences": 10**9, "beam_size": MOST_BEAM, "samples": 10**9},
            "evaluation.",
        )
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
                f"data.max_length {self.data.max_length} is more than the"
                f" model.max_length {self.model.max_length} positions of the model;"
                " lower the one or raise the other"
            )
        if self.model.tied_embeddings == "all" and not self.data.shared_vocabulary:
            raise InputError(
                "model.tied_embeddings=all is one table for both languages and needs"
                " data.shared_vocabulary=True; share the vocabulary or set"
                " model.tied_embeddings=target"
            )
        dropout = (
            self.model.dropout_rate,
            self.model.attention_dropout_rate,
            self.model.activation_dropout_rate,
        )
        if self.training.r_drop and not any(dropout):
            raise InputError(
                f"training.r_drop={self.training.r_drop} compares two passes with"
                " different dropout, and the model has none: set model.dropout_rate,"
                " or training.r_drop=0"
            )
        if (
            self.training.loss_scale != TrainingConfig.loss_scale
            and self.model.dtype != "float16"
        ):
            raise InputError(
                f"training.loss_scale={self.training.loss_scale} is for"
                f" model.dtype=float16, and this is {self.model.dtype}: leave it out"
            )
        if self.training.optimizer == "adafactor" and self.model.scan_layers:
            raise InputError(
                "training.optimizer=adafactor takes stacked layers for one parameter"
                " and would train otherwise than without model.scan_layers: set"
                " model.scan_layers=False, or take another optimizer"
            )


# The vocabulary knows these better than a person: they are no keys of a configuration
# file.
OF_THE_VOCABULARY = ("vocabulary_size", "source_vocabulary_size", "pad_id", "bos_id")

# What may change when a run is resumed, since what is already trained stays right.
MAY_CHANGE = (
    "training.steps",
    "training.cooldown_steps",
    "training.engine",
    "training.mesh_",
    "training.shard_moments",
    "training.accumulation_steps",
    "training.max_bad_steps",
    "training.patience",
    "training.log_every",
    "training.evaluate_every",
    "training.checkpoint_every",
    "training.keep_",
    "training.on_failed_save",
    "training.profile_",
    "training.stall_seconds",
    "training.wandb_project",
    "model.rematerialization",
    "data.valid",
    "data.test",
    "data.workers",
    "decoding.",
    "evaluation.",
)


def default_config() -> Any:
    """Return the defaults of every section as an ``ml_collections.ConfigDict``, for
    configuration files to change.

    Its keys are those of the sections' dataclasses, whose comments say what each means.
    A value of the wrong type and, once the file is read, an unknown key are refused.
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
                (inner,) = (
                    option
                    for option in typing.get_args(hint)
                    if option is not types.NoneType
                )
                default = ml_collections.config_dict.placeholder(inner)
            values[name] = default
        config[section.name] = values
    return config


def parse(config: Mapping[str, Any]) -> RunConfig:
    """Turn a configuration of plain values into checked dataclasses.

    Raises:
        InputError: an unknown key (with the nearest known one), a value of the wrong
            type or out of range.
    """
    sections = typing.get_type_hints(RunConfig)
    _refuse_unknown("", config, sections)
    values = {name: dict(config.get(name) or {}) for name in sections}
    data = values["data"]
    if (
        "vocabulary_size" not in values["model"]
        and type(data.get("vocabulary_size")) is int
    ):
        # Until the vocabulary itself is there, its configured size stands for it.
        values["model"]["vocabulary_size"] = data["vocabulary_size"]
        if data.get("shared_vocabulary") is False:
            values["model"]["source_vocabulary_size"] = data.get(
                "source_vocabulary_size"
            )
    # whose vocabulary_size the model has
    order = sorted(sections, key=lambda name: name != "data")
    return RunConfig(
        **{name: _section(sections[name], name, values[name]) for name in order}
    )


def save(config: RunConfig, path: Path) -> None:
    """Write a configuration and the version of jaxformer as JSON, whole or not at
    all.
    """
    record = {"version": __version__, **dataclasses.asdict(config)}
    write_whole(path, json.dumps(record, indent=2) + "\n")


def load(path: Path) -> RunConfig:
    """Read a configuration that :func:`save` wrote, of this version or an earlier one:
    a key that was added since is not in it, and has its default.

    Raises:
        InputError: there is none, or it is of a version that knew what this one does
            not.
    """
    try:
        record = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; --workdir must name the directory of a run"
        ) from None
    except InputError as error:
        raise InputError(f"{path} is not a configuration: {error}") from None
    written = (
        record.pop("version", __version__) if isinstance(record, dict) else __version__
    )
    if not isinstance(record, dict) or not all(
        isinstance(section, dict) for section in record.values()
    ):
        raise InputError(
            f"{path} is not a configuration: it must be an object of sections"
        )
    try:
        return parse(record)
    except InputError as error:
        if written == __version__:
            raise
        # without the cure, which is for who wrote the key by hand
        fault = str(error).partition(";")[0]
        raise InputError(
            f"{path} was written by jaxformer {written} and cannot be read by this"
            f" {__version__}: {fault}; install jaxformer {written}"
        ) from None


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """List what differs between two configurations of a run and must not:
    ``section.key: old -> new``.
    """
    before, after = flatten(old), flatten(new)
    # These schedules fall towards the last step: with another one the rates so far
    # would have been others.
    fixed = ("training.steps",) if old.training.schedule in ("linear", "cosine") else ()
    return [
        f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in before
        if before.get(key) != after.get(key)
        and (key in fixed or not key.startswith(MAY_CHANGE))
    ]


Section = TypeVar("Section")


def _section(kind: type[Section], name: str, values: Mapping[str, Any]) -> Section:
    hints = typing.get_type_hints(kind)
    _refuse_unknown(f"{name}.", values, hints)
    checked = {
        key: _typed(f"{name}.{key}", value, hints[key]) for key, value in values.items()
    }
    return kind(**checked)


def _refuse_unknown(prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise InputError(
                f"there is no configuration key {prefix}{key}; did you mean"
                f" {prefix}{near[0]}?"
            )


def _typed(key: str, value: Any, hint: Any) -> Any:
    # which of its values are allowed, the section itself checks
    if typing.get_origin(hint) is typing.Literal:
        allowed = tuple({type(choice) for choice in typing.get_args(hint)})
    else:
        allowed = typing.get_args(hint) or (hint,)
    if float in allowed and type(value) is int:
        try:
            return float(value)
        except OverflowError:  # above every bound
            return math.inf if value > 0 else -math.inf
    if type(value) not in allowed:
        names = " or ".join(
            "None" if kind is types.NoneType else kind.__name__ for kind in allowed
        )
        raise InputError(
            f"{key} must be of type {names}, not {value!r} of type"
            f" {type(value).__name__}"
        )
    # JSON can escape it
    if isinstance(value, str) and re.search("[\ud800-\udbff]", value):
        raise InputError(
            f"{key} has half of a surrogate pair, which is no character: {value!r}"
        )
    return value


def _keys(kind: type) -> list[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [
        (field.name, field.default, hints[field.name])
        for field in dataclasses.fields(kind)
    ]


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return every value by its key, such as ``model.d_model``."""
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
