"""``evaluate``: one JSON object, results.json, and the translations next to it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cli.text import change, write

from jaxformer.data import sources
from jaxformer.evaluation import metrics
from jaxformer.translation.translator import Translator


def read_results(run):
    return json.loads((run / "results.json").read_text())


def read_hypotheses(run, entry):
    return (run / entry["hypotheses"]).read_text().split("\n")[:-1]


@pytest.fixture
def reversal(run):
    """Return the run with the data sets of the reversal task."""
    languages = {"source_language": "forwards", "target_language": "backwards"}
    change(run, "data", test="synthetic:reverse/test", **languages)
    return run


@pytest.fixture(scope="module")
def pairs():
    return list(sources.load("synthetic:reverse/valid", "", ""))[:20]


@pytest.fixture
def files(tmp_path, pairs):
    """Return a source and a reference."""
    source = write(tmp_path / "source", [pair.source for pair in pairs])
    return source, write(tmp_path / "reference", [pair.target for pair in pairs])


def test_default_is_the_test_set(call, reversal, translator):
    """Without a word, all of ``data.test`` is scored once, in order."""
    given = list(sources.load("synthetic:reverse/test", "", ""))
    outcome = call("evaluate", f"--workdir={reversal}", "--beam_size=1")
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    ((name, entry),) = read_results(reversal).items()
    hypotheses = read_hypotheses(reversal, entry)
    assert record["dataset"] == "synthetic:reverse/test"
    assert record["sentences"] == len(hypotheses) == 500
    texts = [pair.source for pair in given]
    assert hypotheses == translator.translate(texts, beam_size=1)
    score = metrics.score(metrics.BLEU, hypotheses, [pair.target for pair in given])
    found = (record["bleu"], record["bleu_signature"])
    assert found == (round(score.value, 2), score.signature)
    added = {key: entry[key] for key in ("hypotheses", "hypotheses_sha256")}
    assert name == "synthetic:reverse/test beam_size=1"
    assert entry == {**record, **added}


def test_each_setting_has_a_result_of_its_own(call, reversal, files):
    """Other search options, another checkpoint, metrics and references do not replace
    a result. A data set by name is the same as its files.
    """
    source, reference = files
    options = [f"--workdir={reversal}", f"--source={source}", "--metrics=bleu"]
    given = [*options, f"--reference={reference}"]
    first = json.loads(call("evaluate", *given).out)
    assert (first["sentences"], first["checkpoint"]) == (20, 10)
    for more in (["--beam_size=1"], ["--beam_size=1", "--checkpoint=latest"]):
        assert call("evaluate", *given, *more).code == 0
    dataset = f"text:{source},{reference}"
    given = [f"--workdir={reversal}", f"--dataset={dataset}", "--metrics=bleu"]
    by_name = json.loads(call("evaluate", *given).out)
    assert {**by_name, "seconds": 0} == {**first, "seconds": 0}
    results = read_results(reversal)
    names = ("", " beam_size=1", " beam_size=1 checkpoint=latest")
    assert list(results) == [f"{dataset}{name}" for name in names]
    assert len({entry["hypotheses"] for entry in results.values()}) == 3
    assert all((reversal / entry["hypotheses"]).exists() for entry in results.values())


def test_search_options_metrics_and_references(
    call, reversal, files, pairs, translator
):
    """Each option changes the search, is in the record, and names the entry. The named
    metrics are recorded, against all references.
    """
    source, reference = files
    references = [[pair.target for pair in pairs], [f"x {p.target}" for p in pairs]]
    other = write(source.with_name("other"), references[1])
    options = [f"--source={source}", f"--reference={reference}", f"--reference={other}"]
    chosen = {"beam_size": 2, "length_penalty": "average", "max_length_ratio": 1.5}
    chosen |= {"no_repeat_ngram": 2, "batch_size": 4}
    options += [f"--{name}={value}" for name, value in chosen.items()]
    options += ["--no_unknown", "--split_long", "--metrics=chrf++,ter"]
    record = json.loads(call("evaluate", f"--workdir={reversal}", *options).out)
    decoding = {**chosen, "no_unknown": True, "long_sources": "split"}
    assert {name: record["decoding"][name] for name in decoding} == decoding
    ((name, entry),) = read_results(reversal).items()
    assert all(f" {key}={value}" in name for key, value in decoding.items())
    assert name.endswith(" references=2")
    decoding = dataclasses.replace(translator.decoding, **decoding)
    texts = [pair.source for pair in pairs]
    hypotheses = translator.translate(texts, decoding=decoding)
    assert read_hypotheses(reversal, entry) == hypotheses
    score = metrics.score(metrics.CHRF_PLUS_PLUS, hypotheses, *references)
    found = (record["chrf++"], record["chrf++_signature"])
    assert found == (round(score.value, 2), score.signature)
    score = metrics.score(metrics.TER, hypotheses, *references)
    assert record["ter"] == round(score.value, 2)
    assert "bleu" not in record


def test_a_parser_is_scored_by_f1(call, reversal, files):
    """A run whose best checkpoint is by F1 has F1 in its result, and needs trees for
    it.
    """
    change(reversal, "evaluation", best_metric="f1")
    source, reference = files
    given = [f"--workdir={reversal}", f"--source={source}", f"--reference={reference}"]
    assert "reference 1 is" in call("evaluate", *given).error
    write(reference, ["(S (NP XX )NP . )S"] * 20)
    record = json.loads(call("evaluate", *given).out)
    assert record["f1"] == 0.0  # what it writes is no tree
    assert record["f1_signature"].startswith("f1|nrefs:1|rules:evalb")
    assert "bleu" in record


def test_sources_longer_than_training_saw_are_counted(call, run, tmp_path):
    """The record has their number, the limit, and what was done; standard error says it
    once.
    """
    source = write(tmp_path / "in", ["Open the file. " * 30, "a"])
    reference = write(tmp_path / "out", "ab")
    given = [f"--workdir={run}", f"--source={source}", f"--reference={reference}"]
    outcome = call("evaluate", *given, "--beam_size=1")
    (record,) = read_results(run).values()
    assert record["long_sources"] == {"limit": 64, "cut": 1, "whole": 0}
    assert outcome.err.startswith("jaxformer: warning: sources of more than 64 tokens")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--source=a", "--source and --reference go together"),
        ("--source=a --reference=b --dataset=c", "either --dataset, or --source and"),
        ("--dataset=bundled:en-de/tset", "did you mean bundled:en-de/test?"),
        ("--source=FILE --reference=FILE --reference=SHORT", "reference 2 has 1 lines"),
        (
            "--target_language=en",
            "the run translates only into backwards, not into 'en'",
        ),
    ],
)
def test_wrong_options(options, rule, call, reversal, files):
    short = write(files[0].with_name("short"), "a")
    given = options.replace("FILE", str(files[0])).replace("SHORT", str(short)).split()
    assert rule in call("evaluate", f"--workdir={reversal}", *given).error


def test_another_direction_and_damaged_results_are_found_before_the_work(
    call, reversal, monkeypatch
):
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    change(reversal, "data", language_tags=True)
    error = call("evaluate", f"--workdir={reversal}", "--target_language=en").error
    assert "goes into backwards, not into en: name a --dataset in that" in error
    (reversal / "results.json").write_text("{")
    error = call("evaluate", f"--workdir={reversal}").error
    assert "results.json is not JSON" in error


@pytest.mark.parametrize("named", [True, False])
def test_empty_sides_are_counted(call, reversal, tmp_path, named):
    """Pairs with an empty side are said on standard error; where all are, the set is
    refused before the model translates.
    """

    def evaluate(*pairs):
        source = write(tmp_path / "a", [pair[0] for pair in pairs])
        reference = write(tmp_path / "b", [pair[1] for pair in pairs])
        given = [f"--source={source}", f"--reference={reference}"]
        if named:
            given = [f"--dataset=text:{source},{reference}"]
        return call("evaluate", f"--workdir={reversal}", "--beam_size=1", *given)

    assert evaluate(("a b", "b a"), ("c", "c")).err == ""
    outcome = evaluate(("a b", "b a"), ("c", ""), ("\x01", "c"))
    assert outcome.code == 0
    said = "warning: 2 of 3 pairs have an empty side, and count\n"
    assert outcome.err == f"jaxformer: {said}"
    outcome = evaluate(("a", ""), ("", "c"))
    assert outcome.code == 1
    assert "has no pair with text on both sides" in outcome.error
