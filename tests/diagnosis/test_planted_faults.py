"""``jaxformer doctor`` finds each planted fault, and nothing in a run without one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from diagnosis.healthy import (
    STEPS,
    Change,
    Fault,
    add_average,
    alter_text,
    both,
    configure,
    curve,
    each,
    filled,
    made,
    name,
    output,
    read,
    recorded,
    removed,
    setting,
    translate,
    write_lines,
    written,
)

from jaxformer.data.vocabulary import Vocabulary
from jaxformer.diagnosis.doctor import CHECKS, READABLE, examine
from jaxformer.diagnosis.evidence import Evidence
from jaxformer.runs.records import read_results


def retranslated(file: str, change: Change) -> Fault:
    """Change the test text, and translate that."""
    return both(written(file, change), translate)


def tokenize(line: str) -> str:
    return re.sub(r"([.,\-])", r" \1", line.replace('"', "&quot;"))


def without(number: int) -> Change:
    return lambda lines: [*lines[:number], *lines[number + 1 :], "Ende"]


def quoted(style: str) -> Change:
    """Write quotation marks in another style, such as ``“ ”``."""
    return each(lambda line: re.sub(r'"([^"]*)"', rf"{style[0]}\1{style[-1]}", line))


def replace_vocabulary(run: Path) -> None:
    path = run / "vocabulary" / "shared.model"
    path.unlink()
    words = ["other words of another text", "as many pieces it needs"]
    Vocabulary.train(words, 40).save(path)


def score_the_average_elsewhere(run: Path) -> None:
    """Record a result of an average on other text."""
    ((key, record),) = read_results(run).items()
    other = "text:other.en,other.de"
    average = {**record, "dataset": other, "checkpoint": "average-last-1"}
    (run / "results.json").write_text(json.dumps({key: record, other: average}))


def cut_log(run: Path) -> None:
    """Lose the second half of the log."""
    lines = read(run / "metrics.jsonl")
    kept = [line for line in lines if json.loads(line)["step"] <= STEPS // 2]
    write_lines(run / "metrics.jsonl", kept)


def lower_references(run: Path) -> None:
    """Lowercase the references and not the translations."""
    cased = read("test.de")
    alter_text(run, "test.de", each(str.lower))
    translate(run, lambda _: cased)


def rename_test(run: Path) -> None:
    for language in ("en", "de"):
        Path(f"test.{language}").rename(f"newstest2014.{language}")
    (run / "results.json").unlink()
    configure(run, "data.test", name("newstest2014"))
    translate(run)


def move_checkpoint(run: Path) -> None:
    checkpoints = run / "checkpoints"
    (checkpoints / str(STEPS)).rename(checkpoints / str(STEPS - 10))


def repeat_sources(lines: list[str]) -> list[str]:
    sources = read("test.en")
    return [sources[i] if i % 2 else line for i, line in enumerate(lines)]


def turn_test(run: Path) -> None:
    configure(run, "data.test", name("test", TURNED))
    translate(run)


def add_test_to_training(run: Path) -> None:
    for language in ("en", "de"):
        test = read(f"test.{language}")
        alter_text(run, f"train.{language}", lambda lines, test=test: lines + test)


WIDE = ("model.d_model", 512)
TURNED = ("de", "en")
TEST = name("test")
BOTH = f"{name('train')} + {TEST}"
OTHER_SIGNATURE = "nrefs:1|case:lc|eff:no|tok:intl|smooth:exp|version:2.6.0"
INTL = {"bleu_signature": None, "tokenized_bleu_signature": "x"}
CYRILLIC = each(lambda line: re.sub("[a-z]", "щ", line))
SHORTER = each(lambda line: line.rpartition(" ")[0] or line, every=2)
LOOPS = each(lambda line: line + " und so weiter, dann" * 3, every=4)
SAMPLED = recorded(decoding={"sample": True})
GREEDY = recorded(decoding={"beam_size": 1, "length_penalty": "average"})
FAULTS: list[tuple[Any, ...]] = [
    # the check that finds it, the fault, and other checks that are wrong; "?": a look
    ("batch?", setting(*WIDE, "data.tokens_per_batch", 4096)),
    ("warm-up", setting("training.warmup_steps", STEPS)),
    ("warm-up?", setting("training.warmup_steps", 0)),
    ("peak rate?", setting("training.learning_rate", 3.0)),
    ("regularization?", setting("model.dropout_rate", 0.0)),
    ("optimizer?", setting("training.adam_b2", 0.999)),
    ("architecture?", setting("model.norm_order", "pre")),
    ("selection?", setting("data.valid", TEST)),
    ("selection", both(setting("data.valid", TEST), recorded(checkpoint=500))),
    ("selection", setting("data.train", BOTH), "leak"),
    ("training form", written("train.de", each(tokenize))),
    ("training form", written("train.en", each("{}@@ s".format))),
    ("training alignment", written("train.de", without(700))),
    ("training alignment?", written("train.de", lambda lines: lines[::-1])),
    ("training languages", setting("data.train", name("train", TURNED))),
    ("training quotes?", written("train.de", quoted("„“"))),
    ("training case", written("train.de", each(str.lower))),
    ("training case", retranslated("test.en", each(str.lower))),
    (
        "untranslated",
        written("train.de", lambda _: read("train.en")),
        "training languages",
    ),
    ("dropped?", setting("data.max_length", 25)),
    ("test form", retranslated("test.de", each(tokenize)), "output form"),
    ("test alignment", retranslated("test.de", without(50))),
    ("test languages", turn_test, "training case"),
    ("test blanks", retranslated("test.de", each(lambda _: "", every=30))),
    ("leak", add_test_to_training),
    ("vocabulary", replace_vocabulary, "unknown", "vocabulary fit", "dropped"),
    ("unknown", retranslated("test.en", CYRILLIC), "vocabulary fit", "test languages"),
    ("vocabulary fit?", retranslated("test.en", each(lambda line: line[::-1]))),
    ("finished?", setting("training.steps", 1000)),
    ("diverged", curve("train/nll", lambda s, nll: nll + 2.5 * (s > 500))),
    ("diverged?", curve("train/nll", lambda s, nll: nll + 2.0 * (s == 400))),
    ("stalled", curve("train/nll", lambda *_: 6.0)),
    ("skipped?", curve("train/skipped", lambda s, _: float(s == 40))),
    ("skipped", curve("train/skipped", lambda *_: 3.0)),
    ("still falling?", curve("valid/nll", lambda step, _: 4.0 - step / 500)),
    ("overfitted?", curve("valid/nll", lambda step, nll: nll + step / 500)),
    ("averaging?", setting(*WIDE)),
    ("averaging?", both(add_average, score_the_average_elsewhere)),
    ("checkpoint?", recorded(checkpoint=100)),
    ("checkpoint?", move_checkpoint),
    ("test set", rename_test),
    ("signature?", recorded(bleu_signature=OTHER_SIGNATURE), "recount"),
    ("signature?", recorded(**INTL)),
    ("search?", GREEDY),
    ("search", SAMPLED),
    ("recount", recorded(bleu=45.67)),
    ("beside validation?", curve("valid/bleu", lambda _, bleu: bleu * 10)),
    ("output order", output(without(20))),
    ("output form", output(each(tokenize))),
    ("output quotes?", output(quoted("„“"))),
    ("length?", output(SHORTER)),
    ("length", output(each(lambda line: f"{line} {line}"))),
    ("cut", recorded(unfinished=60)),
    ("empty", output(each(lambda _: "", every=15))),
    ("copies", output(repeat_sources)),
    ("loops", output(LOOPS), "length"),
    ("variety", output(each(lambda _: "Das ist ein neues Haus.")), "length"),
    (READABLE, written("train.de", lambda lines: lines[:-3])),
    (READABLE, filled("metrics.jsonl", '{"cut\n{"step": 1}\n')),
    (READABLE, recorded(sentences=299)),
    (READABLE, filled("vocabulary/shared.model", "no model")),
    (READABLE, removed(f"checkpoints/{STEPS}")),
    (READABLE, made("averages/last-1")),
    (READABLE, written("test.de", each(lambda line: line + "!", every=50))),
]


GONE = "average/last-5, which is gone: there is average/last-1"
AVERAGED = recorded(checkpoint="average/last-5")
# A finding names its fault, and its cure is not that of the opposite one.
SAID: list[tuple[Any, ...]] = [
    ("finished?", cut_log, "ends with step 300, and there is ", "restore metrics"),
    ("output case", lower_references, "0.0% in the", "test text was lowercased"),
    ("output case", output(each(str.lower)), "0.0% of the", "train on text as it"),
    ("output case", output(each(str.upper)), "100.0% of the", "more is in capitals"),
    ("checkpoint?", recorded(checkpoint=150), "which is gone (the last is 600)", ""),
    ("checkpoint?", both(add_average, AVERAGED), GONE, "--checkpoint=best"),
    ("averaging?", add_average, "averages/ has last-1", "--checkpoint=average"),
    (READABLE, made("checkpoints/700"), "checkpoint 700 in ", "restore the files"),
]
CASES = [(fault, "", "") for fault in FAULTS]
CASES += [((check, plant, "training case"), *said) for check, plant, *said in SAID]


@pytest.mark.parametrize(
    ("fault", "found", "cure"), CASES, ids=[case[0][0] for case in CASES]
)
def test_each_planted_fault_is_found(fault, found, cure, run):
    """The check of a fault names it and its cure; no unrelated check is wrong."""
    check, plant, *also = fault
    plant(run)
    findings = examine(Evidence(run))
    finding = findings[check.removesuffix("?")]
    assert finding.verdict == ("look" if check.endswith("?") else "wrong"), finding
    assert finding.expected
    assert finding.cure
    assert found in finding.found
    assert cure in finding.cure
    wrong = {name for name in findings if findings[name].verdict == "wrong"}
    assert wrong <= {check, *also}, [findings[name] for name in wrong]


def test_every_check_has_a_planted_fault():
    """No check is without a test."""
    assert {case[0][0].removesuffix("?") for case in CASES} == {*CHECKS, READABLE}


def test_a_healthy_run_has_nothing_to_look_at(run):
    """Without a fault every check has its evidence and is ok."""
    findings = examine(Evidence(run))
    assert [name for name in findings if findings[name].verdict != "ok"] == []
