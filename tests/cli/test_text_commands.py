"""``translate`` and ``score``: text in, text out, one line for each."""

from __future__ import annotations

import json

import pytest

import runs
from jaxformer.data import read_lines, sources
from jaxformer.data.sources import Pair
from jaxformer.decoding.translator import Translator

TEXT = [
    "Open the file.",
    "",
    "   ",
    "</s>",
    "one\u2028two\x85three",
    "🙂🎉",
    "\x00\x01\x07",
    "Größe",
    "Insert a new table.",
]


@pytest.fixture(scope="module")
def workdir():
    return f"--workdir={runs.random_run()}"


@pytest.fixture(scope="module")
def translator():
    return Translator.load(runs.random_run())


def encode(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# translate


def test_standard_input_to_standard_output(call, workdir, translator):
    """One line out for each line in, in order; nothing else is said (statements 64, 103, 110)."""
    outcome = call("translate", workdir, stdin=encode(TEXT))
    assert outcome == (0, encode(translator.translate(TEXT)), "")
    assert len(outcome.lines) == len(TEXT)
    assert outcome.lines[1] == outcome.lines[2] == ""


def test_file_to_file(call, workdir, tmp_path):
    """Files give what the streams give."""
    (tmp_path / "in").write_bytes(encode(TEXT))
    outcome = call("translate", workdir, f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'out'}")
    assert outcome == (0, b"", "")
    assert (tmp_path / "out").read_bytes() == call("translate", workdir, stdin=encode(TEXT)).out


@pytest.mark.parametrize(
    ("stdin", "count"),
    [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\r\nb\r\n", 2), (b"\xef\xbb\xbfa\n", 1), (b"a\n\n\nb", 4)],
)
def test_line_ends(stdin, count, call, workdir, translator):
    """Windows line ends, a byte order mark and a missing last line end change nothing (statement 65)."""
    outcome = call("translate", workdir, stdin=stdin)
    assert outcome.code == 0
    assert outcome.out.count(b"\n") == count
    plain = stdin.decode("utf-8-sig").replace("\r", "").split("\n")[:count]
    assert outcome.out == encode(translator.translate(plain))


def test_search_options(call, workdir, translator):
    """Beam and length penalty given here go before those of the run."""
    lines = runs.sentences(6, longest=12, shortest=12)
    for beam_size, alpha in ((1, 0.6), (4, 1.5)):
        outcome = call("translate", workdir, f"--beam_size={beam_size}", f"--alpha={alpha}", stdin=encode(lines))
        assert outcome.lines == translator.translate(lines, beam_size=beam_size, alpha=alpha)


def test_checkpoint(call, workdir):
    """``best``, ``latest`` and a step choose the parameters."""
    lines = encode(runs.sentences(6, longest=12, shortest=12))
    best, latest = (call("translate", workdir, f"--checkpoint={name}", stdin=lines).out for name in ("best", "latest"))
    assert best != latest
    assert call("translate", workdir, "--checkpoint=10", stdin=lines).out == best
    assert call("translate", workdir, stdin=lines).out == best


def test_n_best(call, workdir, translator):
    """Each line is number, score and translation, the best first (statements 93, 97)."""
    lines = runs.sentences(6, longest=12, shortest=12)
    outcome = call("translate", workdir, "--n_best=4", stdin=encode(["", *lines]))
    fields = [line.split("\t") for line in outcome.lines]
    found = translator.search(["", *lines], n_best=4)
    assert fields == [
        [str(number), f"{hypothesis.score:.4f}", hypothesis.text]
        for number, hypotheses in enumerate(found, start=1)
        for hypothesis in hypotheses
    ]
    assert [number for number, *_ in fields] == ["1"] + [str(n) for n in range(2, 8) for _ in range(4)]


@pytest.mark.parametrize("n_best", [1, 4])
def test_json_lines(n_best, call, workdir, translator):
    """One object a sentence, which says everything about its translations."""
    outcome = call("translate", workdir, f"--n_best={n_best}", "--format=jsonl", stdin=encode(TEXT))
    records = [json.loads(line) for line in outcome.lines]
    assert [record["source"] for record in records] == TEXT
    for record, hypotheses in zip(records, translator.search(TEXT, n_best=n_best), strict=True):
        assert record["translations"] == [hypothesis._asdict() for hypothesis in hypotheses]
    assert "Größe".encode() in outcome.out  # text is text, not escapes


def test_in_one_piece_or_two(call):
    """Five hundred lines give five hundred in order, in one piece or split over two calls."""
    workdir = f"--workdir={runs.reversal_run()}"
    lines = [pair.source for pair in sources.load("synthetic:reverse/test", "", "")]
    whole = call("translate", workdir, "--beam_size=1", stdin=encode(lines)).lines
    parts = [call("translate", workdir, "--beam_size=1", stdin=encode(part)).lines for part in (lines[:64], lines[64:])]
    assert len(whole) == 500
    assert parts[0] + parts[1] == whole
    right = [" ".join(reversed(line.split())) == found for line, found in zip(lines, whole, strict=True)]
    assert sum(right) > 200


# score


@pytest.fixture
def files(tmp_path):
    """Write a source and a target."""
    given = [*runs.pairs()[:5], Pair("open", ""), Pair("one\u2028two", "eins\x85zwei")]
    for side in ("source", "target"):
        (tmp_path / side).write_bytes(encode([getattr(pair, side) for pair in given]))
    return given, [f"--{side}={tmp_path / side}" for side in ("source", "target")]


def test_score(call, workdir, translator, files):
    """Each pair of lines has its log-probability and its tokens, in order."""
    given, options = files
    outcome = call("score", workdir, *options)
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.lines == [f"{score.log_probability:.6f}\t{score.tokens}" for score in translator.score(given)]


def test_score_as_json_lines(call, workdir, translator, files, tmp_path):
    """The same as objects, into a file."""
    given, options = files
    outcome = call("score", workdir, *options, "--format=jsonl", f"--output={tmp_path / 'out'}")
    assert outcome == (0, b"", "")
    records = [json.loads(line) for line in read_lines(tmp_path / "out")]
    assert records == [score._asdict() for score in translator.score(given)]


def test_score_of_a_translation_is_its_log_probability(call, tmp_path):
    """What ``translate`` says of its translations, ``score`` says again (statement 89)."""
    workdir = f"--workdir={runs.reversal_run()}"
    lines = [pair.source for pair in list(sources.load("synthetic:reverse/valid", "", ""))[:64]]
    outcome = call("translate", workdir, "--format=jsonl", stdin=encode(lines))
    best = [json.loads(line)["translations"][0] for line in outcome.lines]
    for name, content in (("source", lines), ("target", [hypothesis["text"] for hypothesis in best])):
        (tmp_path / name).write_bytes(encode(content))
    outcome = call("score", workdir, f"--source={tmp_path / 'source'}", f"--target={tmp_path / 'target'}")
    scores = [line.split("\t") for line in outcome.lines]
    same = [
        float(score) == pytest.approx(hypothesis["log_probability"], rel=1e-4, abs=1e-4)
        for (score, tokens), hypothesis in zip(scores, best, strict=True)
        if int(tokens) == len(hypothesis["tokens"]) and hypothesis["finished"]
    ]
    assert len(same) > 50
    assert all(same)
