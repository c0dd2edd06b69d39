"""The learning curve shows what a run recorded, and a record that cannot be drawn
says so.
"""

import json
import math
import struct

import pytest

from jaxformer.errors import InputError
from jaxformer.runs import records
from jaxformer.visualization import curves


def write(path, records, tail=""):
    path.write_text(
        "".join(json.dumps(record) + "\n" for record in records) + tail,
        encoding="utf-8",
    )
    return path


def size(picture):
    """Read width and height in pixels from the head of a PNG."""
    head = picture.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.fixture
def record(tmp_path):
    """A run of a thousand steps."""
    entries = []
    for step in range(100, 1001, 100):
        entry = {
            "step": step,
            "train/nll": 9.0 / math.sqrt(step),
            "train/learning_rate": 1e-3,
            "note": "unknown",
        }
        if step % 500 == 0:
            entry |= {"valid/nll": 10.0 / math.sqrt(step), "valid/bleu": step / 100}
        entries.append(entry)
    return write(tmp_path / "metrics.jsonl", entries)


def test_picture_is_900_pixels_wide(record, tmp_path):
    """The picture is a PNG fit for a page of text, in a directory that need not
    exist.
    """
    picture = curves.draw(record, tmp_path / "deep" / "curve.png")
    assert picture == tmp_path / "deep" / "curve.png"
    width, height = size(picture)
    assert width == 900
    assert 250 < height < 600


@pytest.mark.parametrize("key", ["train/nll", "valid/nll", "valid/bleu"])
@pytest.mark.parametrize("points", [1, 3])
def test_any_one_curve_is_enough(tmp_path, key, points):
    """A run may record no more than one curve, and no more than one point of it."""
    records = [{"step": step, key: 2.0 + step} for step in range(1, points + 1)]
    assert (
        size(curves.draw(write(tmp_path / "m.jsonl", records), tmp_path / "curve.png"))[
            0
        ]
        == 900
    )


def test_curves_are_the_recorded_points(record):
    """Every number of the record comes back at its step, whatever its key."""
    read = records.read_curves(record)
    assert read["valid/bleu"] == [(500, 5.0), (1000, 10.0)]
    assert [step for step, _ in read["train/nll"]] == list(range(100, 1001, 100))
    assert read["train/nll"][3] == (400, pytest.approx(0.45))
    assert "note" not in read
    assert "step" not in read


def test_a_torn_last_line_is_passed_over(record):
    """A line that a killed process left unfinished takes nothing from the picture."""
    whole = records.read_curves(record)
    for torn in (
        '{"step": 1100, "train/n',
        '{"step": 1100, "train/nll": 1.0, "x": "\xc3',
        "{",
    ):
        record.write_bytes(
            record.read_bytes().rpartition(b"\n")[0] + b"\n" + torn.encode("latin-1")
        )
        assert records.read_curves(record) == whole


def test_points_that_are_no_numbers_are_left_out(tmp_path):
    """NaN, infinity and null draw nothing; the last entry of a step counts; steps
    come in order.
    """
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"step": 3, "train/nll": NaN}\n{"step": 2, "train/nll": Infinity}\n{"step": 5,'
        ' "train/nll": null}\n{"step": 4, "train/nll": 4}\n{"step": 1, "train/nll":'
        ' 7}\n\n{"step": 1, "train/nll": 1}\n',
        encoding="utf-8",
    )
    assert records.read_curves(path) == {"train/nll": [(1, 1.0), (4, 4.0)]}


def test_where_a_curve_has_no_number(tmp_path):
    """The steps at which a value is missing, infinite or not a number are given by
    key, and no others.
    """
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 2, "a": NaN, "b": 1}\n{"step": 1, "a": 3.0, "b": null}\n{"step": 3,'
        ' "a": -Infinity, "c": "x"}\n'
    )
    assert records.read_gaps(path) == {"a": [2, 3], "b": [1]}
    with pytest.raises(InputError, match="there is no file"):
        records.read_gaps(tmp_path / "none")


def test_a_missing_record(tmp_path):
    """A run without a record is named."""
    with pytest.raises(InputError, match=r"no file .*metrics\.jsonl"):
        curves.draw(tmp_path / "metrics.jsonl", tmp_path / "curve.png")


@pytest.mark.parametrize("records", [[], [{"step": 1, "train/loss": 3.0}]])
def test_a_record_without_points(tmp_path, records):
    """A record without a curve is named, and no picture is left."""
    path = write(tmp_path / "m.jsonl", records)
    with pytest.raises(
        InputError, match=r"m\.jsonl has none of train/nll, valid/nll, valid/bleu"
    ):
        curves.draw(path, tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[1, 2]",
        "5",
        pytest.param("[" * 100_000, id="deep"),
        pytest.param("1" * 5_000, id="long"),
        '{"train/nll": 1.0}',
        '{"step": "one"}',
    ],
)
def test_a_broken_line_inside(tmp_path, line):
    """A broken line before the last is an error that names the line."""
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"step": 1, "train/nll": 1.0}\n' + line + '\n{"step": 2, "train/nll": 1.0}\n',
        encoding="utf-8",
    )
    with pytest.raises(InputError, match=r"line 2 of .*m\.jsonl") as caught:
        records.read_curves(path)
    assert "\n" not in str(caught.value)
