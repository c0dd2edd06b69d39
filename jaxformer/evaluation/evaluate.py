"""Score a run on a test set, and on its validation set during training."""

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
from jaxformer.evaluation.choice import DEFAULT_METRICS, choose_metrics
from jaxformer.evaluation.metrics import score
from jaxformer.evaluation.statistics import Metric
from jaxformer.models.base import Model
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
    decoding: DecodingConfig | None = None,
    metrics: Sequence[Metric] | None = None,
    more_references: Sequence[Sequence[str]] = (),
    progress: Callable[[int], None] = lambda _: None,
    notice: Callable[[LongSources], None] = LongSources.warn,
) -> tuple[dict[str, Any], list[str]]:
    """Translate each sentence of a set once and score against the raw references.

    Args:
        translator: of the run.
        pairs: sources with a reference each.
        name: of the data set.
        decoding: search settings; by default those of the translator.
        metrics: the metrics to compute; by default those of
            :func:`jaxformer.evaluation.choice.choose_metrics`.
        more_references: further references, each one flat list.
        progress: called after each batch with the number of completed sentences.
        notice: called if a source is longer than training saw; by default it issues a
            :class:`~jaxformer.errors.LongSourceWarning`.

    Returns:
        The record of the result, and the translations in order.

    Raises:
        InputError: the set is empty, references do not fit, or a sentence is longer
            than the model's positions.
    """
    sources = [pair.source for pair in pairs]
    references = [[pair.target for pair in pairs], *more_references]
    for number, lines in enumerate(more_references, start=2):
        if len(lines) != len(pairs):
            raise InputError(
                f"reference {number} has {len(lines)} lines for {len(pairs)} sentences:"
                " line i must translate sentence i"
            )
    if metrics is None:
        language = translator.languages[1]
        metrics = choose_metrics(language=language, references=references[0])
    for metric in metrics:
        metric.prepare(len(references))
    if F1 in metrics:
        check_trees(references[0])
    decoding = decoding or translator.decoding
    begun = time.monotonic()
    long = [LongSources(translator.codec.longest)]
    found = translator.search(
        sources, decoding=decoding, progress=progress, notice=long.append
    )
    seconds = time.monotonic() - begun
    hypotheses = [best[0].text for best in found]
    if len(long) > 1:
        notice(long[-1])
    scores: dict[str, Any] = {}
    for metric in metrics:
        result = score(metric, hypotheses, *references, sources=sources)
        scores[metric.key] = round(result.value, 2)
        scores[f"{metric.key}_signature"] = result.signature
    versions = {
        package: importlib.metadata.version(package) for package in ("jax", "sacrebleu")
    }
    record = {
        "dataset": name,
        "source_language": translator.languages[0],
        "target_language": translator.languages[1],
        "text": fingerprint(sources, references),
        **scores,
        "sentences": len(pairs),
        "tokens": sum(len(best[0].tokens) for best in found),
        "unfinished": sum(not best[0].finished for best in found),
        "long_sources": dataclasses.asdict(long[-1]),
        "seconds": round(seconds, 2),
        "checkpoint": translator.checkpoint,
        "decoding": {
            **dataclasses.asdict(decoding),
            "shortlist": translator.shortlist is not None,
        },
        "versions": {"jaxformer": __version__, **versions},
    }
    return record, hypotheses


def make_validator(run: Run, model: Model) -> Validator:
    """Build the function that scores the validation set during training.

    See :func:`jaxformer.training.train.train`. Each of several hosts translates its
    share of the sentences. All hosts score all translations.
    """
    config, pairs = run.config, run.valid[: run.config.evaluation.max_sentences]
    data = config.data
    source_language, target_language = run.valid_languages
    sources = [pair.source for pair in pairs]
    references = [pair.target for pair in pairs]
    names, key = DEFAULT_METRICS, config.evaluation.best_metric
    if key == F1.key:
        check_trees(references)  # before training, not at its first evaluation
        names += (F1.key,)
    metrics = choose_metrics(
        names, language=target_language, references=references, notice=run.report
    )
    bleu = metrics[0]
    if key == bleu.key and not score(bleu, references, references).value:
        run.report(
            "warning: no sentence of data.valid has four words, so BLEU is 0 for any"
            " translation, and the loss chooses the best checkpoint"
        )
    own = sources[jax.process_index() :: jax.process_count()]

    def validate(
        params: PyTree,
        stop: Callable[[], bool],
        show: Callable[[str], None] = lambda _: None,
    ) -> Validation | None:
        done = 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            show(f"evaluating {done}/{len(own)}")

        translator = Translator(
            model.config,
            params,
            run.vocabularies,
            config.decoding,
            source_eos=data.source_eos,
            tag=target_language if data.language_tags else None,
            source_language=source_language,
            target_language=target_language,
            trained_length=data.max_length,
        )
        found = together(
            lambda: translator.search(
                own,
                beam_size=config.evaluation.beam_size,
                stop=stop,
                progress=progress,
                notice=lambda _: None,
            )
        )
        shares = gather([best[0].text for best in found if best])
        if sum(map(len, shares)) < len(sources):
            return None
        translations = [""] * len(sources)
        for host, share in enumerate(shares):
            translations[host :: len(shares)] = share
        scores = {
            metric.key: score(metric, translations, references).value
            for metric in metrics
        }
        samples = [
            {"source": pair.source, "reference": pair.target, "translation": text}
            for pair, text in zip(pairs, translations, strict=True)
        ]
        return Validation(scores, samples[: config.evaluation.samples])

    return validate
