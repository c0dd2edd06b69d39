"""``reproduce``: the paper's tables beside ours, and the runs that compare with them
and that do not.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from jaxformer import paper
from jaxformer.paper.tables import LEARNING_KEYS
from jaxformer.runs import config as configuration
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import DecodingConfig


def write_run(directory: Path, row: paper.Row, record: dict, **sections: dict) -> Path:
    """Write what the command reads of a finished run: its configuration, results and
    log.
    """
    directory.mkdir(parents=True)
    values = configuration.default_config().to_dict()
    for key, value in row.settings.items():
        section, _, name = key.partition(".")
        values[section][name] = value
    values["data"]["valid"] = "text:newstest2013.en,newstest2013.de"
    values["data"]["train"] = "text:train.en,train.de"
    for section, changes in sections.items():
        values[section] |= changes
    config = configuration.parse(values)
    configuration.save(config, directory / "config.json")
    record = {
        "decoding": dataclasses.asdict(config.decoding) | {"shortlist": False},
        **record,
    }
    (directory / "results.json").write_text(json.dumps({record["dataset"]: record}))
    lines = [
        {"step": 50_000, "valid/perplexity": 5.5},
        {"step": 100_000, "valid/perplexity": 5.31},
    ]
    (directory / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
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
    """Every row is there with the paper's number, ours beside it, and no hours where
    nothing tells the speed.
    """
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
    assert "set --flops_per_second" in text


def test_a_run_that_compares(call, row, tmp_path):
    """Score and perplexity of the step that was scored stand beside the paper's,
    with nothing against them.
    """
    run = write_run(tmp_path / "run", row, RECORD)
    outcome = call("reproduce", 3, f"--run=a_h1={run}")
    line = next(line for line in outcome.lines if "`a_h1` |" in line)
    assert "| 5.29 | 5.31 | 24.9 | 24.7 |" in line
    (said,) = (line for line in outcome.lines if line.startswith("- `a_h1`: "))
    assert "trained on text:train.en,train.de, checkpoint 100000" in said
    assert said.endswith("Comparable with the paper, where that is its training text.")
    assert "Not comparable" not in outcome.out.decode()


NO_KIND = {"compound_split_bleu": None}
IN_RECORD = [
    (NO_KIND, "sacreBLEU of raw text, and not compound_split_bleu as in the paper"),
    (NO_KIND | {"tokenized_bleu": 24.1}, "tokenised BLEU without split compounds"),
    (
        {"dataset": "text:mine.en,mine.de"},
        "scored on text:mine.en,mine.de, and not on newstest2013",
    ),
    ({"sentences": 2999}, "2,999 sentences, and newstest2013 has 3,000"),
    ({"checkpoint": 99_000}, "scored at step 99,000 of 100,000"),
    ({"checkpoint": "a/average/x + b/7"}, "an ensemble of a/average/x + b/7"),
    (
        {"checkpoint": "average/gone"},
        "scored with average/gone, which is no longer there",
    ),
]
IN_CONFIG = [
    ("decoding.beam_size", 1, "1, and not 4"),
    ("decoding.length_penalty", "average", "average, and not gnmt"),
    ("data.tokens_per_batch", 4096, "4096, and not 25000"),
    ("data.vocabulary_size", 8000, "8000, and not 37000"),
    ("training.schedule", "cosine", "cosine, and not paper"),
    ("training.learning_rate", 0.5, "0.5, and not 1.0"),
    ("training.cooldown_steps", 10, "10, and not 0"),
    ("training.optimizer", "lion", "lion, and not adam"),
    ("training.adam_b1", 0.8, "0.8, and not 0.9"),
    ("training.adam_b2", 0.999, "0.999, and not 0.98"),
    ("training.adam_epsilon", 1e-6, "1e-06, and not 1e-09"),
    ("training.gradient_clip", 1.0, "1.0, and not None"),
    ("training.ema_decay", 0.999, "0.999, and not None"),
    ("training.frozen", "encoder/*", "encoder/*, and not None"),
    ("training.smoothing_convention", "all", "all, and not others"),
    ("training.z_loss", 1e-4, "0.0001, and not 0.0"),
    ("training.r_drop", 5.0, "5.0, and not 0.0"),
    ("training.initial_run", "runs/old", "runs/old, and not None"),
]
REASONS = [
    *((record, {}, reason) for record, reason in IN_RECORD),
    *(({}, {key: value}, f"{key} {end}") for key, value, end in IN_CONFIG),
    (
        {},
        {"data.valid": "text:v.en,v.de"},
        "perplexity of text:v.en,v.de, and not of newstest2013",
    ),
    (
        {},
        {"data.train": "text:a.en,a.de + 2 * bundled:en-de/train"},
        "trained on bundled:en-de/train, and not on the paper's text",
    ),
]


@pytest.mark.parametrize(("record", "changes", "reason"), REASONS)
def test_why_a_run_does_not_compare(row, tmp_path, record, changes, reason):
    """Each cause on its own is noted, and no other."""
    sections: dict[str, dict] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections[section] = {name: value}
    run = write_run(tmp_path / "run", row, RECORD | record, **sections)
    first, *rest = paper.read_run(paper.TABLES[3], row, run).notes
    assert reason in first
    # Only the last step of the run has a perplexity of its own.
    assert rest == ([OTHER_STEP] if "checkpoint" in record else [])


def test_a_score_that_does_not_compare_has_a_star(call, row, tmp_path):
    """The table marks the score, and the reasons are below."""
    run = write_run(tmp_path / "run", row, RECORD | {"sentences": 2999})
    outcome = call("reproduce", 3, f"--run=a_h1={run}")
    reason = "  - 2,999 sentences, and newstest2013 has 3,000"
    assert [line for line in outcome.lines if line.startswith("  - ")] == [reason]
    assert r"| 24.7\* |" in next(line for line in outcome.lines if "`a_h1` |" in line)


def test_every_key_of_training_is_one_that_is_noted_or_one_that_changes_nothing():
    """A new key must be put among those that keep a run from comparing, or among
    these, which do not.
    """
    noted = {
        *LEARNING_KEYS,
        *(key.partition(".")[2] for key in paper.BASE if key.startswith("training.")),
    }
    free = {
        "accumulation_steps",
        "seed",
        "initial_optimizer",
        "engine",
        "mesh_fsdp",
        "mesh_tensor",
        "shard_moments",
        "loss_scale",
        "max_bad_steps",
        "log_every",
        "evaluate_every",
        "checkpoint_every",
        "patience",
        "keep_latest",
        "keep_best",
        "keep_every",
        "on_failed_save",
        "profile_step",
        "profile_steps",
        "wandb_project",
    }
    assert noted | free == {field.name for field in dataclasses.fields(TrainingConfig)}
    assert not noted & free


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (
            "sentences",
            "3000",
            'sentences of the entry .* must be a whole number, not "3000"',
        ),
        ("sentences", True, "must be a whole number, not true"),
        (
            "checkpoint",
            None,
            "checkpoint of the entry .* must be a step or a name, not null",
        ),
        ("dataset", None, "dataset of the entry .* must be a string, not null"),
        ("decoding", None, "decoding of the entry .* must be an object, not null"),
        ("bleu", None, "bleu of the entry .* must be a number, not null"),
    ],
)
def test_fields_of_another_type(call, row, tmp_path, field, value, said):
    """A record whose fields are not what evaluate writes is refused in one line with
    its entry and its file.
    """
    run = write_run(tmp_path / "run", row, RECORD)
    (record,) = json.loads((run / "results.json").read_text()).values()
    (run / "results.json").write_text(json.dumps({"mine": {**record, field: value}}))
    error = call("reproduce", 3, f"--run=a_h1={run}").error
    assert re.search(said, error)
    assert str(run / "results.json") in error


def test_f1_of_a_parser(call, tmp_path):
    """An F1 that stands in the results is shown beside the paper's; BLEU of trees is
    not.
    """
    table = paper.TABLES[4]
    parser = table.find("wsj")
    record = {
        "dataset": "text:wsj23.txt,wsj23.trees",
        "bleu": 70.0,
        "sentences": 2416,
        "checkpoint": 100_000,
    }
    scored = write_run(tmp_path / "scored", parser, {**record, "f1": 91.25})
    plain = write_run(tmp_path / "plain", parser, record)
    for run, cell in ((scored, "| 91.3 | 91.2 |"), (plain, None)):
        outcome = call(
            "reproduce", 4, f"--run=wsj={run}", f"--picture={run / 'table.png'}"
        )
        line = next(line for line in outcome.lines if "`wsj` |" in line)
        assert ("F1, run" in outcome.out.decode()) == (cell is not None)
        assert cell is None or cell in line
    found = paper.read_run(table, parser, scored)
    assert (found.metric, found.get("f1"), found.get("bleu"), found.notes) == (
        "f1",
        91.25,
        None,
        (),
    )
    assert paper.read_run(table, parser, plain).get("f1") is None


def test_averaging(row, tmp_path, monkeypatch):
    """The big model's score is of a mean of 20; Table 3 is of the last checkpoint
    alone.
    """
    from jaxformer.checkpoints.average import Average

    monkeypatch.setattr(
        paper.runs,
        "list_averages",
        lambda _: [Average("last20", list(range(281_000, 301_000, 1_000)), "", 0.0)],
    )
    big = paper.TABLES[2].find("ende_big")
    record = RECORD | {
        "dataset": "sacrebleu:wmt14/full",
        "sentences": 3003,
        "checkpoint": "average/last20",
    }
    run = write_run(tmp_path / "big", big, record)
    assert paper.read_run(paper.TABLES[2], big, run).notes == ()
    (run / "results.json").write_text(
        json.dumps(
            {
                "x": (
                    json.loads((run / "results.json").read_text())[record["dataset"]]
                    | {"checkpoint": 300_000}
                )
            }
        )
    )
    (note,) = paper.read_run(paper.TABLES[2], big, run).notes
    assert (
        note
        == "one checkpoint, not averaged, and the paper's is the mean of the last 20"
    )
    averaged = write_run(
        tmp_path / "row", row, RECORD | {"checkpoint": "average/last20"}
    )
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
    """Another model, or another smoothing, is refused in one line that names what
    differs.
    """
    run = write_run(tmp_path / "run", row, RECORD)
    error = call("reproduce", 3, f"--run=base={run}").error
    assert (
        f"{run} is no run of the row base: it has num_heads 1 and not 8, d_k 512 and"
        " not 64" in error
    )
    smoothed = write_run(
        tmp_path / "smoothed", paper.TABLES[3].find("d_smoothing02"), RECORD
    )
    assert (
        "label_smoothing 0.2 and not 0.1"
        in call("reproduce", 3, f"--run=base={smoothed}").error
    )


def test_wrong_usage(call, row, tmp_path):
    """Each is refused in one line."""
    run = write_run(tmp_path / "run", row, RECORD)
    for words, said in (
        ([5], "invalid choice: 5 (choose from 2, 3, 4)"),
        ([3, "--run=runs/x"], "--run must be ROW=DIR, not 'runs/x'"),
        ([3, *[f"--run=a_h1={run}"] * 2], "names the row a_h1 twice"),
        ([3, f"--run=base={tmp_path / 'none'}"], "does not exist; --run must name"),
        ([3, "--utilisation=0"], "--utilisation must be above 0"),
        ([3, "--flops_per_second=-1"], "--flops_per_second must be above 0"),
        ([3, f"--output={tmp_path / 'no' / 'x.md'}"], "there is no folder"),
    ):
        assert said in call("reproduce", *words).error
    (run / "results.json").unlink()
    assert (
        f"run jaxformer evaluate --workdir={run} first"
        in call("reproduce", 3, f"--run=a_h1={run}").error
    )
    assert call("reproduce").code == 2


def test_files(call, row, tmp_path):
    """Markdown and picture are written where they are said to go; hours follow speed
    and utilisation.
    """
    run = write_run(tmp_path / "run", row, RECORD, model={"vocabulary_size": 8_000})
    output, picture = tmp_path / "table.md", tmp_path / "table.png"
    speed = ("--flops_per_second=1e15", "--utilisation=0.5")
    outcome = call(
        "reproduce",
        3,
        f"--run=a_h1={run}",
        f"--output={output}",
        f"--picture={picture}",
        *speed,
    )
    assert (outcome.code, outcome.out, outcome.err) == (0, b"", "")
    text = output.read_text("utf-8")
    assert text.startswith('# Table 3 of "Attention Is All You Need"')
    hours = (
        paper.count_flops(row.model, steps=100_000, tokens_per_batch=25_000)
        / 0.5e15
        / 3600
    )
    assert next(line for line in text.split("\n") if "`a_h1` |" in line).endswith(
        f"| {hours:.2g} |"
    )
    assert "50% of the peak of 1e+15 FLOP/s" in text
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    small = dataclasses.replace(row.model, vocabulary_size=8_000)
    assert f"run, {paper.count_parameters(small):,} parameters, trained on" in text


@pytest.mark.parametrize("name", ["table.jpg", "table"])
def test_a_picture_is_a_png(call, tmp_path, name):
    """A name that says another format is refused before anything is written."""
    error = call(
        "reproduce",
        3,
        f"--output={tmp_path / 'table.md'}",
        f"--picture={tmp_path / name}",
    ).error
    assert (
        error == f"{tmp_path / name}: pictures are written as PNG; name it"
        f" {tmp_path / name}.png"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["table", "folder/../table", "link"])
def test_one_file_is_not_both_table_and_picture(call, tmp_path, name):
    """The one would take the place of the other, however its path is written."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    error = call(
        "reproduce", 3, f"--output={tmp_path / 'table'}", f"--picture={tmp_path / name}"
    ).error
    assert error == f"--picture {tmp_path / name} is the file of --output: name another"
    assert not (tmp_path / "table").exists()


