"""The programs of a server, and the one that a batch gets."""

import dataclasses

import pytest

import runs
from jaxformer.serving.programs import (
    PLAIN,
    RICH,
    TERMS,
    Programs,
    ServedProgram,
)
from jaxformer.translation import models


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({"max_length": 200}, [16, 32, 64, 128, 200]),
        ({"max_length": 40}, [16, 32, 40]),
        ({"max_length": 128, "max_source_length": 20}, [16, 32]),
    ],
)
def test_programs(changes, widths, monkeypatch):
    """Shapes are from 1 row to the most, as many tokens as the run allows, and as wide
    as its longest sources; a batch has the smallest that is compiled.
    """
    monkeypatch.setattr(models, "mesh_of_devices", lambda: None)
    run = runs.translator(max_extra_length=4, beam_size=2, **changes)
    run.decoding = dataclasses.replace(run.decoding, tokens_per_batch=1024)
    plan = Programs(run, run.models, (PLAIN, RICH, TERMS), 16)
    plain = [each.shape for each in plan.all if each.use == PLAIN]
    assert sorted({each.width for each in plain}) == widths
    assert {each.rows for each in plain} == {1, 4, 16}
    pairs = [each.shape[:2] for each in plan.all if each.use == "score"]
    wide = [(1, width) for width in (128, 200) if width <= run.models.positions]
    assert [sizes for sizes in pairs if sizes[1] > 64] == wide
    assert {rows for rows, width in pairs if width <= 64} == {4}
    assert all(each.rows * each.width <= 1024 or each.rows == 1 for each in plain)
    narrow = [each for each in plain if each.width <= 64]
    assert [each.shape for each in plan.all[: plan.needed]] == narrow
    assert plan.choose(PLAIN, 3, 17).shape[:2] == (4, 32)
    plan.done = {ServedProgram(PLAIN, each) for each in plain if each.rows == 16}
    assert plan.choose(PLAIN, 1, 10).shape[:2] == (16, 16)
    assert plan.choose(PLAIN, 40, 10).shape[:2] == (16, 16)
