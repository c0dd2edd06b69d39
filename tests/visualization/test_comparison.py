"""Curves of several runs in one picture, each under a name of its own."""

import numpy as np
import pytest
from visualization.made import pixels

from jaxformer.errors import InputError
from jaxformer.visualization.comparison import arrange, draw, name_runs, read_runs, thin

HOSTILE = ["</script><script>", "<!--", "_x", "$a$ $b", "{{x}}", '"x"', "ü 東京"]


def test_pictures_of_any_number_of_runs(tmp_path):
    """A picture has two panels in a row, and is higher with more runs; any name
    serves.
    """
    curves = {"train/nll": [(5, 1.0), (9, 2.0)]}
    one = pixels(draw({"one": curves}, tmp_path / "pictures" / "one.png")).shape
    found = dict.fromkeys(
        [*HOSTILE, *(f"run {number}" for number in range(15))], curves
    )
    found["one"] = {**curves, "valid/bleu": [(5, 1.0)], "train/mfu": [(5, 0.0)]}
    many = pixels(draw(found, tmp_path / "many.png")).shape
    assert many[1] == 2 * one[1]
    assert many[0] > 2 * one[0]


def test_runs_of_one_name(tmp_path):
    """Runs are called by their directories, with as many parents as tell them apart."""
    paths = [tmp_path / part for part in ("x/base", "y/base", "y/deep")]
    assert name_runs(paths) == ["x/base", "y/base", "y/deep"]
    assert name_runs(paths[1:]) == ["base", "deep"]
    with pytest.raises(InputError, match=r"y/\.\./x/base is named twice"):
        name_runs([*paths, tmp_path / "y" / ".." / "x" / "base"])


@pytest.mark.parametrize("values", [[0.0], [3.0], [-2.0], [5.0, 5.0]])
def test_one_point_and_equal_points_have_a_view(values):
    for key in ("train/nll", "train/learning_rate"):
        (panel,) = arrange({"a": {key: list(enumerate(values, 1))}})
        assert panel.low < panel.high
        assert all(panel.low <= value <= panel.high for value in values)


def test_the_first_steps_do_not_set_the_view():
    """The rest can be told apart."""
    curve = [(step, 10.0 if step < 5 else 2.0 + step / 1000) for step in range(1, 101)]
    (panel,) = arrange({"a": {"train/nll": curve}})
    assert panel.high < 3.0


def test_long_curves_are_means():
    """Of too many points equally many are averaged; the last step stays."""
    curve = [(3 * i, float(i * i)) for i in range(10)]
    assert thin(curve, 10) == curve
    assert thin(curve, 5) == [(6 * i + 3, 4 * i * i + 2 * i + 0.5) for i in range(5)]
    assert [step for step, _ in thin(curve, 4)] == [6, 15, 24, 27]
    assert np.mean([v for _, v in thin(curve, 5)]) == np.mean([v for _, v in curve])


def test_runs_without_a_record(tmp_path):
    """A directory that is no run, and a run that has recorded nothing, are named."""
    for name, text in (("a", '{"step": 1, "train/nll": 2.0}\n'), ("new", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(text)
    runs = [tmp_path / "a", tmp_path / "new"]
    assert read_runs(runs) == {"a": {"train/nll": [(1, 2.0)]}, "new": {}}
    with pytest.raises(InputError, match=r"no file .*nowhere/metrics\.jsonl: name the"):
        read_runs([*runs, tmp_path / "nowhere"])
    with pytest.raises(InputError, match="records of new have no points"):
        draw(read_runs(runs[1:]), tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()
