"""The table of the benchmark of the server compares rounds."""

import pytest

import serve


def test_ratios_are_medians_of_rounds():
    """Each rate is compared with the search of its own round."""

    def turn(rate):
        return {"work": rate, "seconds": 1.0, "p50": 0.1, "p99": 0.15}

    answers = {
        ("", serve.SEARCH): [turn(10), turn(20), turn(40)],
        ("64", serve.OURS): [turn(9), turn(20), turn(60)],
        ("64", serve.THEIRS): [turn(3), turn(2), turn(6)],
    }
    rows = serve.summarize(answers)
    assert [row["per_second"] for row in rows] == [20, 20, 3]
    assert [row["ratio"] for row in rows] == [None, 10, 1]
    figures = {row["figure"]: row["value"] for row in serve.compare(answers)}
    assert figures["64 clients, to libretranslate"] == 10
    assert figures["64 clients, to the search in its process"] == 1
    assert figures["64 clients, p99 / p50"] == pytest.approx(1.5)
