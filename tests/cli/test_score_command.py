"""``score``: log-probabilities of given translations, one line for each pair."""

from __future__ import annotations

import json
import math

import pytest
from cli.text import write

import runs
from jaxformer.data.sources import Pair


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
    """``--summary`` prints sums over all pairs, and what follows from them."""
    outcome = call("score", workdir, *files, "--summary")
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    scores = translator.score(pairs)
    tokens = sum(score.tokens for score in scores)
    words = sum(len(pair.target.split()) + 1 for pair in pairs)
    nll = -sum(score.log_probability for score in scores)
    counts = {"sentences": 7, "tokens": tokens, "words": words}
    assert {name: record[name] for name in counts} == counts
    assert record["nll"] == pytest.approx(nll / tokens, abs=1e-5)
    assert record["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-4)
    expected = pytest.approx(math.exp(nll / words), rel=1e-4)
    assert record["word_perplexity"] == expected
