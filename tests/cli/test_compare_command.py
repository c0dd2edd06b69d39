"""``compare``: files and runs compared, as tables, JSON and a page."""

from __future__ import annotations

import json

import pytest
from cli.text import write

import runs
from jaxformer.data import sources
from jaxformer.evaluation import metrics
from jaxformer.runs import records

SET = "bundled:en-de/valid"
QUICK = ["--resamples=100", "--trials=20", "--examples=2"]


@pytest.fixture(scope="module")
def texts():
    """Return source, reference and two translations by name."""
    pairs = list(sources.load("synthetic:reverse/valid", "", ""))[:40]
    references = [pair.target for pair in pairs]
    worse = [" ".join(x.split()[: n % 4 + 3]) for n, x in enumerate(references)]
    better = [x if n % 3 else worse[n] for n, x in enumerate(references)]
    given = {"source": [pair.source for pair in pairs], "reference": references}
    return {**given, "worse": worse, "better": better}


@pytest.fixture
def files(texts, tmp_path):
    return [write(tmp_path / f"{name}.txt", lines) for name, lines in texts.items()]


@pytest.fixture(scope="module")
def pairs():
    return list(sources.load(SET, "en", "de"))


@pytest.fixture
def evaluated(tmp_path, pairs):
    """Make two runs that were evaluated on one set, without their models."""
    references = [pair.target for pair in pairs]
    text = records.fingerprint([pair.source for pair in pairs], [references])
    for name, cut in (("base", 5), ("deep", 7)):
        run = tmp_path / name
        run.mkdir()
        config = (runs.random_run() / "config.json").read_bytes()
        (run / "config.json").write_bytes(config)
        record = {"dataset": SET, "text": text, "sentences": len(pairs)}
        records.write_result(
            run, record, [" ".join(x.split()[:cut]) for x in references]
        )
    return [tmp_path / "base", tmp_path / "deep"]


def test_tables(call, files, texts, tmp_path):
    """The report has the scores of sacreBLEU, seed and signature; words are counted in
    the text of ``--frequencies``, sentences measured on the side of ``--lengths``.
    """
    source, reference, first, second = files
    training = write(tmp_path / "training.txt", ["a b c"])
    given = [f"--reference={reference}", f"--source={source}", "--lengths=source"]
    given += [f"--frequencies={training}", first, second, *QUICK]
    outcome = call("compare", *given)
    assert (outcome.code, outcome.err) == (0, "")
    scores = [
        metrics.score(metrics.BLEU, texts[name], texts["reference"])
        for name in ("worse", "better")
    ]
    assert "seed 12345" in outcome.lines[0]
    starts = ("worse.txt", "better.txt")
    rows = [line.split() for line in outcome.lines if line.startswith(starts)]
    assert [row[1] for row in rows[:2]] == [f"{score.value:.2f}" for score in scores]
    assert {
        f"BLEU  {scores[0].signature}",
        "where better.txt is better than worse.txt, by sentence chrF",
        f"F1 of words by their frequency in {training}",
        "BLEU by length of the source in words",
    } <= set(outcome.lines)
    assert call("compare", *given).out == outcome.out


def test_json_and_page(call, files, texts, tmp_path):
    """``--format=json`` prints an object with everything, ``--html`` writes the page.
    One system is scored against as many references as are given.
    """
    source, reference, first, second = files
    page, names = tmp_path / "page.html", ["chrf++", "ter", "tokenized_bleu"]
    given = [f"--reference={reference}", "--format=json", "--seed=7", *QUICK]
    options = [f"--html={page}", f"--metrics={','.join(names)}", first, second]
    outcome = call("compare", *given, *options)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert record["config"]["seed"] == 7
    assert [each["metric"] for each in record["results"]] == [
        name for name in names for _ in range(2)
    ]
    assert record["differences"]["better.txt"]["worse"] == []
    assert len(record["differences"]["better.txt"]["better"]) == 2
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert "|tok:none|" in record["results"][-1]["score"]["signature"]

    outcome = call("compare", *given, f"--reference={source}", first)
    (result, _) = json.loads(outcome.out)["results"]
    lines = (texts[name] for name in ("worse", "reference", "source"))
    expected = metrics.score(metrics.BLEU, *lines)
    assert result["score"]["value"] == pytest.approx(expected.value)
    assert result["score"]["signature"].startswith("nrefs:2|")


def test_the_references_choose_the_tokenizer(call, tmp_path):
    """No language is given, and words are counted by it too."""
    lines = ["天地玄黄，宇宙洪荒。"] * 9
    reference, first = (write(tmp_path / name, lines) for name in ("a", "b"))
    outcome = call("compare", f"--reference={reference}", "--format=json", first)
    record = json.loads(outcome.out)
    assert "|tok:zh|" in record["results"][0]["score"]["signature"]
    assert [each["least"] for each in record["lengths"]] == [10]


