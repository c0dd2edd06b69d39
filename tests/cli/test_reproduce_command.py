"""``reproduce``: the paper's tables beside ours, and the runs that compare with them and that do not."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from jaxformer import paper
from jaxformer.decoding.config import DecodingConfig
from jaxformer.training import config as configuration


def write_run(directory: Path, row: paper.Row, record: dict, **sections: dict) -> Path:
    """Write what the command reads of a finished run: its configuration, results and log."""
    directory.mkdir(parents=True)
    values = configuration.default_config().to_dict()
    for key, value in row.settings.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    values["data"]["valid"] = "text:newstest2013.en,newstest2013.de"
    for section, changes in sections.items():
        values[section] |= changes
    config = configuration.parse(values)
    configuration.save(config, directory / "config.json")
    record = {"decoding": dataclasses.asdict(config.decoding) | {"shortlist": False}, **record}
    (directory / "results.json").write_text(json.dumps({record["dataset"]: record}))
    lines = [{"step": 50_000, "valid/perplexity": 5.5}, {"step": 100_000, "valid/perplexity": 5.31}]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


RECORD = {
    "dataset": "text:newstest2013.en,newstest2013.de",
    "bleu": 24.0,
    "compound_split_bleu": 24.7,
    "sentences": 3000,
    "checkpoint": 100_000,
}
OTHER_STEP = "perplexity at step 100,000, and not of what was scored"


@pytest.fixture
def row() -> paper.Row:
    return paper.TABLES[3].find("a_h1")


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_table(call, number):
    """Every row is there with the paper's number, ours beside it, and no hours where nothing tells the speed."""
    outcome = call("reproduce", number)
    assert (outcome.code, outcome.err) == (0, "")
    text = outcome.out.decode()
    table = paper.TABLES[number]
    grid = [line for line in outcome.lines if line.startswith("|")]
    assert len(grid) == 2 + len(table.rows)
    assert len({len(re.findall(r"\|", line)) for line in grid}) == 1
    for row, line in zip(table.rows, grid[2:], strict=True):
        assert row.title in line
        assert all(f"{score:g}" in line for score in row.scores.values())
        assert ("unknown" in line) == (row.config is not None)
        if row.config is not None:
            assert f"{paper.parameters_by_formula(row.model):,}" in line
    assert ", run |" not in text
    assert "give it by --flops_per_second" in text


def test_a_run_that_compares(call, row, tmp_path):
    """Score and perplexity of the step that was scored stand beside the paper's, with nothing against them."""
    run = write_run(tmp_path / "run", row, RECORD)
    outcome = call("reproduce", 3, f"--run=a_h1={run}")
    line = next(line for line in outcome.lines if "`a_h1` |" in line)
    assert "| 5.29 | 5.31 | 24.9 | 24.7 |" in line
    assert "Comparable with the paper." in outcome.out.decode()
    assert "Not comparable" not in outcome.out.decode()


@pytest.mark.parametrize(
    ("record", "sections", "reason"),
    [
        ({"compound_split_bleu": None}, {}, "sacreBLEU of raw text, and not compound_split_bleu as in the paper"),
        ({"compound_split_bleu": None, "tokenized_bleu": 24.1}, {}, "tokenised BLEU without split compounds"),
        ({"dataset": "text:mine.en,mine.de"}, {}, "scored on text:mine.en,mine.de, and not on newstest2013"),
        ({"sentences": 2999}, {}, "2,999 sentences, and newstest2013 has 3,000"),
        ({"checkpoint": 99_000}, {}, "scored at step 99,000 of 100,000"),
        ({"checkpoint": "a/average/x + b/7"}, {}, "an ensemble of a/average/x + b/7"),
        ({"checkpoint": "average/gone"}, {}, "scored with average/gone, which is no longer there"),
        ({}, {"decoding": {"beam_size": 1}}, "decoding.beam_size 1, and not 4"),
        ({}, {"decoding": {"length_penalty": "average"}}, "decoding.length_penalty average, and not gnmt"),
        ({}, {"data": {"tokens_per_batch": 4096}}, "data.tokens_per_batch 4096, and not 25000"),
        ({}, {"data": {"vocabulary_size": 8000}}, "data.vocabulary_size 8000, and not 37000"),
        ({}, {"data": {"valid": "text:v.en,v.de"}}, "perplexity of text:v.en,v.de, and not of newstest2013"),
    ],
)
def test_what_keeps_a_run_from_comparing(call, row, tmp_path, record, sections, reason):
    """Each cause alone is named, and the score gets a star."""
    run = write_run(tmp_path / "run", row, RECORD | record, **sections)
    outcome = call("reproduce", 3, f"--run=a_h1={run}")
    reasons = [line for line in outcome.lines if line.startswith("  - ")]
    # a score of anything but the run's last step has no perplexity of its own beside it
    other_step = [f"  - {OTHER_STEP}"] if "checkpoint" in record else []
    assert len(reasons) == 1 + len(other_step)
    assert reason in reasons[0]
    assert reasons[1:] == other_step
    assert r"\*" in next(line for line in outcome.lines if "`a_h1` |" in line)


