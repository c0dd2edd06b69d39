"""Score a run on a test set, and the validation set of a run that trains."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxformer import __version__
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.evaluation.bracketing import F1, check_trees
from jaxformer.evaluation.metrics import BLEU, CHRF, score
from jaxformer.evaluation.statistics import (
    Metric,
    join_shards,
    measure_shard,
    score_rows,
)
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs.records import Validation, Validator, fingerprint
from jaxformer.search.config import DecodingConfig
from jaxformer.training.hosts import gather, together
from jaxformer.training.run import Run
from jaxformer.translation.results import LongSources
from jaxformer.translation.translator import Translator
from jaxformer.typing import PyTree


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    name: str,
    *,
    beam_size: int | None = None,
    alpha: float | None = None,
    decoding: DecodingConfig | None = None,
    metrics: Sequence[Metric] = (BLEU, CHRF),
    more_references: Sequence[Sequence[str]] = (),
    notice: Callable[[LongSources], None] = LongSources.warn,
) -> tuple[dict[str, Any], list[str]]:
    """Translate every sentence of a set once and score the translations against the raw
    references.

    Args:
        translator: of the run.
        pairs: sources with a reference each.
        name: of the data set.
        beam_size: hypotheses alive at a time; by default that of ``decoding``.
        alpha: strength of the length penalty; by default that of ``decoding``.
        decoding: how to search; by default as the run says.
        metrics: what to score by.
        more_references: further translations of the set, each one flat list.
        notice: told if any source is longer than training saw; by default a
            :class:`~jaxformer.errors.LongSourceWarning`.

    Returns:
        The record of the result, and the translations in order.

    Raises:
        InputError: there is nothing to score, or a sentence is longer than the model's
            positions.
    """
    sources, references = (
        [pair.source for pair in pairs],
        [[pair.target for pair in pairs], *more_references],
    )
    check_counts(len(pairs), more_references)
    for metric in metrics:
        metric.prepare(len(references))
    if F1 in metrics:
        check_trees(references[0])
    given = {
        key: x
        for key, x in (("beam_size", beam_size), ("alpha", alpha))
        if x is not None
    }
    decoding = dataclasses.replace(decoding or translator.decoding, **given)
    begun = time.monotonic()
    long = [LongSources(translator.codec.longest)]
    found = translator.search(sources, decoding=decoding, notice=long.append)
    seconds = time.monotonic() - begun
    hypotheses = [best[0].text for best in found]
    if len(long) > 1:
        notice(long[-1])
    record = {
        "dataset": name,
        "target_language": translator.languages[1],
        "text": fingerprint(sources, references),
        **_scores(metrics, hypotheses, references, sources),
        "sentences": len(pairs),
        "tokens": sum(len(best[0].tokens) for best in found),
        "unfinished": sum(not best[0].finished for best in found),
        "long_sources": dataclasses.asdict(long[-1]),
        "seconds": round(seconds, 2),
        **_conditions(translator, decoding),
    }
    return record, hypotheses


def _scores(
    metrics: Sequence[Metric],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str],
) -> dict[str, Any]:
    """Score the translations by every metric; each score has its signature."""
    scores: dict[str, Any] = {}
    for metric in metrics:
        result = score(metric, hypotheses, *references, sources=sources)
        scores |= {
            metric.key: round(result.value, metric.digits),
            f"{metric.key}_signature": result.signature,
        }
    return scores


def _conditions(translator: Translator, decoding: DecodingConfig) -> dict[str, Any]:
    """Record by what the translations were made."""
    versions = {
        package: importlib.metadata.version(package) for package in ("jax", "sacrebleu")
    }
    return {
        "checkpoint": translator.checkpoint,
        "decoding": (
            dataclasses.asdict(decoding)
            | {"shortlist": translator.shortlist is not None}
        ),
        "versions": {"jaxformer": __version__, **versions},
    }


def check_counts(sentences: int, more_references: Sequence[Sequence[str]]) -> None:
    """Refuse further references of another number of lines, before anything is
    translated.

    Raises:
        InputError: a number differs; both are named.
    """
    for number, lines in enumerate(more_references, start=2):
        if len(lines) != sentences:
            raise InputError(
                f"reference {number} has {len(lines)} lines for {sentences} sentences:"
                " line i must translate sentence i"
            )


def make_validator(run: Run, model: Transformer) -> Validator:
    """Build what translates the validation set while a run trains; see
    :func:`jaxformer.training.train.train`.

    Of several hosts each translates its share of the sentences, and all get the same
    scores and samples.
    """
    config, pairs = run.config, run.valid[: run.config.evaluation.max_sentences]
    data = config.data
    tag = run.valid_language if data.language_tags else None
    language = (
        data.source_language
        if run.valid_language != data.source_language
        else data.target_language
    )
    sources, references = (
        [pair.source for pair in pairs],
        [pair.target for pair in pairs],
    )
    metrics = (BLEU, CHRF)
    if config.evaluation.best_metric == F1.key:
        check_trees(references)  # before training, not at its first evaluation
        metrics += (F1,)

    def validate(params: PyTree, stop: Callable[[], bool]) -> Validation | None:
        own = range(jax.process_index(), len(sources), jax.process_count())
        translator = Translator(
            model.config,
            params,
            run.vocabularies,
            config.decoding,
            source_eos=data.source_eos,
            tag=tag,
            source_language=language,
            trained_length=data.max_length,
        )
        asked = {
            "beam_size": config.evaluation.beam_size,
            "stop": stop,
            "notice": lambda _: None,
        }
        found = together(lambda: translator.search([sources[i] for i in own], **asked))
        texts = [best[0].text for best in found if best]
        if not all(gather(len(texts) == len(own))):
            return None
        scores = {}
        for metric in metrics:
            shards = gather(
                measure_shard(metric, own, texts, [references[i] for i in own])
            )
            scores[metric.key] = score_rows(
                metric, join_shards(shards, len(sources))
            ).value
        shown = gather(
            {
                i: text
                for i, text in zip(own, texts, strict=True)
                if i < config.evaluation.samples
            }
        )
        translations = {i: text for part in shown for i, text in part.items()}
        samples = [
            {
                "source": sources[i],
                "reference": references[i],
                "translation": translations[i],
            }
            for i in sorted(translations)
        ]
        return Validation(scores, samples)

    return validate
