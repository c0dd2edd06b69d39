"""``reproduce``: the paper's tables with ours, and the runs that compare with them
and that do not.
"""

from __future__ import annotations

import dataclasses
import json

import pytest
from cli.text import write

from jaxformer.checkpoints.average import Average
from jaxformer.paper import runs as paper_runs
from jaxformer.paper.cost import count_flops
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.runs import read_run
from jaxformer.paper.tables import TABLES
from jaxformer.runs import config as configuration

TABLE3 = TABLES[3]
RECORD = {
    "dataset": "text:newstest2013.en,newstest2013.de",
    "bleu": 24.0,
    "compound_split_bleu": 24.7,
    "sentences": 3000,
    "checkpoint": 100_000,
}
OTHER_STEP = "perplexity at step 100,000, and not of what was scored"


def write_run(directory, row, record, changes=None):
    """Write what the command reads of a finished run: its configuration, results and
    log.
    """
    directory.mkdir(parents=True)
    values = configuration.default_config().to_dict()
    texts = {"data.valid": RECORD["dataset"], "data.train": "text:train.en,train.de"}
    for key, value in {**row.settings, **texts, **(changes or {})}.items():
        section, name = key.split(".")
        values[section][name] = value
    config = configuration.parse(values)
    configuration.save(config, directory / "config.json")
    decoding = dataclasses.asdict(config.decoding) | {"shortlist": False}
    results = {record["dataset"]: {"decoding": decoding, **record}}
    (directory / "results.json").write_text(json.dumps(results))
    steps = ((50_000, 5.5), (100_000, 5.31))
    lines = [{"step": step, "valid/perplexity": value} for step, value in steps]
    write(directory / "metrics.jsonl", map(json.dumps, lines))
    return directory


@pytest.fixture
def row():
    return TABLE3.find("a_h1")


@pytest.fixture
def run(row, tmp_path):
    return write_run(tmp_path / "run", row, RECORD)


@pytest.mark.parametrize("number", [2, 4])
def test_the_table(call, number):
    """Every row has the paper's number and ours, and no hours where the speed is
    unknown.
    """
    outcome = call("reproduce", number)
    assert (outcome.code, outcome.err) == (0, "")
    table = TABLES[number]
    grid = [line for line in outcome.lines if line.startswith("|")]
    assert len(grid) == 2 + len(table.rows)
    assert len({line.count("|") for line in grid}) == 1
    for row, line in zip(table.rows, grid[2:], strict=True):
        assert row.title in line
        assert all(f"{score:g}" in line for score in row.scores.values())
        assert ("unknown" in line) == (row.config is not None)
        if row.config is not None:
            assert f"{count_parameters(row.model):,}" in line
    assert ", run |" not in outcome.out.decode()
    assert "set --flops_per_second" in outcome.out.decode()


def line_of(row, outcome):
    return next(line for line in outcome.lines if f"`{row}` |" in line)


def test_a_run_that_compares(call, row, run, tmp_path):
    """Score and perplexity of the step that was scored are next to the paper's, with
    nothing against them. A score that does not compare has a star and the reason.
    """
    outcome = call("reproduce", 3, f"--run=a_h1={run}")
    assert "| 5.29 | 5.31 | 24.9 | 24.7 |" in line_of("a_h1", outcome)
    (said,) = (line for line in outcome.lines if line.startswith("- `a_h1`: "))
    assert "trained on text:train.en,train.de, checkpoint 100000" in said
    assert said.endswith("Comparable with the paper, where that is its training text.")
    assert "Not comparable" not in outcome.out.decode()
    other = write_run(tmp_path / "other", row, {**RECORD, "sentences": 2999})
    outcome = call("reproduce", 3, f"--run=a_h1={other}")
    reason = "  - 2,999 sentences, and newstest2013 has 3,000"
    assert [line for line in outcome.lines if line.startswith("  - ")] == [reason]
    assert r"| 24.7\* |" in line_of("a_h1", outcome)


NO_KIND = {"compound_split_bleu": None}
PARALLEL = "text:a.en,a.de + 2 * bundled:en-de/train"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (NO_KIND, "sacreBLEU of raw text, and not compound_split_bleu as in the paper"),
        ({**NO_KIND, "tokenized_bleu": 24.1}, "tokenised BLEU without split compounds"),
        ({"dataset": "text:a,b"}, "scored on text:a,b, and not on newstest"),
        ({"checkpoint": 99_000}, "scored at step 99,000 of 100,000"),
        (
            {"checkpoint": "average/gone"},
            "scored with average/gone, which is no longer",
        ),
        ({"data.valid": "text:v.en,v.de"}, "perplexity of text:v.en,v.de, and not of"),
        ({"data.train": PARALLEL}, "trained on bundled:en-de/train, and not on the"),
        ({"decoding.beam_size": 1}, "decoding.beam_size 1, and not 4"),
        ({"training.adam_epsilon": 1e-6}, "adam_epsilon 1e-06, and not 1e-09"),
    ],
)
def test_why_a_run_does_not_compare(row, tmp_path, record, reason):
    """Each cause is noted, and no other."""
    changes = {key: value for key, value in record.items() if "." in key}
    record = {key: value for key, value in record.items() if "." not in key}
    run = write_run(tmp_path / "run", row, RECORD | record, changes)
    first, *rest = read_run(TABLE3, row, run).notes
    assert reason in first
    # Only the last step of the run has a perplexity of its own.
    assert rest == ([OTHER_STEP] if "checkpoint" in record else [])


