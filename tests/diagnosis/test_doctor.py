"""``jaxformer doctor``: the evidence that it needs, its output, and no side effects."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from diagnosis.healthy import (
    STEPS,
    alter_curve,
    alter_record,
    configure,
    name,
    translate,
)

import runs
from jaxformer.checkpoints.average import save_average
from jaxformer.checkpoints.saved import open_to_read
from jaxformer.cli.main import main
from jaxformer.diagnosis.checks import learning, recipe, results, text
from jaxformer.diagnosis.doctor import CHECKS, READABLE, examine
from jaxformer.diagnosis.evidence import Evidence
from jaxformer.diagnosis.report import write_report
from jaxformer.runs import config as configuration

PAGE = Path(__file__).parents[2] / "docs" / "why-is-my-bleu-lower.md"


def call(capfdbinary, *arguments: object) -> tuple[int, str, str]:
    capfdbinary.readouterr()
    code = main(["doctor", *map(str, arguments)])
    out, err = capfdbinary.readouterr()
    return code, out.decode(), err.decode()


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of every file and folder."""
    return {
        str(p): (p.stat().st_size, p.stat().st_mtime_ns)
        for p in sorted(folder.rglob("*"))
    }


def verdicts(run: Path) -> dict[str, str]:
    return {check: finding.verdict for check, finding in examine(Evidence(run)).items()}


def test_nothing_is_written(run, capfdbinary, tmp_path):
    """The run and its text are as they were."""
    before = snapshot(tmp_path)
    assert call(capfdbinary, f"--workdir={run}")[0] == 0
    assert snapshot(tmp_path) == before


def test_a_line_a_check_and_the_exit_code(run, capfdbinary):
    """A sound run ends with 0 and one that is wrong with 1; the worst comes first,
    and the last line counts.
    """
    code, out, err = call(capfdbinary, f"--workdir={run}")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == len(CHECKS) + 3
    (name,) = json.loads((run / "results.json").read_text())
    assert out.splitlines()[-2] == f"of the result {name!r}; --dataset names another"
    assert out.splitlines()[-1].startswith(
        f"0 wrong, 0 to look at, {len(CHECKS) + 1} ok, 0 unseen"
    )
    configure(run, **{"training.label_smoothing": 0.0})
    assert call(capfdbinary, f"--workdir={run}")[0] == 0
    configure(run, **{"training.warmup_steps": STEPS})
    code, out, _ = call(capfdbinary, f"--workdir={run}")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["wrong", "look", "ok"]
    assert " | expected: " in out.splitlines()[0]
    assert " | cure: " in out.splitlines()[0]


def test_one_object_for_machines(run, capfdbinary):
    """``--json`` has what the lines have."""
    configure(run, **{"training.warmup_steps": STEPS})
    code, out, _ = call(capfdbinary, f"--workdir={run}", "--json")
    record = json.loads(out)
    assert code == 1
    assert record["workdir"] == str(run)
    assert [record["result"]] == list(json.loads((run / "results.json").read_text()))
    assert record["wrong"] == 1
    assert sum(record[verdict] for verdict in ("wrong", "look", "ok", "unseen")) == len(
        record["findings"]
    )
    assert [finding["check"] for finding in record["findings"]] == [READABLE, *CHECKS]
    (wrong,) = (
        finding for finding in record["findings"] if finding["verdict"] == "wrong"
    )
    assert wrong["check"] == "warm-up"
    assert wrong["cure"]


