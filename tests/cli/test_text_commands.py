"""``translate`` and ``score``: text in, text out, one line for each."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from translation.translators import teacher_forced, token_ids

import runs
from jaxformer.data.files import read_lines
from jaxformer.data.sources import Pair
from jaxformer.search.constraints import Constraints
from jaxformer.translation import translator as translator_module
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator

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
    """One line out for each line in, in order; nothing else is said."""
    outcome = call("translate", workdir, stdin=encode(TEXT))
    assert outcome == (0, encode(translator.translate(TEXT)), "")
    assert len(outcome.lines) == len(TEXT)
    assert outcome.lines[1] == outcome.lines[2] == ""


def test_file_to_file(call, workdir, tmp_path):
    """Files give what the streams give."""
    (tmp_path / "in").write_bytes(encode(TEXT))
    outcome = call(
        "translate",
        workdir,
        f"--input={tmp_path / 'in'}",
        f"--output={tmp_path / 'out'}",
    )
    assert outcome == (0, b"", "")
    assert (tmp_path / "out").read_bytes() == call(
        "translate", workdir, stdin=encode(TEXT)
    ).out


@pytest.mark.parametrize(
    ("stdin", "count"),
    [
        (b"", 0),
        (b"\n", 1),
        (b"a", 1),
        (b"a\r\nb\r\n", 2),
        (b"\xef\xbb\xbfa\n", 1),
        (b"a\n\n\nb", 4),
    ],
)
def test_line_ends(stdin, count, call, workdir, translator):
    """Windows line ends, a byte order mark and a missing last line end change
    nothing.
    """
    outcome = call("translate", workdir, stdin=stdin)
    assert outcome.code == 0
    assert outcome.out.count(b"\n") == count
    plain = stdin.decode("utf-8-sig").replace("\r", "").split("\n")[:count]
    assert outcome.out == encode(translator.translate(plain))


def test_search_options(call, workdir, translator):
    """Beam and length penalty given here go before those of the run."""
    lines = runs.sentences(6, longest=12, shortest=12)
    for beam_size, alpha in ((1, 0.6), (4, 1.5)):
        outcome = call(
            "translate",
            workdir,
            f"--beam_size={beam_size}",
            f"--alpha={alpha}",
            stdin=encode(lines),
        )
        assert outcome.lines == translator.translate(
            lines, beam_size=beam_size, alpha=alpha
        )


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (
            ["--length_penalty=average", "--alpha=1"],
            {"length_penalty": "average", "alpha": 1.0},
        ),
        (
            ["--min_length=20", "--max_target_length=25"],
            {"min_length": 20, "max_target_length": 25},
        ),
        (
            ["--min_length_ratio=0.9", "--batch_size=2"],
            {"min_length_ratio": 0.9, "batch_size": 2},
        ),
        (
            ["--max_length_ratio=0.5", "--tokens_per_batch=40"],
            {"max_length_ratio": 0.5, "tokens_per_batch": 40},
        ),
        (["--max_extra_length=0"], {"max_extra_length": 0}),
        (
            ["--no_repeat_ngram=2", "--repetition_penalty=1.5", "--no_unknown"],
            {"no_repeat_ngram": 2, "repetition_penalty": 1.5, "no_unknown": True},
        ),
        (
            [
                "--sample",
                "--temperature=0.8",
                "--top_k=30",
                "--top_p=0.9",
                "--min_p=0.01",
                "--epsilon=0.001",
                "--seed=5",
            ],
            {
                "sample": True,
                "temperature": 0.8,
                "top_k": 30,
                "top_p": 0.9,
                "min_p": 0.01,
                "epsilon": 0.001,
                "seed": 5,
            },
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_decoding_options(options, changes, call, workdir, translator):
    """Each option is the key of that name, goes before that of the run, and changes
    what comes.
    """
    lines = runs.sentences(6, longest=12, shortest=12)
    outcome = call("translate", workdir, *options, stdin=encode(lines))
    assert outcome.lines == translator.translate(
        lines, decoding=dataclasses.replace(translator.decoding, **changes)
    )
    assert outcome.lines != translator.translate(lines)


def test_banned_words_and_prefixes(call, workdir, translator, tmp_path):
    """``--ban`` may be repeated; ``--prefix`` has a line for each line of input,
    blank where nothing is asked for.
    """
    lines = ["", *runs.sentences(6, longest=12, shortest=12)]
    prefixes = ["", "Datei öffnen", "", "Die", "", "", ""]
    (tmp_path / "prefix").write_bytes(encode(prefixes))
    vocabulary, plain = runs.vocabulary(), translator.search(lines)
    used = [piece[1:] for (best,) in plain for piece in best.tokens if piece[0] == "▁"]
    words = [word for word in used if word and len(vocabulary.encode(word)) == 1][:2]
    options = [f"--prefix={tmp_path / 'prefix'}", *(f"--ban={word}" for word in words)]
    outcome = call("translate", workdir, *options, stdin=encode(lines))
    assert outcome.lines == translator.translate(lines, ban=words, prefixes=prefixes)
    assert all(
        line.startswith(prefix)
        for line, prefix in zip(outcome.lines, prefixes, strict=True)
    )
    assert outcome.lines != translator.translate(lines, prefixes=prefixes)


def test_required_phrases_and_alternatives(call, workdir, translator, tmp_path):
    """``--require`` and ``--prefix`` have a line for each line of input, whose parts
    are separated by tabs.
    """
    lines = ["", *runs.sentences(2, longest=12, shortest=12)]
    (tmp_path / "require").write_bytes(encode(["", "Datei\tTabelle", ""]))
    (tmp_path / "prefix").write_bytes(encode(["", "", "Die\tund"]))
    given = [f"--{name}={tmp_path / name}" for name in ("require", "prefix")]
    outcome = call("translate", workdir, *given, stdin=encode(lines))
    required, prefixes = [[], ["Datei", "Tabelle"], []], ["", "", ["Die", "und"]]
    assert outcome.lines == translator.translate(
        lines, required=required, prefixes=prefixes
    )
    assert all(phrase in outcome.lines[1] for phrase in ("Datei", "Tabelle"))
    assert outcome.lines[2].startswith(("Die", "und"))
    error = call(
        "translate", workdir, *given, "--beam_size=1", stdin=encode(lines)
    ).error
    assert "required phrases need a beam_size of at least 2" in error


def test_samples(call, workdir):
    """``--n_best`` is the number of samples, beyond any beam, and the seed decides
    which.
    """
    lines = encode(runs.sentences(2, longest=12, shortest=12))
    first, again, other = (
        call(
            "translate",
            workdir,
            "--sample",
            "--n_best=7",
            f"--seed={seed}",
            stdin=lines,
        ).lines
        for seed in (1, 1, 2)
    )
    assert [line.split("\t")[0] for line in first] == ["1"] * 7 + ["2"] * 7
    assert first == again != other
    assert len(set(first)) > 7


@pytest.mark.parametrize("option", ["--beam_size=4", "--beam_size=1", "--sample"])
def test_json_lines_have_the_tokens_own_scores(option, call, workdir, translator):
    """They sum to the log-probability, and are those of the very tokens in one forward
    pass; ``score`` segments the text again, and may find other tokens.
    """
    texts = runs.sentences(4, longest=12, shortest=12)
    output = call(
        "translate", workdir, option, "--format=jsonl", stdin=encode(texts)
    ).lines
    found = [json.loads(line)["translations"][0] for line in output]
    hypotheses = [
        Hypothesis("", 0, 0, each["tokens"], each["finished"]) for each in found
    ]
    assert any(each["tokens"][-1] == "</s>" for each in found)
    ids = [token_ids(translator, each) for each in hypotheses]
    table = teacher_forced(translator, texts, ids)
    for row, each in enumerate(found):
        own = each["token_log_probabilities"]
        np.testing.assert_allclose(
            own, table[row, np.arange(len(own)), ids[row]], rtol=1e-4, atol=1e-4
        )
        assert len(own) == len(each["tokens"])
        assert math.isclose(
            math.fsum(own), each["log_probability"], rel_tol=0, abs_tol=1e-4
        )


def test_a_translation_that_options_leave_none(call, workdir, monkeypatch):
    """It is an empty line, and null for the score where the form has a word for it."""
    ban = np.ones(runs.vocabulary().size, bool)
    monkeypatch.setattr(
        translator_module, "ban_tokens", lambda *_: Constraints(banned_tokens=ban)
    )
    assert call("translate", workdir, stdin=b"Open the file.\n") == (0, b"\n", "")
    (line,) = call(
        "translate", workdir, "--format=jsonl", stdin=b"Open the file.\n"
    ).lines
    (only,) = json.loads(
        line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )["translations"]
    nothing = {
        "text": "",
        "score": None,
        "log_probability": None,
        "tokens": [],
        "finished": False,
    }
    assert only == {**nothing, "token_log_probabilities": []}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            ["--top_k=5"],
            "--top_k is for drawing at random: add --sample, or leave it out",
        ),
        (["--sample", "--top_p=2"], "--top_p must be at most 1, not 2.0"),
        (
            ["--length_penalty=long"],
            "--length_penalty must be one of gnmt, average, none, not 'long'",
        ),
        (["--ban="], "a banned word must not be blank"),
        (["--prefix=nowhere"], "nowhere"),
    ],
)
def test_decoding_options_out_of_range(options, rule, call, workdir):
    """One line says what is wrong with an option."""
    assert rule in call("translate", workdir, *options, stdin=b"a\n").error


def test_checkpoint(call, workdir):
    """``best``, ``latest`` and a step choose the parameters."""
    lines = encode(runs.sentences(6, longest=12, shortest=12))
    best, latest = (
        call("translate", workdir, f"--checkpoint={name}", stdin=lines).out
        for name in ("best", "latest")
    )
    assert best != latest
    assert call("translate", workdir, "--checkpoint=10", stdin=lines).out == best
    assert call("translate", workdir, stdin=lines).out == best


def test_n_best(call, workdir, translator):
    """Each line is number, score and translation, the best first."""
    lines = runs.sentences(6, longest=12, shortest=12)
    outcome = call("translate", workdir, "--n_best=4", stdin=encode(["", *lines]))
    fields = [line.split("\t") for line in outcome.lines]
    found = translator.search(["", *lines], n_best=4)
    assert fields == [
        [str(number), f"{hypothesis.score:.4f}", hypothesis.text]
        for number, hypotheses in enumerate(found, start=1)
        for hypothesis in hypotheses
    ]
    assert [number for number, *_ in fields] == ["1"] + [
        str(n) for n in range(2, 8) for _ in range(4)
    ]


@pytest.mark.parametrize("n_best", [1, 4])
def test_json_lines(n_best, call, workdir, translator):
    """One object a sentence, which says everything about its translations."""
    outcome = call(
        "translate", workdir, f"--n_best={n_best}", "--format=jsonl", stdin=encode(TEXT)
    )
    records = [json.loads(line) for line in outcome.lines]
    assert [record["source"] for record in records] == TEXT
    for record, hypotheses in zip(
        records, translator.search(TEXT, n_best=n_best), strict=True
    ):
        assert record["translations"] == [
            hypothesis.to_json() for hypothesis in hypotheses
        ]
    assert "Größe".encode() in outcome.out  # text is text, not escapes


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
    assert outcome.lines == [
        f"{score.log_probability:.6f}\t{score.tokens}"
        for score in translator.score(given)
    ]


def test_score_as_json_lines(call, workdir, translator, files, tmp_path):
    """The same as objects, into a file."""
    given, options = files
    outcome = call(
        "score", workdir, *options, "--format=jsonl", f"--output={tmp_path / 'out'}"
    )
    assert outcome == (0, b"", "")
    records = [json.loads(line) for line in read_lines(tmp_path / "out")]
    assert records == [score.to_json() for score in translator.score(given)]


def test_summary_of_scores(call, workdir, translator, files, tmp_path):
    """``--summary`` gives one object instead of lines: sums over all pairs, and what
    follows from them.
    """
    given, options = files
    outcome = call("score", workdir, *options, "--summary")
    assert (outcome.code, outcome.err) == (0, "")
    (line,) = outcome.lines
    record = json.loads(line)
    scores = translator.score(given)
    tokens, total = (
        sum(score.tokens for score in scores),
        sum(score.log_probability for score in scores),
    )
    assert (record["sentences"], record["tokens"]) == (7, tokens)
    assert record["words"] == sum(len(pair.target.split()) + 1 for pair in given)
    assert record["nll"] == pytest.approx(-total / tokens, abs=1e-5)
    assert record["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-4)
    assert record["word_perplexity"] == pytest.approx(
        math.exp(-total / record["words"]), rel=1e-4
    )
    assert (
        call(
            "score", workdir, *options, "--summary", f"--output={tmp_path / 'out'}"
        ).out
        == b""
    )
    assert json.loads((tmp_path / "out").read_text()) == record


def test_what_is_read_is_not_written(call, tmp_path):
    """A file that is both input and output is refused, and stays as it was."""
    text = tmp_path / "a.en"
    text.write_text("Open the file.\n", encoding="utf-8")
    outcome = call(
        "translate",
        f"--workdir={runs.random_run()}",
        f"--input={text}",
        f"--output={text}",
    )
    assert outcome.error == f"{text} is the file that is read: name another to write"
    assert text.read_text(encoding="utf-8") == "Open the file.\n"