def test_f1_of_a_parser(call, tmp_path):
    """F1 in the results is shown next to the paper's; BLEU of trees is not."""
    table, parser = TABLES[4], TABLES[4].find("wsj")
    given = {"dataset": "text:wsj23.txt,wsj23.trees", "bleu": 70.0, "sentences": 2416}
    given["checkpoint"] = 100_000
    for name, record in (("scored", {**given, "f1": 91.25}), ("plain", given)):
        run = write_run(tmp_path / name, parser, record)
        outcome = call("reproduce", 4, f"--run=wsj={run}")
        line = line_of("wsj", outcome)
        assert ("F1, run" in outcome.out.decode()) == (name == "scored")
        assert ("| 91.3 | 91.2 |" in line) == (name == "scored")
        found = read_run(table, parser, run)
        assert found.get("f1") == record.get("f1")
        if name == "scored":
            assert (found.metric, found.get("bleu"), found.notes) == ("f1", None, ())


def test_averaging(row, tmp_path, monkeypatch):
    """The big model's score is of a mean of 20; Table 3 is of the last checkpoint."""
    average = Average("last20", list(range(281_000, 301_000, 1_000)), "", 0.0)
    monkeypatch.setattr(paper_runs, "list_averages", lambda _: [average])
    big, record = TABLES[2].find("ende_big"), {**RECORD, "sentences": 3003}
    record["dataset"] = "sacrebleu:wmt14/full"

    def notes(number, row, record):
        name = f"{number}-{record['checkpoint']}".replace("/", "-")
        run = write_run(tmp_path / name, row, record)
        return read_run(TABLES[number], row, run).notes

    mean = {"checkpoint": "average/last20"}
    assert notes(2, big, {**record, **mean}) == ()
    rule = "one checkpoint, not averaged, and the paper's is the mean of the last 20"
    assert notes(2, big, {**record, "checkpoint": 300_000}) == (rule,)
    rule = "the mean of 20 checkpoints, and the paper's is the last checkpoint alone"
    assert notes(3, row, {**RECORD, **mean}) == (rule, OTHER_STEP)


def test_the_best_comparison_is_taken(row, run):
    """Of several results of a run the one with the fewest reasons against it."""
    records = json.loads((run / "results.json").read_text())
    other = {**next(iter(records.values())), "dataset": "text:a,b", "sentences": 7}
    (run / "results.json").write_text(json.dumps({"text:a,b": other, **records}))
    assert read_run(TABLE3, row, run).dataset == RECORD["dataset"]


def test_a_run_of_another_row(call, run, tmp_path):
    """Another model, or another smoothing, is refused by what differs."""
    error = call("reproduce", 3, f"--run=base={run}").error
    rule = "it has num_heads 1 and not 8, d_k 512 and not 64"
    assert f"{run} is no run of the row base: {rule}" in error
    error = call("reproduce", 3, *[f"--run=a_h1={run}"] * 2).error
    assert "names the row a_h1 twice" in error
    smoothed = write_run(tmp_path / "other", TABLE3.find("d_smoothing02"), RECORD)
    error = call("reproduce", 3, f"--run=base={smoothed}").error
    assert "label_smoothing 0.2 and not 0.1" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("5", "(choose from 2, 3, 4)"),  # Python 3.12 and later quote the 5
        ("3 --run=runs/x", "argument --run: must be ROW=DIR, not 'runs/x'"),
        ("3 --run=base=none", "does not exist; --run must name"),
        ("3 --flops_per_second=-1", "--flops_per_second must be above 0"),
        ("3 --output=no/x.md", "there is no folder"),
        ("3 --run=a_h1=RUN", "run jaxformer evaluate --workdir="),
    ],
)
def test_wrong_usage(call, run, tmp_path, monkeypatch, words, said):
    """Each is refused in one line, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (run / "results.json").unlink()
    words = words.replace("RUN", str(run))
    assert said in call("reproduce", *words.split()).error
    assert list(tmp_path.iterdir()) == [run]


def test_files(call, row, tmp_path):
    """Markdown is written to its file; hours follow from speed and utilisation."""
    run = write_run(tmp_path / "run", row, RECORD, {"model.vocabulary_size": 8_000})
    output = tmp_path / "table.md"
    files = (f"--run=a_h1={run}", f"--output={output}")
    speed = ("--flops_per_second=1e15", "--utilisation=0.5")
    assert call("reproduce", 3, *files, *speed) == (0, b"", "")
    text = output.read_text("utf-8")
    assert text.startswith('# Table 3 of "Attention Is All You Need"')
    flops = count_flops(row.model, steps=100_000, tokens_per_batch=25_000)
    line = next(line for line in text.split("\n") if "`a_h1` |" in line)
    assert line.endswith(f"| {flops / 0.5e15 / 3600:.2g} |")
    assert "50% of the peak of 1e+15 FLOP/s" in text
    small = dataclasses.replace(row.model, vocabulary_size=8_000)
    assert f"run, {count_parameters(small):,} parameters, trained on" in text