@pytest.mark.parametrize(
    ("gone", "unseen"),
    [
        ("results.json", {"averaging", "search", "length", "recount"}),
        ("metrics.jsonl", {"finished", "stalled", "checkpoint", "tokens seen"}),
        ("../train.en", {"leak", "training form", "dropped"}),
        ("../test.de", {"leak", "test form", "recount", "length"}),
        ("hypotheses.*.txt", {"recount", "length", "loops"}),
    ],
)
def test_what_is_not_there_is_unseen(gone, unseen, run):
    """Checks without evidence are unseen, with the reason; nothing is wrong."""
    (path,) = run.glob(gone) if "*" in gone else [run / gone]
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = examine(Evidence(run))
    assert {finding.verdict for finding in found.values()} == {"ok", "unseen"}
    assert all(
        found[check].verdict == "unseen" and found[check].found for check in unseen
    )
    assert sum(line.startswith("unseen") for line in write_report(found, None)) <= 4


@pytest.mark.parametrize(
    ("gone", "unseen"),
    [
        ("vocabulary", {"vocabulary", "unknown", "vocabulary fit", "dropped"}),
        ("checkpoints", {"vocabulary"}),
    ],
)
def test_a_run_that_can_translate_nothing(gone, unseen, run):
    """What is gone is named, and the checks that need it are unseen."""
    shutil.rmtree(run / gone)
    findings = examine(Evidence(run))
    found = {check: finding.verdict for check, finding in findings.items()}
    assert {check for check in found if found[check] == "wrong"} == {READABLE}
    assert {check for check in found if found[check] == "unseen"} == unseen
    assert str(run / gone) in findings[READABLE].found


def test_an_average_translates_without_checkpoints(run):
    """A run may keep only an average."""
    save_average(run, "last-1", open_to_read(run / "checkpoints", "bleu"), [STEPS])
    shutil.rmtree(run / "checkpoints")
    found = verdicts(run)
    assert (found[READABLE], found["vocabulary"]) == ("ok", "unseen")


def test_translations_of_fewer_sentences(run):
    """Checks that compare line by line are unseen if a translation is missing."""
    (path,) = run.glob("hypotheses.*.txt")
    path.write_text(
        "".join(path.read_text("utf-8").splitlines(keepends=True)[:-1]), "utf-8"
    )
    # as earlier versions wrote it
    alter_record(run, sentences=299, hypotheses_sha256=None)
    found = examine(Evidence(run))
    assert found[READABLE].verdict == "wrong"
    assert "299 translations of 300 sentences" in found[READABLE].found
    for check in (
        "recount",
        "output order",
        "output quotes",
        "output case",
        "length",
        "copies",
        "variety",
    ):
        assert found[check].verdict == "unseen", found[check]
    assert found["empty"].verdict == "ok"


@pytest.mark.parametrize("gone", ["beam_size", "max_extra_length", None])
def test_a_search_that_is_not_recorded(gone, run):
    """Missing settings are not taken for the paper's; a recorded difference is shown."""
    (record,) = json.loads((run / "results.json").read_text()).values()
    decoding = (
        {}
        if gone is None
        else {key: value for key, value in record["decoding"].items() if key != gone}
    )
    settings = "beam_size, length_penalty, alpha, max_extra_length"
    alter_record(run, decoding=decoding)
    found = results.check_search(Evidence(run))
    assert found.verdict == "unseen"
    assert (gone or settings) in found.found
    alter_record(run, decoding={**decoding, "sample": True})
    assert results.check_search(Evidence(run)).verdict == "wrong"


