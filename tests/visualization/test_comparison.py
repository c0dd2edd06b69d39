"""Curves of several runs in one picture, each under a name of its own."""

import json
import math
import struct

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.visualization.comparison import arrange, draw, name_runs, read_runs, thin

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "_underscore",
    "$a$ $b",
    "{{data}}",
    '"quoted"',
    "ünïcode 東京",
]


def write_run(directory, seed=0, steps=1000):
    """Record a run of its own likelihood and scores."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    with (directory / "metrics.jsonl").open("w") as file:
        for step in range(100, steps + 1, 100):
            entry = {
                "step": step,
                "train/nll": 9.0 / math.sqrt(step) + rng.random(),
                "train/learning_rate": 1e-3,
            }
            file.write(json.dumps(entry) + "\n")
            if step % 500 == 0:
                file.write(
                    json.dumps(
                        {
                            "step": step,
                            "valid/nll": 1.0 + rng.random(),
                            "valid/bleu": seed + 3.0,
                        }
                    )
                    + "\n"
                )
    return directory


@pytest.fixture
def runs(tmp_path):
    """Three runs, of which one is shorter."""
    return [
        write_run(tmp_path / name, seed, steps)
        for seed, (name, steps) in enumerate([("a", 1000), ("b", 600)])
    ]


def test_names_may_be_any_text(tmp_path):
    """A directory may have any name: the picture is drawn."""
    found = {name: {"train/nll": [(1, 2.0), (2, 1.0)]} for name in HOSTILE}
    assert draw(found, tmp_path / "curves.png").stat().st_size > 2000


def size(picture):
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.mark.parametrize("count", [1, 2, 9, 25])
def test_pictures_of_any_number_of_runs(tmp_path, count):
    """One run or many, with one quantity or several, give a picture of one width,
    and its height grows with both.
    """
    found = {
        f"run {number}": {"train/nll": [(5, 1.0), (9, 1.0 + number)]}
        for number in range(count)
    }
    narrow = size(draw(found, tmp_path / "pictures" / "one.png"))
    for name in list(found)[:1]:
        found[name] |= {"valid/bleu": [(5, 1.0)], "train/learning_rate": [(5, 0.0)]}
    wide = size(draw(found, tmp_path / "pictures" / "three.png"))
    assert wide[0] == 2 * narrow[0]
    assert wide[1] > 1.3 * 300


def test_runs_of_one_name(tmp_path):
    """Runs are called by their directories, with as many parents as tell them apart."""
    paths = [tmp_path / part for part in ("x/base", "y/base", "y/deep")]
    assert name_runs(paths) == ["x/base", "y/base", "y/deep"]
    assert name_runs(paths[1:]) == ["base", "deep"]
    assert name_runs(paths[:1]) == ["base"]
    with pytest.raises(InputError, match=r"y/\.\./x/base is named twice"):
        name_runs([*paths, tmp_path / "y" / ".." / "x" / "base"])


def test_one_point_and_equal_points_have_a_view():
    """A view is never empty, whatever was recorded."""
    for values in ([0.0], [3.0], [-2.0], [5.0, 5.0], [0.0, 0.0]):
        for key in ("train/nll", "train/learning_rate"):
            (panel,) = arrange({"a": {key: list(enumerate(values, 1))}})
            assert panel.low < panel.high
            assert all(panel.low <= value <= panel.high for value in values)


def test_the_first_steps_do_not_set_the_view():
    """What a run falls from in its first steps is above the view, in which the rest
    can be told apart.
    """
    curve = [(step, 10.0 if step < 5 else 2.0 + step / 1000) for step in range(1, 101)]
    (panel,) = arrange({"a": {"train/nll": curve}})
    assert panel.high < 3.0


def test_long_curves_are_means():
    """Of too many points equally many are averaged: few are left, the total stays,
    and so does the last step.
    """
    rng = np.random.default_rng(4)
    for count, most in ((1, 5), (5, 5), (6, 3), (1000, 250), (960, 240)):
        curve = [
            (3 * i + 3, float(value)) for i, value in enumerate(rng.normal(size=count))
        ]
        thinned = thin(curve, most)
        assert len(thinned) <= most
        assert thinned[-1][0] == curve[-1][0]
        if count <= most:
            assert thinned == curve
        else:
            assert np.mean([v for _, v in thinned]) == pytest.approx(
                np.mean([v for _, v in curve])
            )


def test_runs_without_a_record(runs, tmp_path):
    """A directory that is no run, and a run that has recorded nothing, are named."""
    with pytest.raises(
        InputError,
        match=r"no file .*nowhere/metrics\.jsonl: name the directory of a run",
    ):
        read_runs([*runs, tmp_path / "nowhere"])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match="records of new have no points"):
        draw(read_runs([tmp_path / "new"]), tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
    assert list(read_runs([*runs, tmp_path / "new"])) == ["a", "b", "new"]
