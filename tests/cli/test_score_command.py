"""``score``: log-probabilities of given translations, one line for each pair."""

from __future__ import annotations

import gzip
import json

import pytest
from cli.text import write

import runs
from jaxformer.cli import score as score_command
from jaxformer.data.sources import Pair
from jaxformer.evaluation.perplexity import perplexity


@pytest.fixture(scope="module")
def pairs():
    odd = [Pair("open", ""), Pair("one\u2028two", "eins\x85zwei")]
    return [*runs.pairs()[:5], *odd]


@pytest.fixture
def files(pairs, tmp_path):
    source = write(tmp_path / "source", [pair.source for pair in pairs])
    target = write(tmp_path / "target", [pair.target for pair in pairs])
    return [f"--source={source}", f"--target={target}"]


def test_score(call, workdir, translator, pairs, files, tmp_path):
    """Each pair of lines has its log-probability and its tokens, in order; as JSON
    lines it has them by name.
    """
    scores = translator.score(pairs)
    outcome = call("score", workdir, *files)
    assert (outcome.code, outcome.err) == (0, "")
    lines = [f"{score.log_probability:.6f}\t{score.tokens}" for score in scores]
    assert outcome.lines == lines
    output = tmp_path / "out"
    given = ("--format=jsonl", f"--output={output}")
    assert call("score", workdir, *files, *given) == (0, b"", "")
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert records == [score.to_json() for score in scores]


@pytest.fixture
def long_files(pairs, tmp_path):
    """Return files in which every third pair is too long, on either side."""
    long = "open " * 2000
    given = []
    for number, pair in enumerate(pairs):
        given.append(pair)
        if number % 2:
            given.append(Pair(long, "a") if number % 4 == 1 else Pair("a", long))
    source = write(tmp_path / "source", [pair.source for pair in given])
    target = write(tmp_path / "target", [pair.target for pair in given])
    return [f"--source={source}", f"--target={target}"], given


@pytest.mark.parametrize("window", [1, 2, 4, 100])
def test_a_long_pair_has_no_score(
    call, workdir, translator, pairs, long_files, window, monkeypatch
):
    """A pair that is too long has empty columns in its line, and is counted once on
    standard error; the others are scored as without it, whatever the window.
    """
    monkeypatch.setattr(score_command, "_WINDOW", window)
    files, given = long_files
    kept = dict(zip(pairs, translator.score(pairs), strict=True))
    outcome = call("score", workdir, *files)
    assert outcome.code == 0
    assert outcome.err == (
        "jaxformer: warning: 3 of 10 pairs are too long for the model: no score\n"
    )
    for pair, line in zip(given, outcome.lines, strict=True):
        probability, tokens = line.split("\t")
        if pair in kept:
            assert float(probability) == pytest.approx(
                kept[pair].log_probability, rel=1e-5
            )
            assert int(tokens) == kept[pair].tokens
        else:
            assert probability == tokens == ""
    records = call("score", workdir, *files, "--format=jsonl").lines
    for pair, record in zip(given, map(json.loads, records), strict=True):
        assert (record["log_probability"] is None) == (pair not in kept)
        assert record.keys() == {"log_probability", "tokens"}
    summary = json.loads(call("score", workdir, *files, "--summary").out)
    expected = perplexity(list(kept.values()), [pair.target for pair in kept])
    assert summary == pytest.approx(expected.to_record(), rel=1e-4)


@pytest.mark.parametrize("window", [1, 2, 100])
def test_strict_refuses_a_long_pair(call, workdir, long_files, window, monkeypatch):
    """``--strict`` ends with the file and the line of the first pair that is too long,
    counted over all windows.
    """
    monkeypatch.setattr(score_command, "_WINDOW", window)
    files, _ = long_files
    outcome = call("score", workdir, *files, "--strict")
    assert outcome.code == 1
    source = files[0].partition("=")[2]
    assert outcome.err.startswith(f"jaxformer: error: {source}, line 3 has ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_files_without_a_line_have_no_scores(call, workdir, tmp_path, name):
    """As they have no translations; one side alone is an error."""
    path, other = tmp_path / name, write(tmp_path / "other", ["a"])
    path.write_bytes(gzip.compress(b"") if path.suffix else b"")
    files = f"--source={path}", f"--target={path}"
    assert call("score", workdir, *files) == (0, b"", "")
    for source, target in ((path, other), (other, path)):
        error = call("score", workdir, f"--source={source}", f"--target={target}").error
        assert error.startswith(f"{source} has ")
        assert "line i of one must translate line i of the other" in error


def test_all_pairs_too_long(call, workdir, tmp_path):
    """Where nothing can be scored, each line says so, and no perplexity is invented."""
    long = write(tmp_path / "long", ["open " * 2000] * 2)
    files = [f"--source={long}", f"--target={long}"]
    assert call("score", workdir, *files).lines == ["\t", "\t"]
    outcome = call("score", workdir, *files, "--summary")
    assert outcome.code == 1
    assert "0 scores" in outcome.err
