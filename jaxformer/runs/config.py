"""The configuration of a run: five frozen sections, checked before anything starts."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import sys
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from jaxformer import __version__
from jaxformer.data.config import EARLIER, DataConfig
from jaxformer.errors import InputError, check_keys, key, require
from jaxformer.files import parse_json, write_whole
from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import WITHOUT_TERMS, TrainingConfig
from jaxformer.search.config import MOST_BEAM, DecodingConfig

BEST_METRICS = ("bleu", "chrf", "f1", "loss", "accuracy")
UNTRANSLATED = ("loss", "accuracy")
"""Those that need no translation of the validation text."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """How a run is validated while it trains.

    Raises:
        InputError: a value out of range.
    """

    # Validation sentences translated at each evaluation; None: all, 0: none, only the
    # loss.
    max_sentences: int | None = key(None, least=0, most=10**9)
    # Beam of those translations; 1 is greedy search. The final scores use
    # decoding.beam_size.
    beam_size: int = key(1, least=1, most=MOST_BEAM)
    # Translations that samples.jsonl keeps at each evaluation.
    samples: int = key(5, least=0, most=10**9, changes="speed")
    # Score that makes a checkpoint the best: bleu or chrf of the translations, loss
    # (valid/nll of the log: unsmoothed, a token), accuracy (valid/accuracy: the share
    # of targets whose most probable prediction is right), or f1 for targets that are
    # linearised trees.
    best_metric: str = key("bleu", choices=BEST_METRICS)

    def __post_init__(self) -> None:
        """Check every key, and keys that depend on each other."""
        check_keys("evaluation", self)
        if self.max_sentences == 0 and self.best_metric not in UNTRANSLATED:
            raise InputError(
                "evaluation.max_sentences=0 translates nothing, and"
                f" evaluation.best_metric={self.best_metric} is a score of"
                " translations: set evaluation.best_metric=loss"
            )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The configuration of a run; saved as ``config.json`` in its directory.

    Raises:
        InputError: sections contradict each other.
    """

    model: TransformerConfig
    data: DataConfig
    training: TrainingConfig
    decoding: DecodingConfig = dataclasses.field(metadata={"may_change": True})
    evaluation: EvaluationConfig = dataclasses.field(metadata={"may_change": True})

    def __post_init__(self) -> None:
        """Check keys of different sections that depend on each other."""
        if self.data.max_length > self.model.max_length:
            raise InputError(
                f"data.max_length {self.data.max_length} is more than the"
                f" model.max_length {self.model.max_length} positions of the model;"
                " lower the one or raise the other"
            )
        self._check_objective()
        pairs = self.data.kind == "pairs"
        tied = self.model.tied_embeddings == "all"
        if pairs and tied and not self.data.shared_vocabulary:
            raise InputError(
                "model.tied_embeddings=all is one table for both languages and needs"
                " data.shared_vocabulary=True; share the vocabulary or set"
                " model.tied_embeddings=target"
            )
        model, training = self.model, self.training
        dropout = model.attention_dropout_rate, model.activation_dropout_rate
        if training.r_drop and not any((model.dropout_rate, *dropout)):
            raise InputError(
                f"training.r_drop={training.r_drop} compares two passes with"
                " different dropout, and the model has none: set model.dropout_rate,"
                " or training.r_drop=0"
            )
        if model.network != "transformer" and self.data.packing is True:
            raise InputError(
                f"data.packing=True is not for model.network={model.network}, which"
                " reads one sentence a row: set data.packing=False"
            )
        if self.data.embeddings and training.initial_run:
            raise InputError(
                f"data.embeddings={self.data.embeddings} is for a new model, and"
                f" training.initial_run={training.initial_run} gives its own: leave one"
                " out"
            )
        scaled = training.loss_scale != TrainingConfig.loss_scale
        if scaled and model.dtype != "float16":
            raise InputError(
                f"training.loss_scale={training.loss_scale} is for"
                f" model.dtype=float16, and this is {model.dtype}: leave it out"
            )
        if training.optimizer == "adafactor" and model.scan_layers:
            raise InputError(
                "training.optimizer=adafactor takes stacked layers for one parameter"
                " and would train otherwise than without model.scan_layers: set"
                " model.scan_layers=False, or take another optimizer"
            )

    @property
    def packs(self) -> bool:
        """Whether rows hold several examples; those of recurrent networks hold one."""
        return self.data.packs and self.model.network == "transformer"

    def _check_objective(self) -> None:
        """Refuse an objective that does not fit the model or the data."""
        name, model = self.training.objective, self.model
        encoder, decoder, heads, kind = _FITTING[name]
        stacks = bool(model.num_encoder_layers), bool(model.num_decoder_layers)
        if stacks != (encoder, decoder):
            needed = {
                (True, True): "an encoder and a decoder",
                (True, False): "an encoder-only model: set model.num_decoder_layers=0",
                (False, True): "a decoder-only model: set model.num_encoder_layers=0",
            }[encoder, decoder]
            raise InputError(
                f"training.objective={name} needs {needed}, and this has"
                f" {model.num_encoder_layers} encoder and {model.num_decoder_layers}"
                " decoder layers"
            )
        if model.head not in heads:
            raise InputError(
                f"training.objective={name} needs model.head={heads[0]}, not"
                f" {model.head}"
            )
        if name == "regression" and self.evaluation.best_metric == "accuracy":
            raise InputError(
                "training.objective=regression has no evaluation.best_metric=accuracy:"
                " set evaluation.best_metric=loss"
            )
        if self.data.kind != kind:
            raise InputError(
                f"training.objective={name} needs data.kind={kind}, not"
                f" {self.data.kind}"
            )


