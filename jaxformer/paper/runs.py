"""Read the score of a run for a row of the paper's tables, and find why the two do not
compare.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxformer.checkpoints.average import list_averages
from jaxformer.data.mixing import parse
from jaxformer.errors import InputError
from jaxformer.evaluation.known_sets import find_known
from jaxformer.models.config import TransformerConfig
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.tables import LEARNING_KEYS, Row, Table, select_section
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import read_curves, read_results
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import differing_settings

_NAMED = 3  # most differences in an error
# Training text that comes with jaxformer.
_NOT_THE_PAPERS = ("bundled", "synthetic")


@dataclasses.dataclass(frozen=True)
class RunScore:
    """A score of a run.

    Attributes:
        directory: of the run.
        parameters: of its model.
        metric: its name in ``jaxformer evaluate --metrics``.
        value: the score.
        perplexity: of the validation set, per piece of the run's own vocabulary; None
            if the run did not record it.
        dataset: that was translated.
        checkpoint: a step, or the name of an average.
        trained_on: the name of the training text in the run.
        notes: why the score does not compare with the paper's; empty if it does.
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
        """Return the score to show next to the paper's score of a metric; None if the
        run has none.

        Any kind of BLEU is shown next to BLEU, only F1 next to F1.
        """
        if metric == "perplexity":
            return self.perplexity
        return self.value if (metric == "f1") == (self.metric == "f1") else None


def read_run(table: Table, row: Row, directory: Path) -> RunScore:
    """Read the score of a run that compares best with a row: the one with the fewest
    notes.

    Raises:
        InputError: the directory has no run of this row, or nothing was evaluated yet.
    """
    if not (directory / "config.json").exists():
        raise InputError(
            f"{directory / 'config.json'} does not exist; --run must name the directory"
            " of a run"
        )
    config = configuration.load(directory / "config.json")
    check_model(row, config, directory)
    results = read_results(directory)
    if not results:
        raise InputError(
            f"{directory} has no results: run jaxformer evaluate --workdir={directory}"
            " first"
        )
    metric, parameters = comparable_metric(row), count_parameters(config.model)
    scores = []
    for name, record in results.items():
        found, value = _score(record, metric, f"{directory / 'results.json'}: {name!r}")
        scored = record["checkpoint"]
        perplexity, doubts = _perplexity(table, config, scored, directory)
        notes = (
            *_metric_notes(found, metric),
            *_text_notes(table, record),
            *_checkpoint_notes(row, config, scored, directory),
            *_search_notes(row, record),
            *doubts,
            *_training_notes(row, config),
        )
        scores.append(
            RunScore(
                directory,
                parameters,
                found,
                value,
                perplexity,
                record["dataset"],
                scored,
                config.data.train,
                notes,
            )
        )
    return min(scores, key=lambda score: len(score.notes))


def check_model(row: Row, config: RunConfig, directory: Path) -> None:
    """Check that a run is of a row: the same model and label smoothing.

    Raises:
        InputError: they differ; the differences are named.
    """
    smoothing = row.settings["training.label_smoothing"]
    wanted = _architecture(row.model) | {"label_smoothing": smoothing}
    smoothing = config.training.label_smoothing
    found = _architecture(config.model) | {"label_smoothing": smoothing}
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
    """Return the metric of ``jaxformer evaluate`` that the paper used."""
    if "f1" in row.scores:
        return "f1"
    german = row.settings["data.target_language"] == "de"
    return "compound_split_bleu" if german else "tokenized_bleu"


def _architecture(model: TransformerConfig) -> dict[str, Any]:
    """Return the keys of the architecture, with the widths of heads filled in."""
    values = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.metadata["changes"] == "result"
        and field.name not in ("max_length", "norm_epsilon")  # not in the paper
    }
    width = model.d_model // model.num_heads
    return values | {"d_k": model.d_k or width, "d_v": model.d_v or width}


