"""A configuration is checked as a whole before anything starts, and says what is
wrong in one line.
"""

import dataclasses
import json
import math
import random

import pytest
from training.little import LITTLE_RUN, nested

from jaxformer.errors import InputError
from jaxformer.runs.config import (
    OF_THE_VOCABULARY,
    RunConfig,
    default_config,
    differences,
    flatten,
    load,
    parse,
    save,
)


def parse_little(**changes):
    return parse(
        nested(
            {
                **LITTLE_RUN,
                **{key.replace("__", "."): value for key, value in changes.items()},
            }
        )
    )


def test_the_defaults_are_those_of_the_sections():
    """A configuration file starts from the defaults of the dataclasses, all keys but
    those of the vocabulary.
    """
    config = default_config().to_dict()
    for section in dataclasses.fields(RunConfig):
        keys = {
            field.name
            for field in dataclasses.fields(type(getattr(parse({}), section.name)))
        }
        keys -= set(OF_THE_VOCABULARY) if section.name == "model" else set()
        assert set(config[section.name]) == keys
    assert parse(config) == parse({"data": {"vocabulary_size": 8_000}})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.stepz", 5, "there is no configuration key training.stepz; did you mean training.steps?"),
        ("model.num_head", 5, "there is no configuration key model.num_head; did you mean model.num_heads?"),
        ("modle.d_model", 5, "there is no configuration key modle; did you mean model?"),
        ("training.steps", "many", "training.steps must be of type int, not 'many' of type str"),
        ("training.steps", 5.5, "training.steps must be of type int, not 5.5 of type float"),
        ("training.steps", True, "training.steps must be of type int, not True of type bool"),
        ("training.seed", None, "training.seed must be of type int, not None of type NoneType"),
        ("data.shared_vocabulary", 1, "data.shared_vocabulary must be of type bool, not 1 of type int"),
        ("training.steps", 0, "training.steps must be at least 1, not 0"),
        ("training.seed", -1, "training.seed must be at least 0, not -1"),
        ("training.warmup_steps", -1, "training.warmup_steps must be at least 0, not -1"),
        ("training.learning_rate", 0.0, "training.learning_rate must be above 0, not 0.0"),
        ("training.learning_rate", float("nan"), "training.learning_rate must be above 0, not nan"),
        ("training.label_smoothing", 1.0, "training.label_smoothing must be below 1, not 1.0"),
        ("training.engine", "gpu", "training.engine must be one of auto, jit, pmap, mesh, not 'gpu'"),
        ("training.optimizer", "sgd", "training.optimizer must be one of adam, adamw, adafactor, lion, not 'sgd'"),
        ("training.schedule", "step", "training.schedule must be one of paper, inverse_sqrt, linear, cosine, constant"),
        ("training.gradient_clip", 0.0, "training.gradient_clip must be above 0, or None, not 0.0"),
        ("training.ema_decay", 1.0, "training.ema_decay must be below 1, or None, not 1.0"),
        ("training.patience", 0, "training.patience must be at least 1, or None, not 0"),
        ("training.accumulation_steps", 0, "training.accumulation_steps must be at least 1, not 0"),
        ("training.weight_decay", 0.1, "training.weight_decay=0.1 needs decoupled decay"),
        ("training.mesh_fsdp", 2, "training.mesh_fsdp, training.mesh_tensor and training.shard_moments are of"),
        ("training.cooldown_steps", 12, "training.warmup_steps=20 and training.cooldown_steps=12 are more than"),
        ("training.schedule", "linear", "training.warmup_steps=20 and training.cooldown_steps=0 are more than"),
        ("training.learning_rate", float("inf"), "training.learning_rate must be at most 1e+30, not inf"),
        ("training.loss_scale", 8.0, "training.loss_scale=8.0 is for model.dtype=float16"),
        ("evaluation.max_sentences", 0, "evaluation.max_sentences=0 translates nothing"),
        ("training.initial_optimizer", True, "training.initial_optimizer=True needs training.initial_run"),
        ("training.on_failed_save", "cry", "training.on_failed_save must be one of stop, continue, not 'cry'"),
        ("training.smoothing_convention", "no", "training.smoothing_convention must be one of others, all, not 'no'"),
        ("evaluation.best_metric", "ter", "evaluation.best_metric must be one of bleu, chrf, f1, loss, not 'ter'"),
        ("model.num_heads", 7, "model.d_model 16 is not divisible by model.num_heads 7; try 8 heads, or set model.d_k"),
        ("model.d_model", 15, "model.d_model 15 is not divisible by model.num_heads 2"),
        ("model.dropout_rate", 1.0, "model.dropout_rate must be below 1, not 1.0"),
        ("data.max_length", 33, "data.max_length 33 is more than the model.max_length 32 positions of the model"),
        ("data.valid", "text:\ud800", "data.valid has half of a surrogate pair, which is no character: 'text:"),
        ("training.seed", 10**23, "training.seed must be at most 4,294,967,295, not 100000000000000000000000"),
        ("training.steps", 10**100, "training.steps must be at most 1,000,000,000, not a number of 101 digits"),
        ("training.r_drop", 1e300, "training.r_drop must be at most 1e+30, not 1e+300"),
        ("training.z_loss", 10**400, "training.z_loss must be at most 1e+30, not inf"),
        ("training.gradient_clip", float("inf"), "training.gradient_clip must be at most 1e+30, or None, not inf"),
        ("model.d_model", 10**30, "model.d_model must be at most 1,048,576, not a number of 31 digits"),
        ("model.num_encoder_layers", 100_000, "model.num_encoder_layers must be at most 1,000, not 100000"),
        ("data.vocabulary_size", 2**40, "data.vocabulary_size must be at most 16,777,216, not 1099511627776"),
        ("data.tokens_per_batch", 10**9, "data.tokens_per_batch must be at most 134,217,728, not 1000000000"),
        ("decoding.beam_size", 100_000, "decoding.beam_size must be at most 10,000, not 100000"),
        ("evaluation.beam_size", 100_000, "evaluation.beam_size must be at most 10,000, not 100000"),
        ("data.shared_vocabulary", False, "model.tied_embeddings=all is one table for both languages"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(key, value, message):
    """Unknown keys (with the nearest), wrong types, values out of range, heads that do
    not divide, sections that do not go together: each is refused by one line that names
    key and value.
    """
    with pytest.raises(InputError) as caught:
        parse(nested({**LITTLE_RUN, key: value}))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.dropout_rate": 0.0, "training.r_drop": 1.0},
            "training.r_drop=1.0 compares two passes with different",
        ),
        (
            {"model.scan_layers": True, "training.optimizer": "adafactor"},
            "training.optimizer=adafactor takes stacked",
        ),
    ],
)
def test_sections_that_do_not_go_together(changes, message):
    """Options that would do nothing, or something else than they say, are refused."""
    with pytest.raises(InputError) as caught:
        parse(nested({**LITTLE_RUN, **changes}))
    assert str(caught.value).startswith(message)