# Of each objective: whether the model has an encoder and a decoder, its heads, and the
# kind of data.
_FITTING = {
    "translation": (True, True, ("none",), "pairs"),
    "causal": (False, True, ("none",), "text"),
    "masked": (True, False, ("words", "words_and_next", "pooled", "none"), "masked"),
    "masked_and_next": (True, False, ("words_and_next",), "documents"),
    "classification": (True, False, ("classification",), "labelled"),
    "regression": (True, False, ("classification",), "scored"),
    "tagging": (True, False, ("tagging",), "tagged"),
    "span": (True, False, ("span",), "spans"),
}


def data_kind(objective: str) -> str:
    """Return the ``data.kind`` that an objective needs."""
    return _FITTING[objective][3]


OF_THE_VOCABULARY = tuple(
    field.name
    for field in dataclasses.fields(TransformerConfig)
    if field.metadata["changes"] == "tokens"
)
"""Keys of the model that the vocabulary determines; no configuration file has them."""


def default_config() -> Any:
    """Return all defaults as an ``ml_collections.ConfigDict`` for configuration files.

    The comments of the sections' dataclasses explain the keys. A ``ConfigDict`` refuses
    values of the wrong type.
    """
    ml_collections = require("ml_collections", "train")
    config = ml_collections.ConfigDict()
    for section in dataclasses.fields(RunConfig):
        values = ml_collections.ConfigDict()
        kind = typing.get_type_hints(RunConfig)[section.name]
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if section.name == "model" and field.name in OF_THE_VOCABULARY:
                continue
            default = field.default
            if hints[field.name] == bool | str:
                default = ml_collections.FieldReference(default, field_type=object)
            if default is None:
                (inner,) = {*typing.get_args(hints[field.name])} - {types.NoneType}
                default = ml_collections.config_dict.placeholder(inner)
            values[field.name] = default
        config[section.name] = values
    return config


def parse(config: Mapping[str, Any]) -> RunConfig:
    """Build checked dataclasses of plain values.

    Raises:
        InputError: an unknown key, a value of the wrong type or out of range.
    """
    sections = typing.get_type_hints(RunConfig)
    _refuse_unknown("", config, sections)
    values = {name: dict(config.get(name) or {}) for name in sections}
    for name, (default, advice) in REMOVED.items():
        section, _, field = name.partition(".")
        value = values[section].pop(field, default)
        if str(value) != str(default):
            _warn(f"{name}={value} {advice}")
    data, model = values["data"], values["model"]
    if "vocabulary_size" not in model and type(data.get("vocabulary_size")) is int:
        # There is no vocabulary yet: take its configured size.
        model["vocabulary_size"] = data["vocabulary_size"]
        if data.get("shared_vocabulary") is False:
            model["source_vocabulary_size"] = data.get("source_vocabulary_size")
    # An error of data.vocabulary_size comes before that of the model.
    order = sorted(sections, key=lambda name: name != "data")
    return RunConfig(
        **{name: _section(sections[name], name, values[name]) for name in order}
    )


def save(config: RunConfig, path: Path) -> None:
    """Write a configuration and the version of jaxformer as JSON."""
    record = {"version": __version__, **dataclasses.asdict(config)}
    write_whole(path, json.dumps(record, indent=2) + "\n")


