"""``evaluate``: one JSON object, results.json, and the translations beside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import runs
from jaxformer.data import sources
from jaxformer.evaluation import metrics
from jaxformer.translation.translator import Translator

LANGUAGES = {"source_language": "forwards", "target_language": "backwards"}


@pytest.fixture
def reversal(tmp_path) -> Path:
    """Copy the run of random parameters, with the data sets of the reversal task."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    change(run, "data", test="synthetic:reverse/test", **LANGUAGES)
    return run


def change(run: Path, section: str, **values: object) -> None:
    config = json.loads((run / "config.json").read_text())
    config[section] |= values
    (run / "config.json").write_text(json.dumps(config))


def write_pairs(directory: Path, count: int) -> tuple[Path, Path]:
    given = list(sources.load("synthetic:reverse/valid", "", ""))[:count]
    paths = directory / "some.forwards", directory / "some.backwards"
    for path, lines in zip(paths, zip(*given, strict=True), strict=True):
        path.write_text("".join(line + "\n" for line in lines))
    return paths


def test_default_is_the_test_set(call, reversal):
    """Without a word, all of ``data.test`` is scored once, in order."""
    outcome = call("evaluate", f"--workdir={reversal}", "--beam_size=1")
    assert outcome.code == 0
    assert outcome.err == ""
    (line,) = outcome.lines
    record = json.loads(line)
    given = list(sources.load("synthetic:reverse/test", "", ""))
    results = json.loads((reversal / "results.json").read_text())
    (entry,) = results.values()
    hypotheses = (reversal / entry["hypotheses"]).read_text().split("\n")[:-1]
    assert record["dataset"] == "synthetic:reverse/test"
    assert record["sentences"] == len(hypotheses) == 500
    assert hypotheses == Translator.load(reversal).translate(
        [pair.source for pair in given], beam_size=1
    )
    score = metrics.score(metrics.BLEU, hypotheses, [pair.target for pair in given])
    assert (record["bleu"], record["bleu_signature"]) == (
        round(score.value, 2),
        score.signature,
    )
    added = {key: entry[key] for key in ("hypotheses", "hypotheses_sha256")}
    assert results == {"synthetic:reverse/test beam_size=1": {**record, **added}}


def test_a_parser_is_scored_by_f1(call, reversal, tmp_path):
    """A run whose best checkpoint is by F1 has F1 in its result without being asked,
    and needs trees for it.
    """
    change(reversal, "evaluation", best_metric="f1")
    source, reference = write_pairs(tmp_path, 2)
    options = (
        f"--workdir={reversal}",
        "--checkpoint=latest",
        f"--source={source}",
        f"--reference={reference}",
    )
    assert "reference 1 is" in call("evaluate", *options).error
    reference.write_text("(S (NP XX )NP . )S\n(S XX )S\n")
    record = json.loads(call("evaluate", *options).lines[0])
    assert record["f1"] == 0.0  # what it writes is no tree
    assert record["f1_signature"].startswith("f1|nrefs:1|rules:evalb")
    assert "bleu" in record


def test_other_settings_do_not_replace_a_result(call, reversal):
    """A greedy score stands beside that of the run's own settings, each with its
    translations.
    """
    options = [f"--workdir={reversal}", "--dataset=synthetic:reverse/valid"]
    for more in (
        [],
        ["--beam_size=1"],
        ["--beam_size=1", "--alpha=0"],
        ["--checkpoint=latest"],
        [],
    ):
        assert call("evaluate", *options, *more).code == 0
    results = json.loads((reversal / "results.json").read_text())
    names = ["", " beam_size=1", " beam_size=1 alpha=0.0", " checkpoint=latest"]
    assert list(results) == [f"synthetic:reverse/valid{name}" for name in names]
    assert len({entry["hypotheses"] for entry in results.values()}) == 4
    assert all((reversal / entry["hypotheses"]).exists() for entry in results.values())


