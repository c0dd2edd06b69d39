"""``compare``: files and runs held against each other, as tables, JSON and a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import runs
from jaxformer.data import sources
from jaxformer.evaluation import metrics
from jaxformer.runs import records

PAIRS = list(sources.load("synthetic:reverse/valid", "", ""))[:40]
SET = "bundled:en-de/valid"
QUICK = ["--resamples=100", "--trials=20", "--examples=2"]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path, Path, Path]:
    """Write source, reference and two translations."""
    references = [pair.target for pair in PAIRS]
    worse = [
        " ".join(line.split()[: number % 4 + 3])
        for number, line in enumerate(references)
    ]
    better = [
        line if number % 3 else worse[number] for number, line in enumerate(references)
    ]
    texts = {
        "source": [pair.source for pair in PAIRS],
        "reference": references,
        "worse": worse,
        "better": better,
    }
    source, reference, first, second = (
        write(tmp_path / f"{name}.txt", lines) for name, lines in texts.items()
    )
    return source, reference, first, second


@pytest.fixture
def evaluated(tmp_path) -> list[Path]:
    """Make two runs that were evaluated on one set, without their models."""
    found = []
    for name, cut in (("base", 5), ("deep", 7)):
        run = tmp_path / name
        run.mkdir()
        (run / "config.json").write_bytes(
            (runs.random_run() / "config.json").read_bytes()
        )
        pairs = list(sources.load(SET, "en", "de"))
        texts, references = (
            [pair.source for pair in pairs],
            [pair.target for pair in pairs],
        )
        record = {
            "dataset": SET,
            "text": records.fingerprint(texts, [references]),
            "sentences": len(pairs),
        }
        hypotheses = [" ".join(line.split()[:cut]) for line in references]
        records.write_result(run, record, hypotheses)
        found.append(run)
    return found


def test_tables(call, files):
    """The report has the scores of sacreBLEU, seed and signature, on standard
    output; nothing else is said.
    """
    source, reference, first, second = files
    outcome = call(
        "compare",
        f"--reference={reference}",
        f"--source={source}",
        first,
        second,
        *QUICK,
    )
    assert (outcome.code, outcome.err) == (0, "")
    texts = [path.read_text().splitlines() for path in (reference, first, second)]
    scores = [metrics.score(metrics.BLEU, lines, texts[0]) for lines in texts[1:]]
    assert "seed 12345" in outcome.lines[0]
    assert f"BLEU  {scores[0].signature}" in outcome.lines
    rows = [
        line.split()
        for line in outcome.lines
        if line.startswith(("worse.txt", "better.txt"))
    ]
    assert [row[1] for row in rows[:2]] == [f"{score.value:.2f}" for score in scores]
    assert (
        "where better.txt is better than worse.txt, by sentence chrF" in outcome.lines
    )
    again = call(
        "compare",
        f"--reference={reference}",
        f"--source={source}",
        first,
        second,
        *QUICK,
    )
    assert again.out == outcome.out


def test_json_and_page(call, files, tmp_path):
    """``--json`` gives one object with everything, and ``--html`` writes the page
    beside it.
    """
    _, reference, first, second = files
    page = tmp_path / "page.html"
    options = [
        f"--reference={reference}",
        "--json",
        f"--html={page}",
        "--metrics=chrf++,ter,tokenized_bleu",
        "--seed=7",
    ]
    outcome = call("compare", *options, first, second, *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert record["config"]["seed"] == 7
    assert list(dict.fromkeys(result["metric"] for result in record["results"])) == [
        "chrf++",
        "ter",
        "tokenized_bleu",
    ]
    assert record["differences"]["better.txt"]["worse"] == []
    assert len(record["differences"]["better.txt"]["better"]) == 2
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert "|tok:none|" in record["results"][-1]["score"]["signature"]


def test_one_file_of_several_references(call, files):
    """One system is scored, against as many references as are given."""
    source, reference, first, _ = files
    outcome = call(
        "compare",
        f"--reference={reference}",
        f"--reference={source}",
        "--json",
        first,
        *QUICK,
    )
    (result, _) = json.loads(outcome.out)["results"]
    texts = [path.read_text().splitlines() for path in (first, reference, source)]
    assert result["score"]["value"] == pytest.approx(
        metrics.score(metrics.BLEU, *texts).value
    )
    assert result["score"]["signature"].startswith("nrefs:2|")


def test_frequencies_and_lengths(call, files, tmp_path):
    """Words are counted in the text of ``--frequencies``, sentences measured on the
    side of ``--lengths``.
    """
    source, reference, first, second = files
    training = write(tmp_path / "training.txt", ["a b c"])
    options = [
        f"--reference={reference}",
        f"--source={source}",
        f"--frequencies={training}",
        "--lengths=source",
    ]
    outcome = call("compare", *options, first, second, *QUICK)
    assert f"F1 of words by their frequency in {training}" in outcome.lines
    assert "BLEU by length of the source in words" in outcome.lines


def test_runs(call, evaluated):
    """Runs that were evaluated on one set need no more than their names: source and
    reference come with them.
    """
    outcome = call("compare", *evaluated, "--json", *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    pairs = list(sources.load(SET, "en", "de"))
    assert record["systems"] == ["base", "deep"]
    assert record["sentences"] == len(pairs)
    expected = [" ".join(pair.target.split()[:7]) for pair in pairs]
    score = next(
        r["score"]
        for r in record["results"]
        if (r["system"], r["metric"]) == ("deep", "chrf")
    )
    assert score["value"] == pytest.approx(
        metrics.score(metrics.CHRF, expected, [pair.target for pair in pairs]).value
    )
    shown = record["differences"]["deep"]["better"][0]
    assert shown["source"] == pairs[shown["number"] - 1].source


def test_other_settings_of_a_run(call, evaluated, tmp_path):
    """The result of the run's own settings goes first; another counts where it is
    the only one of its data set.
    """
    base, deep = evaluated
    (record,) = records.read_results(deep).values()
    records.write_result(deep, record, ["greedy"] * 500, variant="beam_size=1")
    plain = call("compare", base, deep, "--json", *QUICK).out
    (deep / "results.json").write_text(
        json.dumps(
            {
                name: entry
                for name, entry in records.read_results(deep).items()
                if "beam_size" in name
            }
        )
    )
    outcome = call("compare", base, deep, "--json", *QUICK)
    assert (outcome.code, outcome.err) == (0, "")
    texts = [
        json.loads(out)["differences"]["deep"]["worse"] for out in (outcome.out, plain)
    ]
    assert texts[0][0]["translations"][1] == "greedy"
    assert texts[1] == []
    records.write_result(deep, record, ["x"] * 500, variant="beam_size=2")
    assert (
        "several results for bundled:en-de/valid: give one of its hypotheses"
        in call("compare", base, deep).error
    )


def test_a_run_and_a_file(call, evaluated, tmp_path):
    """A file of translations stands beside a run where the reference is given."""
    pairs = list(sources.load(SET, "en", "de"))
    lines = [pair.target for pair in pairs]
    reference = write(tmp_path / "reference", lines)
    outcome = call(
        "compare",
        evaluated[0],
        write(tmp_path / "mine", lines),
        f"--reference={reference}",
        *QUICK,
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "where mine is better than base, by sentence chrF" in outcome.lines


def test_results_that_cannot_be_compared(call, evaluated, tmp_path):
    """Runs without a common result, on other text or of an earlier version, and
    changed files are named.
    """
    base, deep = evaluated
    (tmp_path / "empty").mkdir()
    assert (
        "has no results: run jaxformer evaluate --workdir="
        in call("compare", base, tmp_path / "empty").error
    )
    assert (
        "has no result 'x'; it has 'bundled:en-de/valid'"
        in call("compare", base, deep, "--dataset=x").error
    )
    record, lines = records.read_results(deep)[SET], ["a"] * 500
    for changes, message in (
        ({"text": "0"}, "evaluated on different text, each called bundled:en-de/valid"),
        ({"text": None}, "of an earlier version do not record their text"),
        ({"sentences": 3}, "has 500 lines and results.json says 3"),
    ):
        records.write_result(deep, {**record, **changes}, lines)
        assert message in call("compare", base, deep).error
    for run in evaluated:
        records.write_result(run, {**record, "text": "0"}, lines)
    assert "is not the text that" in call("compare", base, deep).error
    for run in evaluated:
        records.write_result(run, {**record, "dataset": "other"}, lines)
    assert (
        "several results: choose one by --dataset of 'bundled:en-de/valid', 'other'"
        in call("compare", base, deep).error
    )
    (base / "results.json").write_text(json.dumps({"mine": {}}))
    assert "share no result" in call("compare", base, deep).error


@pytest.mark.parametrize("place", range(4))
def test_the_page_takes_the_place_of_nothing_that_is_read(call, files, place):
    """The page may be none of source, references and translations, nor the text that
    words are counted in.
    """
    source, reference, first, second = files
    options = [
        f"--reference={reference}",
        f"--reference={source}",
        f"--source={source}",
        f"--html={files[place]}",
    ]
    before = files[place].read_bytes()
    error = call("compare", *options, first, second, *QUICK).error
    assert f"{files[place]} is the file that is read: name another to write" in error
    assert files[place].read_bytes() == before


def test_the_page_is_not_the_text_of_the_frequencies(call, files, tmp_path):
    """Words are counted in a text that stays as it is."""
    _, reference, first, _ = files
    text = write(tmp_path / "training.txt", ["a b c"])
    error = call(
        "compare",
        f"--reference={reference}",
        first,
        f"--frequencies={text}",
        f"--html={text}",
        *QUICK,
    ).error
    assert f"{text} is the file that is read: name another to write" in error
    assert text.read_text("utf-8") == "a b c\n"


def test_wrong_options(call, files, tmp_path):
    """What cannot be compared is said in one line, before any page is written."""
    _, reference, first, second = files
    short = write(tmp_path / "short", ["a"])
    given = f"--reference={reference}"
    page = tmp_path / "none" / "page.html"
    for options, message in (
        ([first, second], "give --reference=FILE"),
        ([given, first, short], "there are 1 hypotheses and 40 references"),
        ([given, first, first], "worse.txt is named twice"),
        ([given, first, tmp_path / "missing"], "no file"),
        ([given, first, second, "--dataset=x"], "no run is given"),
        (
            [given, first, second, "--metrics=blue"],
            "no metric 'blue'; did you mean bleu?",
        ),
        ([given, first, second, "--metrics=f1"], "f1 scores linearised trees such as"),
        ([given, first, second, "--lengths=source"], "give --source"),
        ([given, first, second, "--resamples=3"], "resamples must be at least 100"),
        ([given, first, second, f"--html={page}"], "there is no folder"),
        ([given, first, second, f"--source={short}"], "1 sources and 40 hypotheses"),
    ):
        assert message in call("compare", *options).error
    assert call("compare").code == 2
