"""A configuration is checked as a whole before anything starts, and says what is
wrong in one line.
"""

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest
from training.little import LITTLE_RUN, nested

from jaxformer.errors import InputError
from jaxformer.runs.config import (
    RunConfig,
    differences,
    flatten,
    keep_earlier,
    load,
    parse,
)

NUMBERS = {"training.objective": "regression", "training.label_smoothing": 0.0}


def parse_little(**changes):
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return parse(nested({**LITTLE_RUN, **changes}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("training.stepz", 5, "no configuration key training.stepz; did you mean tra"),
        ("training.step", 5, "did you mean training.steps?"),
        ("modle.d_model", 5, "no configuration key modle; did you mean model?"),
        ("training.steps", "many", "must be of type int, not 'many' of type str"),
        ("training.steps", True, "must be of type int, not True of type bool"),
        ("training.steps", 0, "must be at least 1, not 0"),
        ("training.ema_decay", 1.0, "must be below 1, or None, not 1.0"),
        ("training.engine", "gpu", "must be one of auto, jit, pmap, mesh, not 'gpu'"),
        ("training.weight_decay", 0.1, "=0.1 needs decoupled decay"),
        ("training.mesh_fsdp", 2, ", training.mesh_tensor and training.shard_moments"),
        ("training.cooldown_steps", 12, "=12 are more than training.steps=12"),
        ("training.initial_optimizer", True, "=True needs training.initial_run"),
        ("data.max_length", 33, "33 is more than the model.max_length 32 positions"),
        ("data.shared_vocabulary", False, "model.tied_embeddings=all is one table"),
    ],
)
def test_what_is_wrong_is_said(key, value, message):
    """Unknown keys (with the nearest), wrong types, values out of range, sections that
    do not go together: each is refused by one line.
    """
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse(nested({**LITTLE_RUN, key: value}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model.dropout_rate": 0.0, "training.r_drop": 1.0},
            "r_drop=1.0 compares two",
        ),
        (
            {"model.scan_layers": True, "training.optimizer": "adafactor"},
            "training.optimizer=adafactor takes stacked",
        ),
        (
            {"training.schedule": "cosine", "training.cooldown_steps": 4},
            "training.schedule=cosine falls to 0 by itself",
        ),
        (
            {"training.objective": "regression"},
            r"label_smoothing=0.1 is not for training.objective=regression: set train",
        ),
        (
            {**NUMBERS, "training.z_loss": 1e-4},
            r"z_loss=0.0001 is not for .*: set training.z_loss=0$",
        ),
        (
            {**NUMBERS, "training.r_drop": 5.0},
            r"r_drop=5.0 is not for .*: set training.r_drop=0$",
        ),
    ],
)
def test_options_that_do_not_go_together(changes, message):
    """Options that would do nothing, or something else than they say, are refused."""
    with pytest.raises(InputError, match=message):
        parse(nested({**LITTLE_RUN, **changes}))


def test_a_run_of_before_keeps_its_rows(tmp_path):
    """Rows of earlier runs are not packed: such a run continues, by a command that does
    not say otherwise.
    """
    file = tmp_path / "config.json"
    file.write_text(json.dumps(nested(LITTLE_RUN)))
    old, new = load(file), parse_little()
    assert (old.data.packing, old.data.packed_length) == (False, 256)
    assert (new.data.packing, new.packs) == ("auto", True)
    assert not differences(old, keep_earlier(new, old))
    named = keep_earlier(new, old, ["data.packing"])
    assert differences(old, named) == ["data.packing: False -> auto"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist; --workdir must name the directory of a run"),
        ('{"model": ', "is not a configuration: Expecting value: line 1"),
        ('{"model_type": "marian"}', "a folder of Hugging Face: import it first: jax"),
        ('{"model": {"d_modl": 8}}', "key model.d_modl; did you mean model.d_model?"),
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


def test_every_key_either_may_change_or_is_compared():
    """A change of a key is reported, with both values, exactly if its field does not
    allow it.
    """
    others = {bool: lambda v: not v, int: lambda v: v + 2}
    others |= {float: lambda v: v + 0.25, str: lambda v: v + "x"}
    config, changeable = parse_little(), set()
    for section in dataclasses.fields(RunConfig):
        values = getattr(config, section.name)
        for field in dataclasses.fields(values):
            value = getattr(values, field.name)
            other = 10 if value is None else others[type(value)](value)
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
    page = Path(__file__).parents[2] / "docs/training.md"
    _, _, tail = page.read_text(encoding="utf-8").partition("- You may change: ")
    listed = set(re.findall(r"`((?:model|data)\.\w+)`", tail.split("\n- ")[0]))
    assert listed == {key for key in changeable if key.startswith(("model.", "data."))}


def test_every_number_is_bounded_and_every_value_is_refused_in_one_line():
    """Each key of each section takes a hostile value or refuses it by one line; none
    takes NaN, infinity or 10^400.
    """
    hostile = [0, -1, 1e30, 10**23, 10**400, -(10**400), math.nan, math.inf, -math.inf]
    hostile += ["", None, True, [1], {}, b"x"]
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