def test_search_options(call, reversal, tmp_path):
    """Those of ``translate``: each changes the search, is in the record, and names an
    entry of its own.
    """
    source, reference = write_pairs(tmp_path, 20)
    files = [f"--source={source}", f"--reference={reference}"]
    chosen = {
        "beam_size": 2,
        "length_penalty": "average",
        "min_length_ratio": 0.5,
        "max_length_ratio": 1.5,
    }
    chosen |= {
        "max_extra_length": 9,
        "no_repeat_ngram": 2,
        "batch_size": 4,
        "tokens_per_batch": 500,
    }
    given = [f"--{name}={value}" for name, value in chosen.items()]
    record = json.loads(
        call(
            "evaluate",
            f"--workdir={reversal}",
            *files,
            *given,
            "--no_unknown",
            "--split_long",
        ).out
    )
    decoding = {**chosen, "no_unknown": True, "long_sources": "split"}
    assert {name: record["decoding"][name] for name in decoding} == decoding
    ((name, entry),) = json.loads((reversal / "results.json").read_text()).items()
    assert all(f"{key}={value}" in name for key, value in decoding.items())
    translator = Translator.load(reversal)
    expected = translator.translate(
        source.read_text().splitlines(),
        decoding=dataclasses.replace(translator.decoding, **decoding),
    )
    assert (reversal / entry["hypotheses"]).read_text().split("\n")[:-1] == expected
    error = call("evaluate", f"--workdir={reversal}", *files, "--top_k=3").error
    assert error == "--top_k is for drawing at random: add --sample, or leave it out"


def test_the_record_counts_sources_longer_than_training_saw(call, tmp_path):
    """How many there were, the limit, and what was done stand in the record;
    standard error says it once.
    """
    run = runs.copy(runs.random_run(), tmp_path / "run")
    (tmp_path / "in").write_text("Open the file. " * 30 + "\na\n")
    (tmp_path / "out").write_text("a\nb\n")
    outcome = call(
        "evaluate",
        f"--workdir={run}",
        f"--source={tmp_path / 'in'}",
        f"--reference={tmp_path / 'out'}",
    )
    (record,) = json.loads((run / "results.json").read_text()).values()
    assert record["long_sources"] == {"limit": 64, "cut": 1, "whole": 0}
    assert outcome.err.startswith("jaxformer: warning: sources of more than 64 tokens")
    assert outcome.err.count("\n") == 1


def test_own_files_and_another_set(call, reversal, tmp_path):
    """Files of the user's and named data sets add to the results."""
    source, reference = write_pairs(tmp_path, 64)
    options = [f"--workdir={reversal}", "--beam_size=4", "--alpha=0"]
    record = json.loads(
        call("evaluate", *options, f"--source={source}", f"--reference={reference}").out
    )
    assert record["sentences"] == 64
    assert record["dataset"] == f"text:{source},{reference}"
    assert record["decoding"]["beam_size"] == 4
    assert record["decoding"]["alpha"] == 0.0
    by_name = json.loads(
        call("evaluate", *options, f"--dataset=text:{source},{reference}").out
    )
    assert {**by_name, "seconds": 0} == {**record, "seconds": 0}
    assert list(json.loads((reversal / "results.json").read_text())) == [
        f"{record['dataset']} beam_size=4 alpha=0.0"
    ]


def test_metrics_and_references(call, reversal, tmp_path):
    """The metrics that are named are recorded, against all references, under an
    entry of its own.
    """
    source, reference = write_pairs(tmp_path, 40)
    other = tmp_path / "other"
    other.write_text(
        "".join(f"x {line}\n" for line in reference.read_text().splitlines())
    )
    options = [
        f"--source={source}",
        f"--reference={reference}",
        f"--reference={other}",
        "--beam_size=1",
    ]
    record = json.loads(
        call("evaluate", f"--workdir={reversal}", *options, "--metrics=chrf++,ter").out
    )
    results = json.loads((reversal / "results.json").read_text())
    ((name, entry),) = results.items()
    assert name == f"text:{source},{reference} beam_size=1 references=2"
    hypotheses = (reversal / entry["hypotheses"]).read_text().split("\n")[:-1]
    references = [path.read_text().split("\n")[:-1] for path in (reference, other)]
    score = metrics.score(metrics.CHRF_PLUS_PLUS, hypotheses, *references)
    assert (record["chrf++"], record["chrf++_signature"]) == (
        round(score.value, 2),
        score.signature,
    )
    assert record["ter"] == round(
        metrics.score(metrics.TER, hypotheses, *references).value, 2
    )
    assert "bleu" not in record