def test_an_integer_is_a_number():
    """``--config.training.learning_rate=1`` means 1.0."""
    assert type(parse_little(training__learning_rate=1).training.learning_rate) is float


def test_saved_and_loaded(tmp_path):
    """What is saved loads as the same, from JSON that a person can read, and no half
    file is left.
    """
    config = parse_little(
        training__learning_rate=0.1 + 0.2, evaluation__max_sentences=None
    )
    save(config, tmp_path / "config.json")
    assert load(tmp_path / "config.json") == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert json.loads((tmp_path / "config.json").read_text())["model"]["d_model"] == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; --workdir must name the directory of a run"),
        ('{"model": ', "is not a configuration: Expecting value: line 1"),
        (
            '{"model": {"d_modl": 8}}',
            "there is no configuration key model.d_modl; did you mean model.d_model?",
        ),
    ],
)
def test_a_file_that_is_none(tmp_path, content, message):
    """A missing, a damaged and a foreign file are refused by one line."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "config.json")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_differences_name_key_and_values():
    """Of two configurations of a run, every key but those that may change is
    compared.
    """
    old = parse_little()
    new = parse_little(
        model__d_ff=64,
        training__steps=99,
        decoding__beam_size=2,
        data__test="bundled:en-de/test",
    )
    assert differences(old, new) == ["model.d_ff: 32 -> 64"]
    assert differences(old, old) == []


def test_every_key_either_may_change_or_is_compared():
    """A change of a key is reported exactly if its field does not allow it."""
    others = {
        bool: lambda v: not v,
        int: lambda v: v + 2,
        float: lambda v: v + 0.25,
        str: lambda v: v + "x",
    }
    config = parse_little()
    drawn, changeable = random.Random(0), set()
    for section in dataclasses.fields(RunConfig):
        values = getattr(config, section.name)
        for field in dataclasses.fields(values):
            value = getattr(values, field.name)
            other = (
                drawn.randrange(10, 20) if value is None else others[type(value)](value)
            )
            # unchecked: not every other value goes with the rest
            changed = object.__new__(type(values))
            changed.__dict__.update({**values.__dict__, field.name: other})
            new = object.__new__(RunConfig)
            new.__dict__.update({**config.__dict__, section.name: changed})
            key = f"{section.name}.{field.name}"
            free = any(x.metadata.get("may_change") for x in (section, field))
            expected = [] if free else [f"{key}: {value} -> {other}"]
            assert differences(config, new) == expected
            changeable.update([key] if free else [])
    assert {
        *("training.steps", "training.mesh_fsdp", "training.keep_every"),
        *("model.rematerialization", "data.test", "decoding.alpha"),
        "evaluation.samples",
    } <= changeable
    assert not changeable & {"model.d_model", "data.train", "training.seed"}


def test_every_number_is_bounded_and_every_value_is_refused_in_one_line():
    """Each key of each section takes a hostile value or refuses it by one line; none
    takes NaN, infinity or 10^400.
    """
    hostile = [
        0,
        -1,
        1e30,
        10**23,
        10**400,
        -(10**400),
        math.nan,
        math.inf,
        -math.inf,
        "",
        None,
        True,
        [1],
        {},
        b"x",
    ]
    taken = 0
    for key in flatten(parse({})):
        for value in hostile:
            try:
                parse(nested({key: value}))
            except InputError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert len(str(error)) < 500  # noqa: PT017
            else:
                assert type(value) not in (int, float) or math.isfinite(value)
                assert type(value) is not int or abs(value) < 10**400
                taken += 1
    assert taken < 200
