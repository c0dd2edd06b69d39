"""``jaxformer doctor``: the evidence that it needs, its output, and no side effects."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from diagnosis.healthy import (
    STEPS,
    add_average,
    alter_curve,
    alter_record,
    both,
    configure,
    filled,
    name,
    read,
    recorded,
    removed,
    translate,
    write_lines,
)

import runs
from jaxformer.diagnosis.checks import results, text
from jaxformer.diagnosis.doctor import CHECKS, READABLE, examine
from jaxformer.diagnosis.evidence import Evidence
from jaxformer.diagnosis.report import write_report
from jaxformer.errors import InputError

PAGE = Path(__file__).parents[2] / "docs" / "why-is-my-bleu-lower.md"


def call(*arguments: object) -> tuple[int, str, str]:
    outcome = runs.call("doctor", *arguments)
    return outcome.code, outcome.out.decode(), outcome.err


def verdicts(run: Path) -> dict[str, str]:
    return {check: finding.verdict for check, finding in examine(Evidence(run)).items()}


def only_result(run: Path) -> tuple[str, dict[str, Any]]:
    ((name, record),) = json.loads((run / "results.json").read_text()).items()
    return name, record


def test_a_line_a_check_and_the_exit_code(run):
    """A sound run ends with 0 and one that is wrong with 1; the worst comes last,
    before the result and the counts, and nothing is written. ``--format=json`` has
    what the lines have.
    """
    files = sorted(run.parent.rglob("*"))
    before = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    code, out, err = call(f"--workdir={run}")
    assert (code, err) == (0, "")
    lines, (name, _) = out.splitlines(), only_result(run)
    assert len(lines) == len(CHECKS) + 3
    assert lines[-2] == f"examined the result {name!r}; --dataset=NAME: another"
    counts = f"0 wrong, 0 to look at, {len(CHECKS) + 1} ok, 0 unseen"
    assert lines[-1].startswith(counts)
    files = sorted(run.parent.rglob("*"))
    after = [(path, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    assert after == before
    configure(run, "training.label_smoothing", 0.0)
    assert call(f"--workdir={run}")[0] == 0
    configure(run, "training.warmup_steps", STEPS)
    code, out, _ = call(f"--workdir={run}")
    assert code == 1
    worst = out.splitlines()[-5:-2]
    assert [line.split()[0] for line in worst] == ["ok", "look", "wrong"]
    assert " | expected: " in worst[-1]
    assert " | cure: " in worst[-1]
    code, out, _ = call(f"--workdir={run}", "--format=json")
    record, findings = json.loads(out), json.loads(out)["findings"]
    assert (code, record["workdir"], record["result"]) == (1, str(run), name)
    counts = [record[verdict] for verdict in ("wrong", "look", "ok", "unseen")]
    assert counts == [1, 1, len(CHECKS) - 2, 1]  # the warm-up never ends
    assert [finding["check"] for finding in findings] == [READABLE, *CHECKS]
    (wrong,) = (finding for finding in findings if finding["verdict"] == "wrong")
    assert wrong["check"] == "warm-up"
    assert wrong["cure"]


def lose_a_translation(run: Path) -> None:
    """Leave out the last translation, in a record as earlier versions wrote it."""
    (path,) = run.glob("hypotheses.*.txt")
    write_lines(path, read(path)[:-1])
    alter_record(run, sentences=299, hypotheses_sha256=None)


def forget_translations(run: Path) -> None:
    name, record = only_result(run)
    del record["hypotheses"]
    (run / "results.json").write_text(json.dumps({name: record}))


FEWER = "recount, output order, output case, length, copies, variety"
TWO = {"bleu_signature": "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp|version:2"}
JUST_BEGUN = removed("checkpoints", "results.json")
# what is missing, the checks that are unseen, those that find a fault, and which
MISSING = {
    "results": (removed("results.json"), "averaging, search, length, recount"),
    "log": (removed("metrics.jsonl"), "finished, stalled, checkpoint"),
    "training text": (removed("../train.en"), "leak, training form, dropped"),
    "test text": (removed("../test.de"), "leak, test form, recount, length"),
    "translations": (removed("hypotheses.*.txt"), "recount, length, loops"),
    "their name": (forget_translations, "output form, recount"),
    "one translation": (lose_a_translation, FEWER, READABLE, "299 translations of 300"),
    "references": (recorded(text="0123456789abcdef", **TWO), "recount", "signature"),
    "vocabulary": (
        removed("vocabulary"),
        "vocabulary, unknown, vocabulary fit, dropped",
        *(READABLE, "/run/vocabulary"),
    ),
    "checkpoints": (
        removed("checkpoints"),
        *("vocabulary", f"{READABLE}, checkpoint", "/run/checkpoints"),
    ),
    # An average translates; the folder exists from the first step on, maybe empty.
    "all but an average": (
        both(add_average, removed("checkpoints")),
        *("vocabulary", "averaging, checkpoint"),
    ),
    "first checkpoint": (removed(f"checkpoints/{STEPS}", "results.json"), "vocabulary"),
    "steps": (both(JUST_BEGUN, filled("metrics.jsonl", "")), "vocabulary", "finished"),
}


@pytest.mark.parametrize("missing", MISSING)
def test_checks_without_evidence_are_unseen(missing, run):
    """They name the reason. What a run needs or what is damaged is a fault, and no
    other check finds one.
    """
    plant, unseen, faulty, said = (*MISSING[missing], "", "")[:4]
    plant(run)
    found = examine(Evidence(run))
    assert all(found[check].found for check in unseen.split(", "))
    assert {found[check].verdict for check in unseen.split(", ")} == {"unseen"}
    bad = [check for check in found if found[check].verdict in ("look", "wrong")]
    assert ", ".join(bad) == faulty
    assert said in found[READABLE].found
    reasons = {x.found for x in found.values() if x.verdict == "unseen"}
    lines = [x for x in write_report(found, None) if x.startswith("unseen")]
    assert len(lines) == len(reasons)


@pytest.mark.parametrize("gone", ["beam_size", None])
def test_a_search_that_is_not_recorded(gone, run):
    """Missing settings are not taken for the paper's; a difference is shown."""
    recorded = only_result(run)[1]["decoding"] if gone else {}
    decoding = {key: value for key, value in recorded.items() if key != gone}
    alter_record(run, decoding=decoding)
    found = examine(Evidence(run))["search"]
    assert found.verdict == "unseen"
    settings = "beam_size, length_penalty, alpha, max_extra_length"
    assert (gone or settings) in found.found
    alter_record(run, decoding={**decoding, "sample": True})
    assert results.check_search(Evidence(run)).verdict == "wrong"


