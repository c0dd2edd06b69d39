"""Score a run on a test set, and the validation set of a run that trains."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxformer import __version__
from jaxformer.data.records import Pair
from jaxformer.decoding.config import DecodingConfig
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import BLEU, CHRF, score
from jaxformer.evaluation.statistics import Metric, join_shards, measure_shard, score_rows
from jaxformer.models.seq2seq import Transformer
from jaxformer.training.hosts import gather, together
from jaxformer.training.loop import Validation, Validator
from jaxformer.training.run import Run
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
) -> tuple[dict[str, Any], list[str]]:
    """Translate every sentence of a set once and score the translations against the raw references.

    Args:
        translator: of the run.
        pairs: sources with a reference each.
        name: of the data set.
        beam_size: hypotheses alive at a time; by default that of ``decoding``.
        alpha: strength of the length penalty; by default that of ``decoding``.
        decoding: how to search; by default as the run says.
        metrics: what to score by.
        more_references: further translations of the set, each one flat list.

    Returns:
        The record of the result, and the translations in order.

    Raises:
        InputError: there is nothing to score, or a sentence is longer than the model's positions.
    """
    references = [[pair.target for pair in pairs], *more_references]
    check_counts(len(pairs), more_references)
    for metric in metrics:
        metric.prepare(len(references))
    given = {key: x for key, x in (("beam_size", beam_size), ("alpha", alpha)) if x is not None}
    decoding = dataclasses.replace(decoding or translator.decoding, **given)
    begun = time.monotonic()
    found = translator.search([pair.source for pair in pairs], decoding=decoding)
    seconds = time.monotonic() - begun
    hypotheses, sources = [best[0].text for best in found], [pair.source for pair in pairs]
    scores: dict[str, Any] = {}
    for metric in metrics:
        result = score(metric, hypotheses, *references, sources=sources)
        scores |= {metric.key: round(result.value, metric.digits), f"{metric.key}_signature": result.signature}
    record = {
        "dataset": name,
        "target_language": translator.languages[1],
        "text": fingerprint(sources, references),
        **scores,
        "sentences": len(pairs),
        "tokens": sum(len(best[0].tokens) for best in found),
        "unfinished": sum(not best[0].finished for best in found),
        "seconds": round(seconds, 2),
        "checkpoint": translator.checkpoint,
        "decoding": dataclasses.asdict(decoding) | {"shortlist": translator.shortlist is not None},
        "versions": {"jaxformer": __version__}
        | {package: importlib.metadata.version(package) for package in ("jax", "sacrebleu")},
    }
    return record, hypotheses


def fingerprint(sources: Sequence[str], references: Sequence[Sequence[str]]) -> str:
    """Give 16 digits that differ where sources or references do: scores compare where these agree."""
    digest = hashlib.sha256()
    for lines in (sources, *references):
        digest.update(json.dumps(list(lines)).encode())
    return digest.hexdigest()[:16]


def check_counts(sentences: int, more_references: Sequence[Sequence[str]]) -> None:
    """Refuse further references of another number of lines, before anything is translated.

    Raises:
        InputError: a number differs; both are named.
    """
    for number, lines in enumerate(more_references, start=2):
        if len(lines) != sentences:
            raise InputError(
                f"reference {number} has {len(lines)} lines for {sentences} sentences: line i must translate sentence i"
            )


def write(directory: Path, record: dict[str, Any], hypotheses: Sequence[str], *, variant: str = "") -> Path:
    """Write the translations beside the run, and the record into its ``results.json``.

    There is one entry for each data set and variant, and scoring the same again replaces it.

    Args:
        directory: of the run.
        record: from :func:`evaluate`.
        hypotheses: the translations.
        variant: what was chosen otherwise than the run has it, such as ``beam_size=1``.

    Returns:
        The file of the translations.
    """
    name = f"{record['dataset']} {variant}".rstrip()
    output = directory / f"hypotheses.{_stem(name)}.txt"
    output.write_text("".join(line + "\n" for line in hypotheses), encoding="utf-8")
    results = directory / "results.json"
    records = {**read_results(directory), name: {**record, "hypotheses": output.name}}
    temporary = results.with_suffix(".tmp")
    temporary.write_text(json.dumps(records, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(results)
    return output


_NUMBER, _COUNT = ("a number", (int, float)), ("a whole number", (int,))
# What a record's fields are, where it has them; other fields are read by nothing that counts on them.
_FIELDS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "bleu": _NUMBER,
    "sentences": _COUNT,
    "unfinished": _COUNT,
    "checkpoint": ("a step or a name", (int, str)),
    "decoding": ("an object", (dict,)),
    **dict.fromkeys(("dataset", "hypotheses"), ("a string", (str,))),
    "text": ("a string, or null where it is not known", (str, type(None))),
}


def read_results(directory: Path) -> dict[str, Any]:
    """Read the records of a run's ``results.json`` by data set; none where nothing was evaluated yet.

    Raises:
        InputError: the file is damaged, or a field of a record is not what it must be.
    """
    path = directory / "results.json"
    try:
        records = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(f"{path} is not JSON ({error}); move it away") from None
    if not isinstance(records, dict):
        raise InputError(f"{path} holds no JSON object; move it away")
    for name, record in records.items():
        if not isinstance(record, dict):
            raise InputError(f"the entry {name!r} of {path} is no JSON object; move the file away")
        for field in _FIELDS.keys() & record.keys():
            rule, kinds = _FIELDS[field]
            if type(record[field]) not in kinds:  # True is no number
                raise InputError(
                    f"{field} of the entry {name!r} of {path} must be {rule}, not {json.dumps(record[field])[:40]}; "
                    "move the file away and evaluate again"
                )
    return records


def _stem(name: str) -> str:
    """Turn the name of a data set into a part of a file's name, another for each."""
    stem = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    # One like bundled:en-de/test can be read back. Others, such as paths, might coincide, or be too long for a file.
    if re.fullmatch(r"[a-z]+:[A-Za-z0-9.-]+(/[A-Za-z0-9.-]+)?", name) and len(stem) <= 100:
        return stem
    return f"{stem[-80:]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def make_validator(run: Run, model: Transformer) -> Validator:
    """Build what translates the validation set while a run trains; see :func:`jaxformer.training.train.train`.

    Of several hosts each translates its share of the sentences, and all get the same scores and samples.
    """
    config, pairs = run.config, run.valid[: run.config.evaluation.max_sentences]
    tag = run.valid_language if config.data.language_tags else None
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]

    def validate(params: PyTree, stop: Callable[[], bool]) -> Validation | None:
        own = range(jax.process_index(), len(sources), jax.process_count())
        translator = Translator(
            model.config, params, run.vocabularies, config.decoding, source_eos=config.data.source_eos, tag=tag
        )
        beam_size = config.evaluation.beam_size
        found = together(lambda: translator.search([sources[i] for i in own], beam_size=beam_size, stop=stop))
        texts = [best[0].text for best in found if best]
        if not all(gather(len(texts) == len(own))):
            return None
        scores = {}
        for metric in (BLEU, CHRF):
            shards = gather(measure_shard(metric, own, texts, [references[i] for i in own]))
            scores[metric.key] = score_rows(metric, join_shards(shards, len(sources))).value
        shown = gather({i: text for i, text in zip(own, texts, strict=True) if i < config.evaluation.samples})
        translations = {i: text for part in shown for i, text in part.items()}
        samples = [
            {"source": sources[i], "reference": references[i], "translation": translations[i]}
            for i in sorted(translations)
        ]
        return Validation(scores, samples)

    return validate
