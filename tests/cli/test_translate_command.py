"""``translate``: text in, text out, one line for each, however long the input."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from cli.text import encode, write

import runs
from jaxformer.translation.rerank import choose
from jaxformer.translation.translator import Translator

ODD = ["", "   ", "</s>", "one\u2028two\x85three", "🙂🎉", "\x00\x01\x07", "Größe"]
TEXT = ["Open the file.", *ODD, "Insert a new table."]
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def records(outcome):
    assert (outcome.code, outcome.err) == (0, "")
    return [json.loads(line) for line in outcome.lines]


def told(found, kept=lambda texts: 0):
    """Return what standard error says of the best of some translations."""
    best = [each[kept([one.text for one in each])] for each in found]
    count = sum(not each.finished for each in best)
    line = f"jaxformer: warning: {count} of {len(best)} translations are unfinished:"
    return line if count else ""


def test_streams_and_files(call, workdir, translator, tmp_path):
    """One line out for each line in, in order; nothing else is said but how many are
    unfinished.
    """
    expected, said = encode(translator.translate(TEXT)), told(translator.search(TEXT))
    outcome = call("translate", workdir, stdin=encode(TEXT))
    assert outcome[:2] == (0, expected)
    assert outcome.err.startswith(said)
    assert outcome.err.count("\n") == bool(said)
    files = [f"--input={write(tmp_path / 'in', TEXT)}", f"--output={tmp_path / 'out'}"]
    assert call("translate", workdir, *files) == (0, b"", outcome.err)
    assert (tmp_path / "out").read_bytes() == expected
    given = (f"--input={tmp_path / 'in'}", f"--output={tmp_path / 'in'}")
    error = call("translate", workdir, *given).error
    assert error == f"{tmp_path / 'in'} is the file that is read: name another to write"
    assert (tmp_path / "in").read_bytes() == encode(TEXT)


SEARCH = {"beam_size": 2, "alpha": 1.5, "length_penalty": "average", "min_length": 9}
SEARCH |= {"max_target_length": 25, "min_length_ratio": 0.9, "max_length_ratio": 1.2}
SEARCH |= {"max_extra_length": 9, "no_repeat_ngram": 2, "repetition_penalty": 1.5}
SEARCH |= {"no_unknown": True, "batch_size": 4, "tokens_per_batch": 90}
SAMPLE = {"sample": True, "temperature": 0.8, "top_k": 30, "top_p": 0.9, "seed": 5}
SAMPLE |= {"min_p": 0.01, "epsilon": 0.001}


@pytest.mark.parametrize("changes", [SEARCH, SAMPLE])
def test_decoding_options(changes, call, workdir, translator, lines):
    """Each option is the key of that name, and goes before that of the run."""
    options = [
        f"--{key}" if v is True else f"--{key}={v}" for key, v in changes.items()
    ]
    outcome = call("translate", workdir, *options, stdin=encode(lines))
    decoding = dataclasses.replace(translator.decoding, **changes)
    assert outcome.lines == translator.translate(lines, decoding=decoding)
    assert outcome.lines != translator.translate(lines)


def test_constraints(call, workdir, translator, tmp_path, lines):
    """``--ban`` may be repeated; ``--prefix`` and ``--require`` have a line for each
    line of input, with tabs between their parts.
    """
    texts = ["", *lines[:3], *TEXT]
    required = [[], ["Datei", "Tabelle"], [], [], *[[]] * len(TEXT)]
    prefixes = ["", "", ["Die", "und"], "Datei öffnen", *[""] * len(TEXT)]
    write(tmp_path / "require", ["\t".join(each) for each in required])
    files = ["", "", "Die\tund", "Datei öffnen", *[""] * len(TEXT)]
    write(tmp_path / "prefix", files)
    given = {"required": required, "prefixes": prefixes}
    vocabulary, found = runs.vocabulary(), translator.search(texts, **given)
    used = [piece[1:] for (best,) in found for piece in best.tokens if piece[0] == "▁"]
    words = [word for word in used if word and len(vocabulary.encode(word)) == 1]
    kept = set(vocabulary.pieces(vocabulary.encode("Die und Datei Tabelle")))
    banned = [
        word
        for word in dict.fromkeys(words)
        if kept.isdisjoint({f"▁{word}", f"▁{word.capitalize()}"})
    ][:2]
    options = [f"--{name}={tmp_path / name}" for name in ("require", "prefix")]
    options += [f"--ban={word}" for word in banned]
    outcome = call("translate", workdir, *options, stdin=encode(texts))
    assert outcome.lines == translator.translate(texts, ban=banned, **given)
    assert outcome.lines != translator.translate(texts, **given)


@pytest.mark.parametrize(
    ("required", "options", "rule"),
    [
        ("Datei", ["--ban=Datei"], "'Datei', which --ban"),
        (
            "die neue Datei",
            ["--ban=datei", "--ban=neue"],
            "'die neue Datei', which --ban",
        ),
        (
            "und und",
            ["--no_repeat_ngram=1"],
            "'und und', which --ban or no_repeat_ngram forbids",
        ),
    ],
)
def test_a_phrase_that_is_required_and_forbidden(
    required, options, rule, call, workdir, tmp_path
):
    """It is named with its line before anything is translated; what holds a part of a
    banned phrase is allowed.
    """
    path = write(tmp_path / "require", ["", f"Tabelle\t{required}"])
    given = ("translate", workdir, f"--require={path}")
    error = call(*given, *options, stdin=b"a\nb\n").error
    assert error.startswith(f"{path}, line 2 has the required phrase {rule}")
    apart = ["--ban=neue neue", "--no_repeat_ngram=3"]
    assert call(*given, *apart, stdin=b"a\nb\n").code == 0


def test_several_translations(call, workdir, translator):
    """Each line is number, score and translation, the best first; as JSON lines, one
    object a sentence. Samples may be more than the beam.
    """
    found = translator.search(TEXT, n_best=4)
    outcome = call("translate", workdir, "--n_best=4", stdin=encode(TEXT))
    assert [line.split("\t") for line in outcome.lines] == [
        [str(number), f"{each.score:.4f}", each.text]
        for number, hypotheses in enumerate(found, start=1)
        for each in hypotheses
    ]
    given = ("--n_best=4", "--format=jsonl")
    outcome = call("translate", workdir, *given, stdin=encode(TEXT))
    assert "Größe".encode() in outcome.out  # text is text, not escapes
    for record, text, each in zip(records(outcome), TEXT, found, strict=True):
        assert record["source"] == text
        assert record["translations"] == [best.to_json() for best in each]
        languages = record["source_language"], record["target_language"]
        assert languages == ("en", "de")
    for form in ("text", "jsonl"):
        given = ("--n_best=2", "--distinct", f"--format={form}")
        outcome = call("translate", workdir, *given, stdin=encode(TEXT))
        expected = [list(dict.fromkeys(one.text for one in each)) for each in found]
        texts = [[] for _ in TEXT]
        for number, line in enumerate(outcome.lines):
            if form == "text":
                place, _, text = line.split("\t")
                texts[int(place) - 1].append(text)
            else:
                texts[number] = [x["text"] for x in json.loads(line)["translations"]]
        assert texts == [each[:2] for each in expected]
    assert "--distinct leaves" in call("translate", workdir, "--distinct").error
    samples = call("translate", workdir, "--sample", "--n_best=7", stdin=b"a\nb\n")
    assert [line[0] for line in samples.lines] == ["1"] * 7 + ["2"] * 7


def test_alignments(call, workdir, translator, lines):
    """They are parts of the JSON lines: Pharaoh's form, and the weights where they
    are asked for.
    """
    texts = ["", *lines]
    found = translator.search(texts, beam_size=1, alignment=True)
    given = ("translate", workdir, "--beam_size=1", "--format=jsonl")
    for option, soft in (("--alignment", False), ("--alignment=soft", True)):
        outcome = call(*given, option, stdin=encode(texts))
        for record, (best,) in zip(records(outcome), found, strict=True):
            (each,) = record["translations"]
            expected = best.to_json(soft_alignment=True)
            assert {**each, "weights": 0} == {**expected, "weights": 0}
            assert ("weights" in each) == soft


def test_paragraphs(call, workdir, translator):
    """A line of sentences keeps the white space between them."""
    texts = [each for each in runs.sentences(9, shortest=4) if each.endswith(".")]
    line = "  ".join(text for text in texts if "." not in text[:-1])
    options = ("--paragraphs", "--beam_size=1")
    outcome = call("translate", workdir, *options, stdin=encode([line]))
    assert outcome.lines == translator.translate([line], paragraphs=True, beam_size=1)
    assert "  " in outcome.lines[0]


@pytest.mark.slow
def test_ensembles(call, run, translator, tmp_path, lines):
    """Runs and checkpoints that are named predict together, each with its weight, and
    an existing directory goes before a checkpoint of that name. The results of an
    evaluation and of ``score`` are theirs too.
    """
    models = [translator, Translator.load(runs.random_run(), "latest")]
    run = run.rename(tmp_path / "a@10")
    options = [f"--workdir={run}", f"--ensemble={run}@20"]
    for weights in (None, [3, 1]):
        expected = Translator.ensemble(models, weights).translate(lines)
        assert expected != translator.translate(lines)
        given = ["--ensemble_weights=3,1"] if weights else []
        assert (
            call("translate", *options, *given, stdin=encode(lines)).lines == expected
        )
    pairs = runs.pairs()[:3]
    source = write(tmp_path / "source", [pair.source for pair in pairs])
    target = write(tmp_path / "target", [pair.target for pair in pairs])
    files = [f"--source={source}", f"--target={target}", "--ensemble_weights=3,1"]
    outcome = call("score", *options, *files)
    scores = Translator.ensemble(models, [3, 1]).score(pairs)
    assert [float(line.split("\t")[0]) for line in outcome.lines] == pytest.approx(
        [score.log_probability for score in scores], rel=1e-5
    )
    files = [f"--source={source}", f"--reference={target}", "--metrics=bleu"]
    given = "--ensemble_weights=3,0.5"
    assert call("evaluate", *options, *files, given, "--beam_size=1").code == 0
    ((name, record),) = json.loads((run / "results.json").read_text()).items()
    assert name.endswith(f" beam_size=1 ensemble={run}@20 ensemble_weights=3,0.5")
    assert record["checkpoint"] == "3*a@10@10 + 0.5*a@10@20"
    outcome = call("translate", options[0], f"--ensemble={run}", stdin=encode(lines))
    assert outcome.lines == translator.translate(lines)


def test_minimum_bayes_risk(call, workdir, lines):
    """One translation a line: that of the highest mean chrF against the other
    samples.
    """
    given = ("--sample", "--n_best=5", "--temperature=0.5", "--format=jsonl")
    stdin = encode([*lines, ""])
    drawn = records(call("translate", workdir, *given, stdin=stdin))
    texts = [[each["text"] for each in record["translations"]] for record in drawn]
    expected = [each[choose(each)] for each in texts]
    assert expected != [record["translations"][0]["text"] for record in drawn]
    found = records(call("translate", workdir, *given, "--mbr", stdin=stdin))
    chosen = [[each["text"] for each in record["translations"]] for record in found]
    assert chosen == [[text] for text in expected]
    outcome = call("translate", workdir, *given[:3], "--mbr", stdin=stdin)
    assert outcome[:2] == (0, encode(expected))
    finished = [record["translations"][0]["finished"] for record in found]
    said = f"{finished.count(False)} of {len(found)} translations are unfinished"
    assert (said in outcome.err) == (False in finished)


def test_long_lines_are_reported_once(call, workdir, tmp_path):
    """A line of many sentences comes out as they do one a line; there is one warning
    for all windows.
    """
    texts = [f"{text}." for text in runs.sentences(24, longest=16, shortest=12)]
    sentences = [text for text in texts if text[0].isupper()]
    given = ("translate", "--beam_size=1")
    single = call(*given, workdir, stdin=encode(sentences))
    unfinished = single.err.splitlines()
    assert len(unfinished) <= 1
    long = encode([" ".join(sentences), "a"] * 2)
    outcome = call(*given, workdir, "--window=1", stdin=long)
    joined = " ".join(filter(None, single.lines))
    assert outcome.lines[0] == outcome.lines[2] == joined
    warning = "jaxformer: warning: sources of more than 64 tokens: "
    split = "2 translated in parts, at sentence or word ends\n"
    assert outcome.err.startswith(warning + split)
    assert outcome.err.count(warning) == 1
    whole = f"--workdir={runs.refusing_run()}"
    said = call(*given, whole, stdin=encode([" ".join(sentences[:6])])).err
    cure = "1 translated whole, of which text may be missing: add --split_long"
    assert said.startswith(warning + cure)


MOST_MODULES = 88
LIST_MODULES = """
import sys
from jaxformer.cli.main import main
code = main(sys.argv[1:])
print(*(x for x in sys.modules if x.split(".")[0] == "jaxformer"), file=sys.stderr)
sys.exit(code)
"""


def test_a_process_answers_line_by_line(workdir, translator):
    """With a window of one, each line is answered before the next is given. The process
    loads only what a reader of that path needs to open.
    """
    line = [sys.executable, "-c", LIST_MODULES, "translate", workdir, "--window=1"]
    options = {"cwd": runs.ROOT, "env": runs.environment(), **PIPES}
    with subprocess.Popen([*line, "--beam_size=1"], **options) as process:
        texts, answers = ["Open the file.", "", "one\rtwo", "Open the file."], []
        for text in texts:
            process.stdin.write(encode([text]))
            process.stdin.flush()
            answers.append(process.stdout.readline())
        out, err = process.communicate()
    assert (process.returncode, out) == (0, b"")
    assert b"".join(answers) == encode(translator.translate(texts, beam_size=1))
    assert len(err.splitlines()[-1].split()) <= MOST_MODULES, err


def test_a_pipe_that_stands_still_is_answered(workdir, translator):
    """All lines that came, in order, before the pipe ends."""
    line = [sys.executable, "-m", "jaxformer.cli.main", "translate", workdir]
    options = {"cwd": runs.ROOT, "env": runs.environment(), **PIPES}
    with subprocess.Popen([*line, "--beam_size=1"], **options) as process:
        for texts in (["Open the file.", "", "one"], ["Insert a table."]):
            process.stdin.write(encode(texts))
            process.stdin.flush()
            answers = b"".join(process.stdout.readline() for _ in texts)
            assert answers == encode(translator.translate(texts, beam_size=1))
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, b"")


def test_a_reader_that_goes_ends_the_command(workdir):
    """It fails without a word, and nothing follows when the process ends."""
    line = [sys.executable, "-m", "jaxformer.cli.main", "translate", workdir]
    options = {"cwd": runs.ROOT, "env": runs.environment(), **PIPES}
    with subprocess.Popen([*line, "--beam_size=1", "--window=1"], **options) as process:
        process.stdout.close()
        _, err = process.communicate(b"a\n" * 20)
    assert (process.returncode, err) == (1, b"")


def test_a_bad_line_of_a_file_leaves_an_older_output(call, tmp_path):
    """The line is named. One that is not UTF-8 is found before any is translated."""
    workdir, output = f"--workdir={runs.refusing_run()}", tmp_path / "out"
    write(output, ["saved"])
    (tmp_path / "in").write_bytes(b"a\n" * 30 + b"\xff")
    given = [f"--input={tmp_path / 'in'}", "--window=5", f"--output={output}"]
    assert "in, line 31: not UTF-8" in call("translate", workdir, *given).error
    assert output.read_text() == "saved\n"
    assert not (tmp_path / "out.part").exists()


def test_a_bad_line_of_a_stream_ends_it_at_its_window(call, translator, tmp_path):
    """The windows before it are written; the line is named; an older file stays."""
    given = [f"--workdir={runs.refusing_run()}", "--window=5", "--beam_size=1"]
    lines, output = runs.sentences(12), write(tmp_path / "out", ["saved"])
    stdin = encode([*lines, "word " * 300, *lines])
    expected = encode(translator.translate(lines[:10], beam_size=1))
    outcome = call("translate", *given, stdin=stdin)
    assert (outcome.code, outcome.out) == (1, expected)
    outcome = call("translate", *given, f"--output={output}", stdin=stdin)
    assert outcome.code == 1
    first, second = outcome.err.splitlines()
    assert first == f"the first 10 lines are in {output}.part; out is not written"
    assert second.startswith("jaxformer: error: standard input, line 13 has")
    assert output.read_text() == "saved\n"
    assert (tmp_path / "out.part").read_bytes() == expected


def test_texts_that_are_more_than_lines(call, workdir, translator, lines, tmp_path):
    """A document, and lines with placeholders and a glossary, are as in Python."""
    page = f"<p>{lines[0]}</p>\r\n<p><b>{lines[1]}</b></p>\r\n"
    outcome = call("translate", workdir, "--format=html", stdin=page.encode())
    (expected,) = translator.translate([page], format="html")
    assert (outcome.out.decode(), expected.count("\r\n")) == (expected, 2)
    term = lines[0].split()[0]
    terms = write(tmp_path / "terms", [f"{term}\tTabelle"])
    given = f"--glossary={terms}"
    outcome = call("translate", workdir, given, "--placeholders", stdin=encode(lines))
    how = {"glossary": {term: "Tabelle"}, "placeholders": True}
    assert outcome.lines == translator.translate(lines, **how)
    write(terms, [f"{term}\t{'Tabelle' * 20}"])
    outcome = call("translate", workdir, given, stdin=encode(lines[:1]))
    assert "lack terms that were asked for: TabelleTabelle" in outcome.err
    outcome = call("translate", workdir, "--format=html", "--n_best=2")
    assert outcome.code == 2