def test_wrong_references_and_metrics(call, tmp_path, monkeypatch):
    """They are named before anything is loaded or translated."""
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    source, reference = write_pairs(tmp_path, 4)
    workdir, options = (
        f"--workdir={runs.random_run()}",
        [f"--source={source}", f"--reference={reference}"],
    )
    (tmp_path / "short").write_text("a\n")
    error = call(
        "evaluate", workdir, *options, f"--reference={tmp_path / 'short'}"
    ).error
    assert "reference 2 has 1 lines for 4 sentences" in error
    assert (
        "did you mean bleu?"
        in call("evaluate", workdir, *options, "--metrics=bluu").error
    )


def test_one_sentence(call, reversal, tmp_path):
    """A single sentence has a score too; the checkpoint is recorded."""
    source, reference = write_pairs(tmp_path, 1)
    options = [f"--source={source}", f"--reference={reference}", "--checkpoint=latest"]
    record = json.loads(call("evaluate", f"--workdir={reversal}", *options).out)
    assert record["sentences"] == 1
    assert record["checkpoint"] == 20


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--source=a"], "--source and --reference go together"),
        (["--reference=a"], "--source and --reference go together"),
        (
            ["--source=a", "--reference=b", "--dataset=c"],
            "either --dataset, or --source and --reference",
        ),
        (["--dataset=bundled:en-de/tset"], "did you mean bundled:en-de/test?"),
        (["--dataset=bundle:en-de/test"], "did you mean bundled:?"),
        (["--dataset=newstest2014"], "no data set 'newstest2014'"),
        (["--dataset=text:only.en"], "must name one source and one target file"),
        (["--dataset=bundled:en-de/valid"], "has no language 'forwards'"),
        (
            ["--checkpoint=7", "--dataset=synthetic:reverse/valid"],
            "there is no checkpoint '7'",
        ),
        (["--beam_size=0"], "--beam_size must be at least 1, not 0"),
        (["--alpha=nan"], "--alpha must be at least -10, not nan"),
    ],
)
def test_wrong_options(options, rule, call, reversal):
    """What cannot be scored ends with one line."""
    assert rule in call("evaluate", f"--workdir={reversal}", *options).error


@pytest.mark.parametrize(
    ("tags", "name", "wanted", "message"),
    [
        (
            True,
            "text:{0}/a.en,{0}/a.de",
            "en",
            "not into en: name a --dataset in that direction",
        ),
        (
            True,
            "bundled:en-de/test",
            "en",
            "in that direction, such as --dataset='bundled:en-de/test [de>en]'",
        ),
        (
            True,
            "bundled:en-de/test [en>de]",
            "fr",
            "in that direction, such as --dataset='bundled:en-de/test [en>fr]'",
        ),
        (
            False,
            "bundled:en-de/test",
            "en",
            (
                "the run translates only into de, not into en: leave out"
                " --target_language"
            ),
        ),
    ],
)
def test_another_direction(call, tmp_path, tags, name, wanted, message):
    """What is suggested makes sense: where the order of the files is the direction,
    no brackets turn it round.
    """
    run = runs.copy(runs.random_run(), tmp_path / "run")
    languages = {"source_language": "en", "target_language": "de"}
    change(run, "data", language_tags=tags, **languages)
    for language in ("en", "de"):
        (tmp_path / f"a.{language}").write_text("a\n")
    name = name.format(tmp_path)
    error = call(
        "evaluate",
        f"--workdir={run}",
        f"--dataset={name}",
        f"--target_language={wanted}",
    ).error
    assert error.endswith(message)


def test_damaged_results_are_found_before_the_work(call, reversal, monkeypatch):
    """Hours of translation are not lost to a file that cannot be read afterwards."""
    (reversal / "results.json").write_text("{")
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    assert "results.json is not JSON" in call("evaluate", f"--workdir={reversal}").error
