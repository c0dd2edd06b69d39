"""What a finished run scored, held against a row of the paper's tables, and what
keeps the two from comparing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.average import list_averages
from jaxformer.data.mixing import parse
from jaxformer.errors import InputError
from jaxformer.evaluation.known_sets import find_known
from jaxformer.models.config import TransformerConfig
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.tables import LEARNING_KEYS, Row, Table
from jaxformer.runs import config as configuration
from jaxformer.runs import records
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import read_results
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import differing_settings

_NAMED = 3  # differences that a refusal names at most
# kinds of training text that come with jaxformer
_NOT_THE_PAPERS = ("bundled", "synthetic")


@dataclasses.dataclass(frozen=True)
class RunScore:
    """A score of a run.

    Attributes:
        directory: of the run.
        parameters: of its model.
        metric: what it is scored by, as ``jaxformer evaluate --metrics`` calls it.
        value: the score.
        perplexity: of the validation set, a piece of the run's own vocabulary; None
            where the run did not record it.
        dataset: what it is scored on.
        checkpoint: what is scored: a step, or the name of an average.
        trained_on: the training text, by the name that the run has for it.
        notes: why it does not compare with the paper's number; none where it does.
    """

    directory: Path
    parameters: int
    metric: str
    value: float
    perplexity: float | None
    dataset: str
    checkpoint: int | str
    trained_on: str
    notes: tuple[str, ...]

    def get(self, metric: str) -> float | None:
        """Return the score that stands beside the paper's of a metric; None where the
        run has none.

        BLEU of whatever kind stands beside BLEU, and nothing but F1 beside F1.
        """
        if metric == "perplexity":
            return self.perplexity
        return self.value if (metric == "f1") == (self.metric == "f1") else None


def read_run(table: Table, row: Row, directory: Path) -> RunScore:
    """Read the score of a run that compares best with a row of a table: that with the
    fewest reasons against it.

    Raises:
        InputError: the directory holds no run or none of this row, or nothing was
            evaluated yet.
    """
    if not (directory / "config.json").exists():
        raise InputError(
            f"{directory / 'config.json'} does not exist; --run must name the directory"
            " of a run"
        )
    config = configuration.load(directory / "config.json")
    check_model(row, config, directory)
    records = read_results(directory)
    if not records:
        raise InputError(
            f"{directory} has no results: run jaxformer evaluate --workdir={directory}"
            " first"
        )
    metric = comparable_metric(row)
    parameters, trained = count_parameters(config.model), _training_notes(row, config)
    scores = []
    for name, record in records.items():
        found, value = _score(record, metric, f"{directory / 'results.json'}: {name!r}")
        perplexity, doubts = _perplexity(table, config, record, directory)
        notes = (
            *_metric_notes(found, metric),
            *_text_notes(table, record),
            *_checkpoint_notes(row, config, record, directory),
            *_search_notes(row, record),
            *doubts,
            *trained,
        )
        scored = record["dataset"], record["checkpoint"]
        scores.append(
            RunScore(
                directory,
                parameters,
                found,
                value,
                perplexity,
                *scored,
                config.data.train,
                notes,
            )
        )
    return min(scores, key=lambda score: len(score.notes))


def check_model(row: Row, config: RunConfig, directory: Path) -> None:
    """Refuse a run that is not of a row: of another model, or with another label
    smoothing, which rows differ in.

    Raises:
        InputError: it is not; the differences are named.
    """
    wanted, found = _architecture(row.model), _architecture(config.model)
    wanted["label_smoothing"] = row.settings["training.label_smoothing"]
    found["label_smoothing"] = config.training.label_smoothing
    wrong = [
        f"{key} {found[key]} and not {wanted[key]}"
        for key in wanted
        if found[key] != wanted[key]
    ]
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise InputError(
            f"{directory} is no run of the row {row.name}: it has"
            f" {', '.join(wrong[:_NAMED])}{more}; train one by {row.config}, or name"
            " the row that it is of"
        )


def comparable_metric(row: Row) -> str:
    """Name the metric of ``jaxformer evaluate`` that is the paper's."""
    if "f1" in row.scores:
        return "f1"
    return (
        "compound_split_bleu"
        if row.settings["data.target_language"] == "de"
        else "tokenized_bleu"
    )


def _architecture(model: TransformerConfig) -> dict[str, Any]:
    """Return what makes the model what it is, by name."""
    values = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.metadata["changes"] == "result"
        and field.name not in ("max_length", "norm_epsilon")  # not in the paper
    }
    width = model.d_model // model.num_heads
    return values | {"d_k": model.d_k or width, "d_v": model.d_v or width}