def load(path: Path) -> RunConfig:
    """Read a configuration of :func:`save`, by this version or an earlier one.

    Keys that are newer than the file have their defaults, or the values by which
    earlier versions worked.

    Raises:
        InputError: there is no file, or it has keys or values that this version does
            not know.
    """
    try:
        record = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; --workdir must name the directory of a run"
        ) from None
    except InputError as error:
        raise InputError(f"{path} is not a configuration: {error}") from None
    record = record if isinstance(record, dict) else {"": record}
    if isinstance(record.get("model_type"), str):
        raise InputError(
            f"{path.parent} is a folder of Hugging Face: import it first: jaxformer"
            f" import {path.parent} --workdir=RUN"
        )
    written = record.pop("version", __version__)
    if not all(isinstance(section, dict) for section in record.values()):
        raise InputError(
            f"{path} is not a configuration: it must be an object of sections"
        )
    record["data"] = {**EARLIER, **record.get("data", {})}
    # Earlier versions took terms that an objective does not have.
    training = record.get("training", {})
    training |= dict.fromkeys(WITHOUT_TERMS.get(str(training.get("objective")), ()), 0)
    try:
        return parse(record)
    except InputError as error:
        if written == __version__:
            raise
        # The cure is for keys that were written by hand.
        fault = str(error).partition(";")[0]
        raise InputError(
            f"{path} was written by jaxformer {written} and cannot be read by this"
            f" {__version__}: {fault}; install jaxformer {written}"
        ) from None


def keep_earlier(
    config: RunConfig, run: RunConfig, named: Collection[str] = ()
) -> RunConfig:
    """Return the configuration by which a run continues: a key that has its default
    keeps the value of the run where that is an earlier default.

    Args:
        config: as it is given today.
        run: the configuration of the run.
        named: keys such as ``data.packing`` that have their default on purpose.
    """
    kept = {
        name: value
        for name, value in EARLIER.items()
        if f"data.{name}" not in named
        and getattr(config.data, name) == getattr(DataConfig, name)
        and getattr(run.data, name) == value
    }
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **kept))


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """List the keys that differ and must not, since they made what is already trained.

    Each is ``section.key: old -> new``.
    """
    changed = []
    for section in dataclasses.fields(old):
        before, after = getattr(old, section.name), getattr(new, section.name)
        for field in dataclasses.fields(before):
            name = f"{section.name}.{field.name}"
            free = any(x.metadata.get("may_change") for x in (section, field))
            if name == "training.steps" and old.training.fixes_steps:
                free = False
            values = getattr(before, field.name), getattr(after, field.name)
            if not free and values[0] != values[1]:
                changed.append(f"{name}: {values[0]} -> {values[1]}")
    return changed


# What keys of earlier versions were by default, and what to say of other values.
REMOVED: dict[str, tuple[object, str]] = {
    "model.scan_unroll": (1, "has no effect"),
    "training.on_failed_save": ("stop", "has no effect: run the command again"),
    "training.profile_steps": (5, "has no effect: a trace has 5 steps"),
    "training.stall_seconds": (60.0, "has no effect"),
}


@functools.cache  # once a process
def _warn(text: str) -> None:
    sys.stderr.write(f"jaxformer: warning: {text}\n")


def _section(kind: type[Any], name: str, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(kind)
    _refuse_unknown(f"{name}.", values, hints)
    return kind(
        **{
            field: _typed(f"{name}.{field}", value, hints[field])
            for field, value in values.items()
        }
    )


def _refuse_unknown(prefix: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            near = find_key(prefix + name)
            raise InputError(
                f"there is no configuration key {prefix}{name}"
                + f"; did you mean {near}?" * bool(near)
            )


def find_key(wrong: str) -> str | None:
    """Return the key, or section, that a wrong one was meant to be; None: none is near.

    It has the same name in another section, a word of it (heads is num_heads), one
    letter more, or like letters.
    """
    section, _, name = wrong.rpartition(".")

    def likeness(known: str) -> tuple[bool, bool, bool, float]:
        part, _, last = known.rpartition(".")
        own = section in ("", part)
        ratio = difflib.SequenceMatcher(None, name, last).ratio()
        words = (*last.split("_"), last[:-1])
        return last == name, own and name in words, own and ratio > 0.6, ratio

    known = [*flatten(parse({})), *typing.get_type_hints(RunConfig)]
    near = max(known, key=likeness)
    return near if likeness(near) > (False, False, False, 0.6) else None


def _typed(name: str, value: Any, hint: Any) -> Any:
    # The section checks which values are allowed.
    if typing.get_origin(hint) is typing.Literal:
        allowed = tuple({type(choice) for choice in typing.get_args(hint)})
    else:
        allowed = typing.get_args(hint) or (hint,)
    if float in allowed and type(value) is int:
        try:
            return float(value)
        except OverflowError:  # larger than any bound
            return math.inf if value > 0 else -math.inf
    if type(value) not in allowed:
        names = " or ".join(
            "None" if kind is types.NoneType else kind.__name__ for kind in allowed
        )
        raise InputError(
            f"{name} must be of type {names}, not {value!r} of type"
            f" {type(value).__name__}"
        )
    return value


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return all values by key, such as ``model.d_model``."""
    return {
        f"{section}.{name}": value
        for section, values in dataclasses.asdict(config).items()
        for name, value in values.items()
    }