def test_averaging(row, tmp_path, monkeypatch):
    """The big model's score is of a mean of 20; Table 3 is of the last checkpoint alone (statement 117)."""
    from jaxformer.checkpoints.average import Average

    monkeypatch.setattr(
        paper.runs, "list_averages", lambda _: [Average("last20", list(range(281_000, 301_000, 1_000)), "", 0.0)]
    )
    big = paper.TABLES[2].find("ende_big")
    record = RECORD | {"dataset": "sacrebleu:wmt14/full", "sentences": 3003, "checkpoint": "average/last20"}
    run = write_run(tmp_path / "big", big, record)
    assert paper.read_run(paper.TABLES[2], big, run).notes == ()
    (run / "results.json").write_text(
        json.dumps({"x": json.loads((run / "results.json").read_text())[record["dataset"]] | {"checkpoint": 300_000}})
    )
    (note,) = paper.read_run(paper.TABLES[2], big, run).notes
    assert note == "one checkpoint, not averaged, and the paper's is the mean of the last 20"
    averaged = write_run(tmp_path / "row", row, RECORD | {"checkpoint": "average/last20"})
    assert paper.read_run(paper.TABLES[3], row, averaged).notes == (
        "the mean of 20 checkpoints, and the paper's is the last checkpoint alone",
        OTHER_STEP,
    )


def test_the_best_comparison_is_taken(row, tmp_path):
    """Of several results of a run the one with the fewest reasons against it."""
    run = write_run(tmp_path / "run", row, RECORD)
    records = json.loads((run / "results.json").read_text())
    other = {**next(iter(records.values())), "dataset": "text:a,b", "sentences": 7}
    (run / "results.json").write_text(json.dumps({"text:a,b": other, **records}))
    assert paper.read_run(paper.TABLES[3], row, run).dataset == RECORD["dataset"]


def test_a_run_of_another_row(call, row, tmp_path):
    """Another model, or another smoothing, is refused in one line that names what differs."""
    run = write_run(tmp_path / "run", row, RECORD)
    error = call("reproduce", 3, f"--run=base={run}").error
    assert f"{run} is no run of the row base: it has num_heads 1 and not 8, d_k 512 and not 64" in error
    smoothed = write_run(tmp_path / "smoothed", paper.TABLES[3].find("d_smoothing02"), RECORD)
    assert "label_smoothing 0.2 and not 0.1" in call("reproduce", 3, f"--run=base={smoothed}").error


def test_wrong_usage(call, row, tmp_path):
    """Each is refused in one line."""
    run = write_run(tmp_path / "run", row, RECORD)
    assert "no table 5" in call("reproduce", 5).error
    assert "--run must be ROW=DIR, not 'runs/x'" in call("reproduce", 3, "--run=runs/x").error
    assert "names the row a_h1 twice" in call("reproduce", 3, f"--run=a_h1={run}", f"--run=a_h1={run}").error
    assert "does not exist; --workdir must name" in call("reproduce", 3, f"--run=base={tmp_path / 'none'}").error
    assert "--utilisation must be above 0" in call("reproduce", 3, "--utilisation=0").error
    assert "--flops_per_second must be above 0" in call("reproduce", 3, "--flops_per_second=-1").error
    assert "there is no folder" in call("reproduce", 3, f"--output={tmp_path / 'no' / 'x.md'}").error
    (run / "results.json").unlink()
    assert f"run jaxformer evaluate --workdir={run} first" in call("reproduce", 3, f"--run=a_h1={run}").error
    assert call("reproduce").code == 2


def test_files(call, row, tmp_path):
    """Markdown and picture are written where they are said to go; hours follow speed and utilisation."""
    run = write_run(tmp_path / "run", row, RECORD)
    output, picture = tmp_path / "table.md", tmp_path / "table.png"
    speed = ("--flops_per_second=1e15", "--utilisation=0.5")
    outcome = call("reproduce", 3, f"--run=a_h1={run}", f"--output={output}", f"--picture={picture}", *speed)
    assert (outcome.code, outcome.out, outcome.err) == (0, b"", "")
    text = output.read_text("utf-8")
    assert text.startswith('# Table 3 of "Attention Is All You Need"')
    hours = paper.count_flops(row.model, steps=100_000, tokens_per_batch=25_000) / 0.5e15 / 3600
    assert next(line for line in text.split("\n") if "`a_h1` |" in line).endswith(f"| {hours:.2g} |")
    assert "50% of the peak of 1e+15 FLOP/s" in text
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_decoding_defaults_are_the_papers():
    """What a search is compared with, beyond what a row says, are the defaults (statement 56)."""
    assert (DecodingConfig().length_penalty, DecodingConfig().sample) == ("gnmt", False)