def test_damaged_results_are_a_fault(run):
    """The file is named, and checks without a result are made."""
    path = run / "results.json"
    path.write_text(json.dumps({"set": {}, "mine": ["a"]}))
    found = examine(Evidence(run))
    assert found[READABLE].verdict == "wrong"
    said = f"{path} holds no JSON object of objects"
    assert said in found[READABLE].found
    assert found["recount"].verdict == found["cut"].verdict == "unseen"
    assert found["warm-up"].verdict == "ok"
    code, out, err = call(f"--workdir={run}", "--dataset=text:x.en,x.de")
    assert (code, out) == (1, "")
    assert said in err  # and not that there are no results


def test_a_folder_without_a_configuration_is_no_run(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        Evidence(tmp_path)


def test_nothing_is_fetched(run, monkeypatch):
    """Data sets of other packages are not read."""
    test = "sacrebleu:wmt14/full"
    for place in ("data.sources.load", "diagnosis.evidence.open_evaluation"):
        monkeypatch.setattr(f"jaxformer.{place}", lambda *_: pytest.fail("read"))
    train = "tfds:wmt14_translate/de-en/train"
    configure(run, "data.train", train, "data.test", test)
    record = {**only_result(run)[1], "dataset": test, "sentences": 3003}
    (run / "results.json").write_text(json.dumps({test: record}))
    found = verdicts(run)
    assert found["leak"] == found["length"] == found["dropped"] == "unseen"
    assert found["test set"] == found["empty"] == "ok"


def test_the_result_that_is_looked_at(run):
    """It is that of the test set, or the named one; an unknown name is an error."""
    name, record = only_result(run)
    other = f"{name} beam_size=1"
    records = {name: record, other: {**record, "decoding": {"beam_size": 1}}}
    (run / "results.json").write_text(json.dumps(records))
    assert results.check_search(Evidence(run)).verdict == "ok"
    assert "beam_size=1" in results.check_search(Evidence(run, other)).found
    code, out, err = call(f"--workdir={run}", "--dataset=other")
    assert (code, out) == (1, "")
    assert f"has no result 'other' (there: {name}, {other})" in err


def test_the_text_of_the_result_is_checked(run):
    """It may be other text than data.test."""
    for language in ("en", "de"):
        lines = (run.parent / f"test.{language}").read_text("utf-8")
        (run.parent / f"other.{language}").write_text(lines.replace(".", " ."), "utf-8")
    other = name("other")
    configure(run, "data.test", other)
    translate(run)
    configure(run, "data.test", name("test"))
    check = text.check_test_form
    assert check(Evidence(run, other)).verdict == "wrong"
    assert check(Evidence(run)).verdict == "ok"
    (run / "results.json").unlink()
    assert check(Evidence(run)).verdict == "ok"


def test_an_average_that_was_scored(run):
    """A result of an average, or of a moving average, is ok."""
    configure(run, "model.d_model", 512)
    assert results.check_averaging(Evidence(run)).verdict == "look"
    translate(run, checkpoint="average/last-5")
    assert results.check_averaging(Evidence(run)).verdict == "ok"
    translate(run)
    configure(run, "training.ema_decay", 0.999)
    assert results.check_averaging(Evidence(run)).verdict == "ok"


def test_a_loss_that_is_no_number(run):
    """A run without a finite loss from a step on is lost; a single line is worth a
    look.
    """
    for last, verdicts, said in (
        (300, ("look", "ok"), "in 1 lines of the log (the first by step 300)"),
        (STEPS, ("wrong", "unseen"), "no finite train/nll since step 300"),
    ):
        change = lambda s, nll, last=last: math.nan if 300 <= s <= last else nll  # noqa: E731
        alter_curve(run, "train/nll", change)
        found = examine(Evidence(run))
        assert (found["diverged"].verdict, found["stalled"].verdict) == verdicts
        assert said in found["diverged"].found


def test_the_page_explains_every_check():
    """The page has each name of a check, and the verdicts, as code."""
    text = PAGE.read_text("utf-8")
    names = [READABLE, *CHECKS, "wrong", "look", "unseen"]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_a_run_that_was_trained():
    """A run of ``jaxformer train`` has nothing wrong before it is evaluated."""
    code, out, _ = call(f"--workdir={runs.reversal_run()}")
    assert code == 0, out