def _score(record: Mapping[str, Any], metric: str, where: str) -> tuple[str, float]:
    """Choose the score nearest to the paper's: its metric, tokenised or sacreBLEU."""
    if {"dataset", "sentences", "checkpoint", "decoding"} <= record.keys():
        for name in (metric, "compound_split_bleu", "tokenized_bleu", "bleu"):
            if isinstance(record.get(name), int | float):
                return name, float(record[name])
    missing, wanted = ("F1", "f1") if metric == "f1" else ("BLEU", f"bleu,{metric}")
    raise InputError(
        f"{where} holds no {missing}: run jaxformer evaluate with --metrics={wanted}"
    )


def _metric_notes(found: str, wanted: str) -> Iterator[str]:
    names = {
        "bleu": "sacreBLEU of raw text",
        "tokenized_bleu": "tokenised BLEU without split compounds",
    }
    if found == wanted:
        return
    if wanted == "f1":
        yield "BLEU of linearised trees, and not F1: evaluate with --metrics=f1"
    else:
        yield (
            f"{names.get(found, found)}, and not {wanted} as in the paper: evaluate"
            f" with --metrics=bleu,{wanted}"
        )


def _text_notes(table: Table, record: Mapping[str, Any]) -> Iterator[str]:
    name, count = record["dataset"], record["sentences"]
    if find_known(name) != table.test:
        yield f"scored on {name}, and not on {table.test}"
    if count != table.sentences:
        yield f"{count:,} sentences, and {table.test} has {table.sentences:,}"


def _checkpoint_notes(
    row: Row, config: RunConfig, scored: int | str, directory: Path
) -> Iterator[str]:
    """Note other averaging, or training that had not ended."""
    if isinstance(scored, int):
        steps = [scored]
    elif " + " in scored:
        yield f"an ensemble of {scored}"
        return
    else:
        averages = {f"average/{x.name}": x.steps for x in list_averages(directory)}
        steps = averages.get(scored)
        if steps is None:
            yield f"scored with {scored}, which is no longer there"
            return
    if row.averaged is not None and len(steps) != row.averaged:
        found, wanted = "one checkpoint, not averaged", "the last checkpoint alone"
        if len(steps) > 1:
            found = f"the mean of {len(steps)} checkpoints"
        if row.averaged > 1:
            wanted = f"the mean of the last {row.averaged}"
        yield f"{found}, and the paper's is {wanted}"
    if max(steps) < config.training.steps:
        yield f"scored at step {max(steps):,} of {config.training.steps:,}"


def _search_notes(row: Row, record: Mapping[str, Any]) -> Iterator[str]:
    chosen = select_section(row.settings, "decoding")
    others = differing_settings(record["decoding"], **chosen)
    for key, (value, wanted) in others.items():
        yield f"decoding.{key} {value}, and not {wanted}"


def _training_notes(row: Row, config: RunConfig) -> Iterator[str]:
    """Note keys of the text and of training that differ from the row's or from those
    of all rows.
    """
    found, settings = configuration.flatten(config), row.settings
    wanted = {
        key: settings[key] for key in settings if key.startswith(("data.", "training."))
    }
    wanted |= {f"training.{key}": getattr(TrainingConfig, key) for key in LEARNING_KEYS}
    for key, value in wanted.items():
        if found[key] != value:
            yield f"{key} {found[key]}, and not {value}"
    data = config.data
    parts = parse(data.train, data.source_language, data.target_language)
    others = [
        part.name for part in parts if part.name.partition(":")[0] in _NOT_THE_PAPERS
    ]
    if others:
        yield f"trained on {', '.join(others)}, and not on the paper's text"


def _perplexity(
    table: Table, config: RunConfig, scored: int | str, directory: Path
) -> tuple[float | None, list[str]]:
    """Return the perplexity at the scored step, or else the last one, if the table has
    perplexities; and why it does not compare.
    """
    path = directory / "metrics.jsonl"
    if "perplexity" not in table.metrics or not path.is_file():
        return None, []
    curve = dict(read_curves(path).get("valid/perplexity", ()))
    if not curve:
        return None, []
    step, notes = scored, []
    if not isinstance(step, int) or step not in curve:
        step = max(curve)
        notes.append(f"perplexity at step {step:,}, and not of what was scored")
    if find_known(config.data.valid) != table.test:
        notes.append(f"perplexity of {config.data.valid}, and not of {table.test}")
    return curve[step], notes