def test_results_of_several_references_are_no_fault(run):
    """The run keeps only the first of them: the score cannot be recounted."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    (record,) = results.values()
    record["text"] = "0123456789abcdef"
    record["bleu_signature"] = record["bleu_signature"].replace("nrefs:1", "nrefs:2")
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    found = verdicts(run)
    assert (found[READABLE], found["signature"], found["recount"]) == (
        "ok",
        "look",
        "unseen",
    )


def test_results_that_are_no_objects_are_a_fault(run, capfdbinary):
    """The entry and the file are named, and checks without a result are made."""
    (run / "results.json").write_text('{"set": {}, "other": ["a"]}')
    found = examine(Evidence(run))
    assert found[READABLE].verdict == "wrong"
    assert str(run / "results.json") in found[READABLE].found
    assert found["signature"].verdict == found["recount"].verdict == "unseen"
    assert found["warm-up"].verdict == "ok"
    code, out, err = call(capfdbinary, f"--workdir={run}")
    assert (code, err) == (1, "")
    assert "is no JSON object; move the file away" in out
    code, out, err = call(capfdbinary, f"--workdir={run}", "--dataset=text:x.en,x.de")
    assert (code, out) == (1, "")
    # and not that there are no results
    assert "is no JSON object; move the file away" in err


def test_a_result_without_translations(run):
    """Checks of an entry without translations are unseen."""
    (record,) = json.loads((run / "results.json").read_text(encoding="utf-8")).values()
    del record["hypotheses"]
    (run / "results.json").write_text(
        json.dumps({record["dataset"]: record}), encoding="utf-8"
    )
    found = verdicts(run)
    assert found["output form"] == found["recount"] == "unseen"
    assert found["signature"] == "ok"


def test_a_run_that_has_only_begun(tmp_path):
    """Only a configuration is needed; a folder without one is an error of one line."""
    (tmp_path / "config.json").write_bytes(
        (runs.random_run() / "config.json").read_bytes()
    )
    assert recipe.check_warm_up(Evidence(tmp_path)).verdict == "ok"
    with pytest.raises(configuration.InputError, match="does not exist"):
        Evidence(tmp_path / "none")


@pytest.mark.parametrize("logged", [True, False])
def test_a_run_without_a_checkpoint_yet(logged, run):
    """The folder of checkpoints exists from the first step on, and may be empty."""
    shutil.rmtree(run / "checkpoints" / str(STEPS))
    (run / "results.json").unlink()
    if not logged:
        (run / "checkpoints").rmdir()
        (run / "metrics.jsonl").write_text("")
    found = verdicts(run)
    assert (found[READABLE], found["vocabulary"]) == ("ok", "unseen")


def test_nothing_is_fetched(run, monkeypatch):
    """Data sets of other packages are not read."""
    name = "sacrebleu:wmt14/full"
    monkeypatch.setattr("jaxformer.data.sources.load", lambda *_: pytest.fail("read"))
    monkeypatch.setattr(
        "jaxformer.diagnosis.evidence.open_evaluation", lambda *_: pytest.fail("read")
    )
    configure(
        run, **{"data.train": "tfds:wmt14_translate/de-en/train", "data.test": name}
    )
    (record,) = json.loads((run / "results.json").read_text()).values()
    record |= {"dataset": name, "sentences": 3003}
    (run / "results.json").write_text(json.dumps({name: record}))
    found = examine(Evidence(run))
    assert (
        found["leak"].verdict
        == found["length"].verdict
        == found["dropped"].verdict
        == "unseen"
    )
    assert found["test set"].verdict == "ok"
    assert found["empty"].verdict == "ok"


def test_the_result_that_is_looked_at(run, capfdbinary):
    """It is that of the test set, or the named one; an unknown name is an error."""
    records = json.loads((run / "results.json").read_text())
    (name,) = records
    records[f"{name} beam_size=1"] = {**records[name], "decoding": {"beam_size": 1}}
    (run / "results.json").write_text(json.dumps(records))
    assert results.check_search(Evidence(run)).verdict == "ok"
    chosen = results.check_search(Evidence(run, f"{name} beam_size=1"))
    assert "beam_size=1" in chosen.found
    code, out, err = call(capfdbinary, f"--workdir={run}", "--dataset=other")
    assert (code, out) == (1, "")
    assert f"has no result 'other' (there: {name}, {name} beam_size=1)" in err


def test_the_text_of_the_result_is_checked(run):
    """Checks of the test set read the text that was scored, which may not be data.test."""
    for language in ("en", "de"):
        lines = (run.parent / f"test.{language}").read_text("utf-8")
        (run.parent / f"other.{language}").write_text(lines.replace(".", " ."), "utf-8")
    other = name("other")
    configure(run, **{"data.test": other})
    translate(run)
    configure(run, **{"data.test": name("test")})
    check = text.check_test_form
    assert check(Evidence(run, other)).verdict == "wrong"
    assert check(Evidence(run)).verdict == "ok"
    (run / "results.json").unlink()
    assert check(Evidence(run)).verdict == "ok"


def test_text_in_a_folder_whose_name_looks_like_a_mixture(run):
    """Text of --source and --reference is read, whatever its path contains."""
    folder = run.parent / "a + b"
    folder.mkdir()
    for language in ("en", "de"):
        shutil.copy(run.parent / f"test.{language}", folder)
    alter_record(run, dataset=f"text:{folder}/test.en,{folder}/test.de")
    found = verdicts(run)
    assert (found["test form"], found["recount"], found["leak"]) == ("ok", "ok", "ok")


def test_an_average_that_was_scored(run):
    """A result of an average, or of a moving average, is ok."""
    configure(run, **{"model.d_model": 512})
    assert results.check_averaging(Evidence(run)).verdict == "look"
    translate(run, checkpoint="average/last-5")
    assert results.check_averaging(Evidence(run)).verdict == "ok"
    translate(run)
    configure(run, **{"training.ema_decay": 0.999})
    assert results.check_averaging(Evidence(run)).verdict == "ok"


@pytest.mark.parametrize(
    ("checkpoint", "verdict"), [("average/last-5", "wrong"), (None, "look")]
)
def test_a_set_that_validates_and_tests(checkpoint, verdict, run):
    """It is wrong if the set chose the scored parameters."""
    configure(run, **{"data.valid": name("test")})
    if checkpoint is None:
        (run / "results.json").unlink()
    else:
        translate(run, checkpoint=checkpoint)
    assert recipe.check_selection(Evidence(run)).verdict == verdict


@pytest.mark.parametrize(("field", "value"), [("bleu", None), ("unfinished", "1")])
def test_fields_of_another_type_are_a_fault(field, value, run):
    """They are named with their file, and checks without a result are made."""
    (record,) = json.loads((run / "results.json").read_text()).values()
    (run / "results.json").write_text(json.dumps({"mine": {**record, field: value}}))
    found = examine(Evidence(run))
    assert found[READABLE].verdict == "wrong"
    assert (
        f"{field} of the entry 'mine' of {run / 'results.json'} must be "
        in found[READABLE].found
    )
    assert found["recount"].verdict == found["cut"].verdict == "unseen"
    assert found["warm-up"].verdict == "ok"


@pytest.mark.parametrize(
    ("gone", "verdicts", "said"),
    [
        (
            lambda step: step >= 300,
            ("wrong", "unseen"),
            "no finite train/nll since step 300",
        ),
        (
            lambda step: step == 300,
            ("look", "ok"),
            "in 1 lines of the log (the first by step 300)",
        ),
    ],
)
def test_a_loss_that_is_no_number(gone, verdicts, said, run):
    """A run without a finite loss from a step on is lost; a single line is worth a
    look.
    """
    alter_curve(run, "train/nll", lambda s, nll: math.nan if gone(s) else nll)
    evidence = Evidence(run)
    found = learning.check_diverged(evidence), learning.check_stalled(evidence)
    assert tuple(finding.verdict for finding in found) == verdicts
    assert said in found[0].found


def test_the_page_explains_every_check():
    """The page has each name of a check, and the verdicts, as code."""
    text = PAGE.read_text("utf-8")
    names = [READABLE, *CHECKS, "wrong", "look", "unseen"]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_a_run_that_was_trained(capfdbinary):
    """A run of ``jaxformer train`` has nothing wrong before it is evaluated."""
    code, out, _ = call(capfdbinary, f"--workdir={runs.reversal_run()}")
    assert code == 0, out
