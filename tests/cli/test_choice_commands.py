"""Several models, and the choice among several translations, on the command line."""

from __future__ import annotations

import json

import pytest
import sacrebleu

import runs
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.decoding.translator import Translator


@pytest.fixture(scope="module")
def workdir():
    return f"--workdir={runs.random_run()}"


@pytest.fixture(scope="module")
def lines():
    return runs.sentences(5, longest=12)


def encode(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# Ensembles


@pytest.fixture(scope="module")
def together():
    """Both checkpoints of the run."""
    run = runs.random_run()
    return Translator.ensemble([Translator.load(run), Translator.load(run, "latest")])


def test_translate_by_an_ensemble(call, workdir, lines, together):
    """Runs and checkpoints that are named predict together; another folder of the same run is the same."""
    expected = together.translate(lines)
    assert expected != Translator.load(runs.random_run()).translate(lines)
    for name in (f"{runs.random_run()}@20", f"{runs.random_run()}@latest"):
        assert call("translate", workdir, f"--ensemble={name}", stdin=encode(lines)).lines == expected


def test_a_folder_with_the_sign_in_its_name(call, workdir, lines, tmp_path):
    """A directory that is there goes before a checkpoint of that name."""
    run = runs.copy(runs.random_run(), tmp_path / "a@20")
    outcome = call("translate", workdir, f"--ensemble={run}", stdin=encode(lines))
    assert outcome.lines == Translator.load(runs.random_run()).translate(lines)


def test_score_by_an_ensemble(call, workdir, together, tmp_path):
    """The scores are those of the mixture."""
    pairs = runs.pairs()[:3]
    for name, side in (("source", 0), ("target", 1)):
        (tmp_path / name).write_bytes(encode([pair[side] for pair in pairs]))
    files = [f"--{name}={tmp_path / name}" for name in ("source", "target")]
    outcome = call("score", workdir, f"--ensemble={runs.random_run()}@20", "--format=jsonl", *files)
    found = [json.loads(line)["log_probability"] for line in outcome.lines]
    assert found == pytest.approx([score.log_probability for score in together.score(pairs)], rel=1e-6)


def test_evaluate_an_ensemble(call, tmp_path, together):
    """It gets a result of its own, which names its models, beside that of the run alone."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    pairs = runs.pairs()[:3]
    for name, side in (("source", 0), ("reference", 1)):
        (tmp_path / name).write_bytes(encode([pair[side] for pair in pairs]))
    files = [f"--{name}={tmp_path / name}" for name in ("source", "reference")]
    outcome = call("evaluate", f"--workdir={run}", f"--ensemble={run}@20", "--metrics=bleu", *files)
    assert json.loads(outcome.lines[0])["checkpoint"] == "10 + 20"
    ((name, record),) = json.loads((run / "results.json").read_text()).items()
    assert name.endswith(f" ensemble={run}@20")
    assert (run / record["hypotheses"]).read_text().splitlines() == together.translate([p.source for p in pairs])


def test_an_ensemble_of_strangers_is_refused(call, workdir, tmp_path):
    """Another vocabulary, and a checkpoint that is not there, are errors of one line."""
    run = runs.copy(runs.random_run(), tmp_path / "other")
    Vocabulary.train([text for pair in runs.pairs()[:100] for text in pair], 400).save(
        run / "vocabulary" / "shared.model"
    )
    assert "vocabulary" in call("translate", workdir, f"--ensemble={run}", stdin=b"a\n").error
    assert "99" in call("translate", workdir, f"--ensemble={runs.random_run()}@99", stdin=b"a\n").error
    assert "nowhere" in call("translate", workdir, "--ensemble=nowhere", stdin=b"a\n").error


# Minimum Bayes risk


def test_minimum_bayes_risk(call, workdir, lines):
    """One translation a line: that of the highest mean chrF against the other samples."""
    text = [*lines, ""]
    options = ("translate", workdir, "--sample", "--n_best=5", "--temperature=0.5", "--seed=3")
    drawn = [json.loads(line) for line in call(*options, "--format=jsonl", stdin=encode(text)).lines]
    found = call(*options, "--mbr", stdin=encode(text))
    metric, chosen = sacrebleu.CHRF(), []
    for record in drawn:
        samples = [each["text"] for each in record["translations"]]
        means = [
            sum(metric.sentence_score(one, [other]).score for j, other in enumerate(samples) if i != j)
            for i, one in enumerate(samples)
        ]
        chosen.append(samples[means.index(max(means))])
    assert found == (0, encode(chosen), "")
    records = [json.loads(line) for line in call(*options, "--mbr", "--format=jsonl", stdin=encode(text)).lines]
    assert [[each["text"] for each in record["translations"]] for record in records] == [[text] for text in chosen]
    assert sum(r["translations"][0]["text"] != text for r, text in zip(drawn, chosen, strict=True)) > 1


def test_one_translation_is_no_choice(call, workdir):
    """--mbr needs several translations to choose from."""
    assert "--n_best=32" in call("translate", workdir, "--mbr", stdin=b"a\n").error
