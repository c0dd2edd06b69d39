"""``jaxformer doctor`` finds each planted fault, and nothing in a run without one."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from diagnosis.healthy import (
    STEPS,
    alter_curve,
    alter_record,
    alter_text,
    configure,
    each,
    translate,
)

from jaxformer.checkpoints.average import save_average
from jaxformer.checkpoints.manager import open_to_read
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.diagnosis.doctor import CHECKS, READABLE, examine
from jaxformer.diagnosis.evidence import read_evidence
from jaxformer.diagnosis.findings import Verdict
from jaxformer.runs.records import read_results

Fault = Callable[[Path], object]


def tokenize(line: str) -> str:
    return re.sub(r"([.,\-])", r" \1", line.replace('"', "&quot;"))


def without(number: int) -> Callable[[list[str]], list[str]]:
    return lambda lines: [*lines[:number], *lines[number + 1 :], "Ende"]


def low_quotes(line: str) -> str:
    return re.sub(r'"([^"]*)"', r"„\1“", line)


def high_quotes(line: str) -> str:
    return re.sub(r'"([^"]*)"', r"“\1”", line)


def exchanged(run: Path, split: str) -> str:
    return f"text:{run.parent / split}.de,{run.parent / split}.en"


def replace_vocabulary(run: Path) -> None:
    path = run / "vocabulary" / "shared.model"
    path.unlink()
    Vocabulary.train(
        ["other words of another text", "as many pieces it needs"], 40
    ).save(path)


def add_average(run: Path) -> None:
    save_average(run, "last-1", open_to_read(run / "checkpoints", "bleu"), [STEPS])


def score_the_average_elsewhere(run: Path) -> None:
    """Record a result of an average on other text than that of the result that is
    looked at.
    """
    ((name, record),) = read_results(run).items()
    other = {
        **record,
        "dataset": "text:other.en,other.de",
        "checkpoint": "average-last-1",
    }
    (run / "results.json").write_text(
        json.dumps({name: record, "text:other.en,other.de": other})
    )


def cut_log(run: Path) -> None:
    """Lose the second half of the log, as a copy that was cut does."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(
        "".join(line for line in lines if json.loads(line)["step"] <= STEPS // 2)
    )


def lower_references(run: Path) -> None:
    """Lowercase the references, which the translations are not."""
    cased = (run.parent / "test.de").read_text("utf-8").split("\n")[:-1]
    alter_text(run, "test.de", each(str.lower))
    translate(run, lambda _: cased)


def rename_test(run: Path) -> None:
    for language in ("en", "de"):
        (run.parent / f"test.{language}").rename(
            run.parent / f"newstest2014.{language}"
        )
    (run / "results.json").unlink()
    configure(
        run,
        **{
            "data.test": (
                f"text:{run.parent}/newstest2014.en,{run.parent}/newstest2014.de"
            )
        },
    )
    translate(run)


def retranslated(name: str, change: Callable[[list[str]], list[str]]) -> Fault:
    """Change the test text, and translate that."""
    return lambda run: (alter_text(run, name, change), translate(run))


def lose_a_translation(run: Path) -> None:
    """Leave out the last translation, and say so in the record."""
    (path,) = run.glob("hypotheses.*.txt")
    lines = path.read_text("utf-8").splitlines(keepends=True)[:-1]
    path.write_text("".join(lines), "utf-8")
    alter_record(run, sentences=len(lines))


def source_of(run: Path) -> Callable[[list[str]], list[str]]:
    sources = (run.parent / "test.en").read_text("utf-8").split("\n")
    return lambda lines: [sources[i] if i % 2 else line for i, line in enumerate(lines)]


def add_test_to_training(run: Path) -> None:
    for language in ("en", "de"):
        test = (run.parent / f"test.{language}").read_text("utf-8").split("\n")[:-1]
        alter_text(run, f"train.{language}", lambda lines, test=test: lines + test)


