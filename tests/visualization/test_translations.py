"""Compared systems as tables: every number and sentence is there."""

from visualization.made import make_comparison

from jaxformer.visualization.translations_table import format_range, write_table


def test_tables():
    """The report prints seed, scores with signature, tests against the first,
    buckets, and sentences both ways.
    """
    found = make_comparison("base", "other", "third")
    lines = list(write_table(found))
    assert lines[0].startswith("4 sentences, seed 12345: 100 bootstrap resamples")
    assert lines[1].endswith("are against base")
    assert f"BLEU  {found.results[0].score.signature}" in lines
    rows = {line.split()[0]: line.split() for line in reversed(lines) if line}
    for result in found.results[:3]:
        assert rows[result.system][1] == f"{result.score.value:.2f}"
        if result.bootstrap is not None:
            wins, p_value = result.bootstrap.wins, result.bootstrap.p_value
            tests = [f"{wins:.1%}", f"{p_value:.4f}", f"{result.randomization:.4f}"]
            assert rows[result.system][-3:] == tests
    assert "BLEU by length of the reference in words" in lines
    assert "F1 of words by their frequency in references" in lines
    titles = [line for line in lines if line.startswith("where ")]
    better = ["other is better than base", "base is better than other"]
    better.append("third is better than base")
    assert titles == [f"where {title}, by sentence chrF" for title in better]
    assert ["source", "source", "3", "<b>"] in [line.split() for line in lines]


def test_long_names_are_printed_once():
    """Names that would widen every table are replaced by letters."""
    names = "a/very/long/path/of/a/file.de", "b", "c"
    lines = list(write_table(make_comparison(*names)))
    assert lines[:3] == [f"A = {names[0]}", "B = b", "C = c"]
    assert not any(names[0] in line for line in lines[3:])
    assert any(line.startswith("where B is better than A") for line in lines)
    found = format_range(0, 0), format_range(2, 4), format_range(60, None)
    assert found == ("0", "2-4", "60+")