def _score(record: Mapping[str, Any], metric: str, where: str) -> tuple[str, float]:
    """Choose the score of a record that is nearest to the paper's: its own metric,
    tokenised BLEU, then sacreBLEU.
    """
    if {"dataset", "sentences", "checkpoint", "decoding"} <= record.keys():
        for name in (metric, "compound_split_bleu", "tokenized_bleu", "bleu"):
            if isinstance(record.get(name), int | float):
                return name, float(record[name])
    missing, wanted = ("F1", "f1") if metric == "f1" else ("BLEU", f"bleu,{metric}")
    raise InputError(
        f"{where} holds no {missing}: run jaxformer evaluate with --metrics={wanted}"
    )


def _metric_notes(found: str, wanted: str) -> list[str]:
    if found == wanted:
        return []
    if wanted == "f1":
        return ["BLEU of linearised trees, and not F1: evaluate with --metrics=f1"]
    names = {
        "bleu": "sacreBLEU of raw text",
        "tokenized_bleu": "tokenised BLEU without split compounds",
    }
    return [
        f"{names.get(found, found)}, and not {wanted} as in the paper: evaluate with"
        f" --metrics=bleu,{wanted}"
    ]


def _text_notes(table: Table, record: Mapping[str, Any]) -> list[str]:
    notes = []
    name = record["dataset"]
    if find_known(name) != table.test:
        notes.append(f"scored on {name}, and not on {table.test}")
    if record["sentences"] != table.sentences:
        notes.append(
            f"{record['sentences']:,} sentences, and {table.test} has"
            f" {table.sentences:,}"
        )
    return notes


def _checkpoint_notes(
    row: Row, config: RunConfig, record: Mapping[str, Any], directory: Path
) -> list[str]:
    """Say where averaging is another, or training had not ended."""
    scored = record["checkpoint"]
    if isinstance(scored, int):
        steps = [scored]
    elif " + " in scored:
        return [f"an ensemble of {scored}"]
    else:
        averages = {
            f"average/{average.name}": average.steps
            for average in list_averages(directory)
        }
        if scored not in averages:
            return [f"scored with {scored}, which is no longer there"]
        steps = averages[scored]
    notes = []
    if row.averaged is not None and len(steps) != row.averaged:
        of_paper = (
            "the last checkpoint alone"
            if row.averaged == 1
            else f"the mean of the last {row.averaged}"
        )
        found = (
            "one checkpoint, not averaged"
            if len(steps) == 1
            else f"the mean of {len(steps)} checkpoints"
        )
        notes.append(f"{found}, and the paper's is {of_paper}")
    if max(steps) < config.training.steps:
        notes.append(f"scored at step {max(steps):,} of {config.training.steps:,}")
    return notes


def _search_notes(row: Row, record: Mapping[str, Any]) -> list[str]:
    chosen = {
        key.removeprefix("decoding."): x
        for key, x in row.settings.items()
        if key.startswith("decoding.")
    }
    others = differing_settings(record["decoding"], **chosen)
    return [
        f"decoding.{key} {value}, and not {wanted}"
        for key, (value, wanted) in others.items()
    ]


def _training_notes(row: Row, config: RunConfig) -> list[str]:
    """Say what of the text and of training is not the row's: what it names, and what
    is the paper's of all rows.
    """
    found = configuration.flatten(config)
    wanted = {
        key: value
        for key, value in row.settings.items()
        if key.startswith(("data.", "training."))
    }
    wanted |= {
        f"training.{key}": getattr(TrainingConfig(), key) for key in LEARNING_KEYS
    }
    notes = [
        f"{key} {found[key]}, and not {value}"
        for key, value in wanted.items()
        if found[key] != value
    ]
    parts = parse(
        config.data.train, config.data.source_language, config.data.target_language
    )
    others = [
        part.name for part in parts if part.name.partition(":")[0] in _NOT_THE_PAPERS
    ]
    return [
        *notes,
        *(
            [f"trained on {', '.join(others)}, and not on the paper's text"]
            if others
            else []
        ),
    ]


def _perplexity(
    table: Table, config: RunConfig, record: Mapping[str, Any], directory: Path
) -> tuple[float | None, list[str]]:
    """Return the perplexity at the step that was scored, or else the last one, where
    the table has any.
    """
    path = directory / "metrics.jsonl"
    if "perplexity" not in table.metrics or not path.is_file():
        return None, []
    curve = dict(records.read_curves(path).get("valid/perplexity", ()))
    if not curve:
        return None, []
    step = record["checkpoint"] if record["checkpoint"] in curve else max(curve)
    notes = (
        []
        if step == record["checkpoint"]
        else [f"perplexity at step {step:,}, and not of what was scored"]
    )
    valid = config.data.valid
    other = (
        []
        if find_known(valid) == table.test
        else [f"perplexity of {valid}, and not of {table.test}"]
    )
    return curve[step], notes + other