# The check that finds it, its verdict, how it is planted, and what else is then wrong.
FAULTS: list[tuple[str, Verdict, Fault, set[str]]] = [
    (
        "batch",
        "look",
        lambda run: configure(
            run, **{"model.d_model": 512, "data.tokens_per_batch": 4096}
        ),
        set(),
    ),
    (
        "tokens seen",
        "look",
        lambda run: configure(run, **{"model.d_model": 512}),
        set(),
    ),
    (
        "warm-up",
        "wrong",
        lambda run: configure(run, **{"training.warmup_steps": STEPS}),
        set(),
    ),
    (
        "warm-up",
        "look",
        lambda run: configure(run, **{"training.warmup_steps": 0}),
        set(),
    ),
    (
        "peak rate",
        "look",
        lambda run: configure(run, **{"training.learning_rate": 3.0}),
        set(),
    ),
    (
        "regularization",
        "look",
        lambda run: configure(run, **{"model.dropout_rate": 0.0}),
        set(),
    ),
    (
        "regularization",
        "look",
        lambda run: configure(run, **{"training.label_smoothing": 0.0}),
        set(),
    ),
    (
        "optimizer",
        "look",
        lambda run: configure(run, **{"training.adam_b2": 0.999}),
        set(),
    ),
    (
        "architecture",
        "look",
        lambda run: configure(run, **{"model.norm_order": "pre"}),
        set(),
    ),
    (
        "selection",
        "look",
        lambda run: configure(run, **{"data.valid": f"text:{_files(run, 'test')}"}),
        set(),
    ),
    (
        "selection",
        "wrong",
        lambda run: (
            configure(run, **{"data.valid": f"text:{_files(run, 'test')}"}),
            alter_record(run, checkpoint=500),
        ),
        set(),
    ),
    (
        "selection",
        "wrong",
        lambda run: configure(
            run,
            **{
                "data.train": (
                    f"text:{_files(run, 'train')} + text:{_files(run, 'test')}"
                )
            },
        ),
        {"leak"},
    ),
    (
        "training form",
        "wrong",
        lambda run: alter_text(run, "train.de", each(tokenize)),
        set(),
    ),
    (
        "training form",
        "wrong",
        lambda run: alter_text(run, "train.en", each(tokenize)),
        set(),
    ),
    (
        "training form",
        "wrong",
        lambda run: alter_text(run, "train.en", each(lambda line: f"{line}@@ s")),
        set(),
    ),
    (
        "training alignment",
        "wrong",
        lambda run: alter_text(run, "train.de", without(700)),
        set(),
    ),
    (
        "training alignment",
        "look",
        lambda run: alter_text(run, "train.de", lambda lines: lines[::-1]),
        set(),
    ),
    (
        "training languages",
        "wrong",
        lambda run: configure(run, **{"data.train": exchanged(run, "train")}),
        set(),
    ),
    (
        "training quotes",
        "look",
        lambda run: alter_text(run, "train.de", each(low_quotes)),
        set(),
    ),
    (
        "training quotes",
        "look",
        lambda run: alter_text(run, "train.en", each(high_quotes)),
        set(),
    ),
    (
        "training case",
        "wrong",
        lambda run: alter_text(run, "train.de", each(str.lower)),
        set(),
    ),
    (
        "training case",
        "wrong",
        lambda run: alter_text(run, "train.en", each(str.lower)),
        set(),
    ),
    ("training case", "wrong", retranslated("test.en", each(str.lower)), set()),
    (
        "untranslated",
        "wrong",
        lambda run: alter_text(
            run,
            "train.de",
            lambda _: (run.parent / "train.en").read_text().split("\n")[:-1],
        ),
        {"training languages"},
    ),
    ("dropped", "wrong", lambda run: configure(run, **{"data.max_length": 8}), set()),
    ("dropped", "look", lambda run: configure(run, **{"data.max_length": 25}), set()),
    ("test form", "wrong", retranslated("test.de", each(tokenize)), {"output form"}),
    ("test form", "wrong", retranslated("test.en", each(tokenize)), set()),
    ("test alignment", "wrong", retranslated("test.de", without(50)), set()),
    (
        "test languages",
        "wrong",
        lambda run: (
            configure(run, **{"data.test": exchanged(run, "test")}),
            translate(run),
        ),
        {"training case"},
    ),
    (
        "test blanks",
        "wrong",
        retranslated("test.de", each(lambda _: "", every=30)),
        set(),
    ),
    ("leak", "wrong", add_test_to_training, set()),
    (
        "vocabulary",
        "wrong",
        replace_vocabulary,
        {"unknown", "vocabulary fit", "dropped"},
    ),
    (
        "unknown",
        "wrong",
        retranslated("test.en", each(lambda line: re.sub("[a-z]", "щ", line))),
        {"vocabulary fit", "test languages"},
    ),
    (
        "vocabulary fit",
        "look",
        retranslated("test.en", each(lambda line: line[::-1])),
        {"vocabulary fit"},
    ),
    ("finished", "look", lambda run: configure(run, **{"training.steps": 1000}), set()),
    ("finished", "look", cut_log, set()),
    (
        "finished",
        "look",
        lambda run: configure(run, **{"training.steps": 1000, "training.patience": 3}),
        set(),
    ),
    (
        "diverged",
        "wrong",
        lambda run: alter_curve(
            run, "train/nll", lambda step, nll: nll + 2.5 * (step > 500)
        ),
        set(),
    ),
    (
        "diverged",
        "wrong",
        lambda run: alter_curve(
            run, "train/nll", lambda step, nll: math.nan if step > 300 else nll
        ),
        set(),
    ),
    (
        "diverged",
        "look",
        lambda run: alter_curve(
            run, "train/nll", lambda s, nll: nll + 2.0 * (s == 400)
        ),
        set(),
    ),
    (
        "stalled",
        "wrong",
        lambda run: alter_curve(run, "train/nll", lambda *_: 6.0),
        set(),
    ),
    (
        "skipped",
        "look",
        lambda run: alter_curve(
            run, "train/skipped", lambda step, _: float(step == 40)
        ),
        set(),
    ),
    (
        "skipped",
        "wrong",
        lambda run: alter_curve(run, "train/skipped", lambda *_: 3.0),
        set(),
    ),
    (
        "still falling",
        "look",
        lambda run: alter_curve(run, "valid/nll", lambda step, _: 4.0 - step / 500),
        set(),
    ),
    (
        "overfitted",
        "look",
        lambda run: alter_curve(run, "valid/nll", lambda step, nll: nll + step / 500),
        set(),
    ),
    ("averaging", "look", lambda run: configure(run, **{"model.d_model": 512}), set()),
    ("averaging", "look", add_average, set()),
    (
        "averaging",
        "look",
        lambda run: (add_average(run), score_the_average_elsewhere(run)),
        set(),
    ),
    ("checkpoint", "look", lambda run: alter_record(run, checkpoint=100), set()),
    ("checkpoint", "look", lambda run: alter_record(run, checkpoint=150), set()),
    (
        "checkpoint",
        "look",
        lambda run: (run / "checkpoints" / str(STEPS)).rename(
            run / "checkpoints" / str(STEPS - 10)
        ),
        set(),
    ),
    (
        "checkpoint",
        "look",
        lambda run: alter_record(run, checkpoint="average/last-5"),
        set(),
    ),
    (
        "checkpoint",
        "look",
        lambda run: (add_average(run), shutil.rmtree(run / "checkpoints")),
        set(),
    ),
    ("test set", "wrong", rename_test, set()),
    (
        "signature",
        "look",
        lambda run: alter_record(
            run,
            bleu_signature="nrefs:1|case:lc|eff:no|tok:intl|smooth:exp|version:2.6.0",
        ),
        set(),
    ),
    (
        "signature",
        "look",
        lambda run: alter_record(
            run, bleu_signature=None, tokenized_bleu_signature="x"
        ),
        set(),
    ),
    (
        "search",
        "look",
        lambda run: alter_record(
            run, decoding={"beam_size": 1, "length_penalty": "average"}
        ),
        set(),
    ),
    (
        "search",
        "wrong",
        lambda run: alter_record(run, decoding={"sample": True}),
        set(),
    ),
    ("recount", "wrong", lambda run: alter_record(run, bleu=45.67), set()),
    (
        "beside validation",
        "look",
        lambda run: alter_curve(run, "valid/bleu", lambda _, bleu: bleu * 10),
        set(),
    ),
    ("output order", "wrong", lambda run: translate(run, without(20)), set()),
    ("output form", "wrong", lambda run: translate(run, each(tokenize)), set()),
    ("output quotes", "look", lambda run: translate(run, each(low_quotes)), set()),
    ("output case", "wrong", lambda run: translate(run, each(str.lower)), set()),
    ("output case", "wrong", lower_references, {"training case"}),
    ("output case", "wrong", lambda run: translate(run, each(str.upper)), set()),
    (
        "length",
        "look",
        lambda run: translate(
            run, each(lambda line: line.rpartition(" ")[0] or line, 2)
        ),
        set(),
    ),
    (
        "length",
        "wrong",
        lambda run: translate(run, each(lambda line: " ".join(line.split()[:3]))),
        set(),
    ),
    (
        "length",
        "wrong",
        lambda run: translate(run, each(lambda line: f"{line} {line}")),
        set(),
    ),
    ("cut", "wrong", lambda run: alter_record(run, unfinished=60), set()),
    ("empty", "wrong", lambda run: translate(run, each(lambda _: "", every=15)), set()),
    ("copies", "wrong", lambda run: translate(run, source_of(run)), set()),
    (
        "loops",
        "wrong",
        lambda run: translate(
            run, each(lambda line: line + " und so weiter, dann" * 3, 4)
        ),
        {"length"},
    ),
    (
        "output unknown",
        "wrong",
        lambda run: translate(run, each(lambda line: f"{line} ⁇ ", every=5)),
        set(),
    ),
    (
        "variety",
        "wrong",
        lambda run: translate(run, each(lambda _: "Das ist ein neues Dokument.")),
        {"length"},
    ),
    (
        READABLE,
        "wrong",
        lambda run: alter_text(run, "train.de", lambda lines: lines[:-3]),
        set(),
    ),
    (READABLE, "wrong", lambda run: (run / "results.json").write_text('{"cut'), set()),
    (
        READABLE,
        "wrong",
        lambda run: (run / "metrics.jsonl").write_text('{"cut\n{"step": 1}\n'),
        set(),
    ),
    (READABLE, "wrong", lambda run: alter_record(run, sentences=299), set()),
    (READABLE, "wrong", lose_a_translation, set()),
    (READABLE, "wrong", lambda run: shutil.rmtree(run / "vocabulary"), set()),
    (READABLE, "wrong", lambda run: shutil.rmtree(run / "checkpoints"), set()),
    (
        READABLE,
        "wrong",
        lambda run: shutil.rmtree(run / "checkpoints" / str(STEPS)),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: shutil.rmtree(run / "checkpoints" / str(STEPS) / "params"),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: (run / "checkpoints" / str(STEPS + 100)).mkdir(),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: (run / "averages" / "last-1").mkdir(parents=True),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: (
            shutil.rmtree(run / "checkpoints"),
            (run / "results.json").unlink(),
        ),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: (
            shutil.rmtree(run / "checkpoints"),
            (run / "metrics.jsonl").unlink(),
        ),
        set(),
    ),
    (
        READABLE,
        "wrong",
        lambda run: alter_text(run, "test.de", each(lambda line: line + "!", every=50)),
        set(),
    ),
]