def test_runs(call, evaluated, pairs, tmp_path):
    """Runs that were evaluated on one set need only their names: source and reference
    come with them. A file is compared with a run where the reference is given.
    """
    outcome = call("compare", *evaluated, "--format=json", *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert record["systems"] == ["base", "deep"]
    assert record["sentences"] == len(pairs)
    references = [pair.target for pair in pairs]
    deep = [" ".join(line.split()[:7]) for line in references]
    (score,) = (
        each["score"]["value"]
        for each in record["results"]
        if (each["system"], each["metric"]) == ("deep", "chrf")
    )
    expected = metrics.score(metrics.CHRF, deep, references).value
    assert score == pytest.approx(expected)
    shown = record["differences"]["deep"]["better"][0]
    assert shown["source"] == pairs[shown["number"] - 1].source

    reference = write(tmp_path / "reference", references)
    mine = write(tmp_path / "mine", references)
    outcome = call("compare", evaluated[0], mine, f"--reference={reference}", *QUICK)
    assert "where mine is better than base, by sentence chrF" in outcome.lines


def test_other_settings_of_a_run(call, evaluated):
    """The result of the run's own settings goes first; another counts where it is
    the only one of its data set.
    """
    base, deep = evaluated
    (record,) = records.read_results(deep).values()
    records.write_result(deep, record, ["greedy"] * 500, variant="beam_size=1")

    def worse():
        outcome = call("compare", base, deep, "--format=json", *QUICK)
        assert (outcome.code, outcome.err) == (0, "")
        return json.loads(outcome.out)["differences"]["deep"]["worse"]

    assert worse() == []
    results = records.read_results(deep)
    (deep / "results.json").write_text(
        json.dumps({k: v for k, v in results.items() if "beam_size" in k})
    )
    assert worse()[0]["translations"][1] == "greedy"
    records.write_result(deep, record, ["x"] * 500, variant="beam_size=2")
    rule = "several results for bundled:en-de/valid: give one of its hypotheses"
    assert rule in call("compare", base, deep).error


def test_results_that_cannot_be_compared(call, evaluated, tmp_path):
    """Runs without a common result, on other text or of an earlier version, and
    changed files are named.
    """
    base, deep = evaluated
    (tmp_path / "empty").mkdir()
    error = call("compare", base, tmp_path / "empty").error
    assert "has no results: run jaxformer evaluate --workdir=" in error
    error = call("compare", base, deep, "--dataset=x").error
    assert f"has no result 'x'; it has '{SET}'" in error
    record, lines = records.read_results(deep)[SET], ["a"] * 500
    for changes, message in (
        ({"text": "0"}, f"evaluated on different text, each called {SET}"),
        ({"text": None}, "of an earlier version do not record their text"),
    ):
        records.write_result(deep, {**record, **changes}, lines)
        assert message in call("compare", base, deep).error
    for changes, message in (
        ({"text": "0"}, "is not the text that"),
        ({"dataset": "other"}, f"choose one by --dataset of '{SET}', 'other'"),
    ):
        for run in evaluated:
            records.write_result(run, {**record, **changes}, lines)
        assert message in call("compare", base, deep).error
    (base / "results.json").write_text(json.dumps({"mine": {}}))
    assert "share no result" in call("compare", base, deep).error


def test_the_page_replaces_no_input(call, files, tmp_path):
    """The page may be none of source, references, frequencies and translations."""
    source, reference, first, second = files
    training = write(tmp_path / "training.txt", ["a b c"])
    for file in (*files, training):
        before = file.read_bytes()
        options = [f"--reference={reference}", f"--frequencies={training}"]
        options += [f"--source={source}", f"--html={file}", *QUICK]
        error = call("compare", *options, first, second).error
        assert f"{file} is the file that is read: name another to write" in error
        assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("worse.txt better.txt", 2, "give --reference=FILE"),
        ("--reference=short worse.txt", 1, "there are 40 hypotheses and 1 references"),
        (
            "--reference=reference.txt worse.txt worse.txt",
            1,
            "worse.txt is named twice",
        ),
        ("BOTH --metrics=blue", 2, "no metric 'blue'; did you mean bleu?"),
        ("BOTH --lengths=source", 2, "give --source"),
        ("BOTH --resamples=3", 2, "--resamples must be from 100 to 1,000,000, not 3"),
    ],
)
def test_wrong_options(options, code, message, call, files, tmp_path, monkeypatch):
    """What cannot be compared is one line, before any page is written."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "short", "a")
    both = "--reference=reference.txt worse.txt better.txt"
    outcome = call("compare", *options.replace("BOTH", both).split())
    assert (outcome.code, message in outcome.error) == (code, True)
