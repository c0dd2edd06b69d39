"""``score``: log-probabilities of given translations, one line for each pair."""

from __future__ import annotations

import json

import pytest
from cli.text import write

import runs
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


def test_summary(call, workdir, translator, pairs, files):
    """``--summary`` prints the perplexity of all pairs."""
    outcome = call("score", workdir, *files, "--summary")
    assert (outcome.code, outcome.err) == (0, "")
    targets = [pair.target for pair in pairs]
    expected = perplexity(translator.score(pairs), targets).to_record()
    assert json.loads(outcome.out) == pytest.approx(expected, rel=1e-4)