def test_decoding_defaults_are_the_papers():
    """What a search is compared with, beyond what a row says, are the defaults."""
    assert (DecodingConfig().length_penalty, DecodingConfig().sample) == ("gnmt", False)


def test_the_picture_marks_what_does_not_compare(row, tmp_path, monkeypatch):
    """Table 3 has a panel for perplexity, of other pieces than the paper's, and one
    for BLEU.
    """
    from jaxformer.visualization import style

    drawn = []
    monkeypatch.setattr(
        style, "save", lambda figure, picture: drawn.append(figure) or picture
    )
    table = paper.TABLES[3]
    run = paper.read_run(table, row, write_run(tmp_path / "run", row, RECORD))
    for notes in ((), ("trained on other text",)):
        scored = dataclasses.replace(run, notes=notes)
        lines = paper.make_lines(
            table, {row.name: scored}, flops_per_second=None, utilisation=0.4
        )
        paper.draw(table, lines, tmp_path / "table.png")
    for figure, shown in zip(
        drawn,
        (["run, not comparable", "run"], ["run, not comparable"] * 2),
        strict=True,
    ):
        panels = figure.axes[:2]
        assert [axes.get_xlabel() for axes in panels] == ["perplexity", "BLEU"]
        marks = [axes.collections[-1] for axes in panels]
        assert [mark.get_label() for mark in marks] == shown
        assert [mark.get_offsets().tolist() for mark in marks] == [
            [[score, table.rows.index(row)]] for score in (run.perplexity, run.value)
        ]
        legend, _ = (axes.get_legend() for axes in (figure.axes[0], figure.axes[2]))
        assert [text.get_text() for text in legend.get_texts()] == [
            "paper",
            *dict.fromkeys(shown),
        ]
