"""The learning curve shows what a run recorded; a record that cannot be drawn is
refused.
"""

import json

import pytest

from jaxformer.errors import InputError
from jaxformer.runs import records
from jaxformer.visualization import curves


@pytest.fixture
def record(tmp_path):
    """A record of strange lines: the last entry of a step counts, and steps come in
    order.
    """
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 3, "train/nll": NaN, "a": "x"}\n{"step": 2, "train/nll": Infinity}\n'
        '{"step": 5, "train/nll": null, "valid/bleu": 5}\n{"step": 4, "train/nll": 4}\n'
        '{"step": 1, "train/nll": 7}\n\n{"step": 1, "train/nll": 1}\n'
    )
    return path


def test_curves_are_the_recorded_points(record):
    """NaN, infinity and null are left out of curves and listed as gaps; a torn last
    line is passed over.
    """
    found = {"train/nll": [(1, 1.0), (4, 4.0)], "valid/bleu": [(5, 5.0)]}
    whole = record.read_bytes()
    for torn in (b"", b'{"step": 1100, "train/n', b'{"x": "\xc3', b"{"):
        record.write_bytes(whole + torn)
        assert records.read_curves(record) == found
        assert records.read_gaps(record) == {"train/nll": [2, 3, 5]}


@pytest.mark.parametrize("entries", [[], [{"step": 1, "train/loss": 3.0}], None])
def test_a_record_without_points(entries, tmp_path):
    """It is named, and no picture is left."""
    path, wanted = tmp_path / "m.jsonl", r"no file .*m\.jsonl"
    if entries is not None:
        path.write_text("".join(map(json.dumps, entries)) + "\n")
        wanted = r"m\.jsonl has none of train/nll, valid/nll, valid/bleu"
    with pytest.raises(InputError, match=wanted):
        curves.draw(path, tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("line", ["no json", '{"train/nll": 1.0}', "[" * 100_000])
def test_a_broken_line_inside(line, tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(InputError, match=r"line 2 of .*m\.jsonl") as caught:
        records.read_curves(path)
    assert "\n" not in str(caught.value)