def _files(run: Path, split: str) -> str:
    return f"{run.parent / split}.en,{run.parent / split}.de"


@pytest.mark.parametrize(
    ("check", "verdict", "plant", "also"),
    FAULTS,
    ids=[f"{f[0]}-{f[1]}" for f in FAULTS],
)
def test_each_planted_fault_is_found(check, verdict, plant, also, run):
    """The check of a fault says what it is and how to cure it; hardly another check
    calls anything wrong.
    """
    plant(run)
    findings = {finding.check: finding for finding in examine(read_evidence(run))}
    found = findings[check]
    assert found.verdict == verdict, found
    assert found.found
    assert found.expected
    assert found.cure
    wrong = {
        finding.check for finding in findings.values() if finding.verdict == "wrong"
    }
    assert wrong - {check} <= also, [
        finding for finding in findings.values() if finding.verdict == "wrong"
    ]


@pytest.mark.parametrize(
    ("check", "plant", "found", "cure"),
    [
        (
            "finished",
            cut_log,
            "ends with step 300, and there is a checkpoint of step 600",
            "restore metrics.jsonl",
        ),
        (
            "output case",
            lower_references,
            "0.0% in the test text",
            "the test text was lowercased",
        ),
        (
            "output case",
            lambda run: translate(run, each(str.lower)),
            "0.0% of the letters",
            "train on text as it is",
        ),
        (
            "output case",
            lambda run: translate(run, each(str.upper)),
            "100.0% of the letters",
            "more is in capitals",
        ),
        (
            "checkpoint",
            lambda run: alter_record(run, checkpoint=150),
            "150, which is gone (the last is 600)",
            "--checkpoint=best",
        ),
        (
            "checkpoint",
            lambda run: (
                add_average(run),
                alter_record(run, checkpoint="average/last-5"),
            ),
            "average/last-5, which is gone: there is average/last-1",
            "--checkpoint=best",
        ),
        ("averaging", add_average, "averages/ has last-1", "--checkpoint=average"),
        (
            READABLE,
            lambda run: (run / "checkpoints" / "700").mkdir(),
            "checkpoint 700 in ",
            "mend or restore",
        ),
    ],
)
def test_a_fault_is_told_from_its_like(check, plant, found, cure, run):
    """What is said names the fault, and its cure is not that of the opposite one."""
    plant(run)
    finding = next(
        finding for finding in examine(read_evidence(run)) if finding.check == check
    )
    assert found in finding.found
    assert cure in finding.cure


def test_every_check_has_a_planted_fault():
    """No check is without a test."""
    assert {fault[0] for fault in FAULTS} == {check.name for check in CHECKS} | {
        READABLE
    }


def test_a_healthy_run_has_nothing_to_look_at(run):
    """Where nothing is planted every check sees what it needs and says ok."""
    assert [
        finding for finding in examine(read_evidence(run)) if finding.verdict != "ok"
    ] == []
