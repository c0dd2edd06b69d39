"""Score a run on a test set, and the validation set of a run that trains."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxformer.data.records import Pair
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError
from jaxformer.evaluation import metrics
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
) -> tuple[dict[str, Any], list[str]]:
    """Translate every sentence of a set once and score the translations against the raw references.

    Returns:
        The record of the result, and the translations in order.

    Raises:
        InputError: there is nothing to score, or a sentence is longer than the model's positions.
    """
    begun = time.monotonic()
    found = translator.search([pair.source for pair in pairs], beam_size=beam_size, alpha=alpha)
    seconds = time.monotonic() - begun
    hypotheses = [best[0].text for best in found]
    references = [pair.target for pair in pairs]
    bleu, chrf = metrics.bleu(hypotheses, references), metrics.chrf(hypotheses, references)
    record = {
        "dataset": name,
        "bleu": round(bleu.value, 2),
        "bleu_signature": bleu.signature,
        "chrf": round(chrf.value, 2),
        "chrf_signature": chrf.signature,
        "sentences": len(pairs),
        "tokens": sum(len(best[0].tokens) for best in found),
        "unfinished": sum(not best[0].finished for best in found),
        "seconds": round(seconds, 2),
        "checkpoint": translator.checkpoint,
        "decoding": {
            "beam_size": translator.decoding.beam_size if beam_size is None else beam_size,
            "alpha": translator.decoding.alpha if alpha is None else alpha,
            "max_extra_length": translator.decoding.max_extra_length,
        },
    }
    return record, hypotheses


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


def read_results(directory: Path) -> dict[str, Any]:
    """Read the records of a run's ``results.json`` by data set; none where nothing was evaluated yet.

    Raises:
        InputError: the file is damaged.
    """
    path = directory / "results.json"
    try:
        records = json.loads(path.read_bytes()) if path.exists() else {}
    except ValueError as error:  # no JSON, or no UTF-8
        raise InputError(f"{path} is not JSON ({error}); move it away") from None
    if not isinstance(records, dict):
        raise InputError(f"{path} holds no JSON object; move it away")
    return records


def _stem(name: str) -> str:
    """Turn the name of a data set into a part of a file's name, another for each."""
    stem = re.sub(r"[^A-Za-z0-9.-]", "_", name)
    # One like bundled:en-de/test can be read back. Others, such as paths, might coincide, or be too long for a file.
    if re.fullmatch(r"[a-z]+:[A-Za-z0-9.-]+(/[A-Za-z0-9.-]+)?", name) and len(stem) <= 100:
        return stem
    return f"{stem[-80:]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def make_validator(run: Run, model: Transformer) -> Validator:
    """Build what translates the validation set while a run trains; see :func:`jaxformer.training.loop.train`.

    Of several hosts each translates its share of the sentences, and all get the same scores and samples.
    """
    config, pairs = run.config, run.valid[: run.config.evaluation.max_sentences]
    tag = run.valid_language if config.data.language_tags else None
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]

    def validate(params: PyTree, stop: Callable[[], bool]) -> Validation | None:
        host, count = jax.process_index(), jax.process_count()
        translator = Translator(
            model.config, params, run.vocabularies, config.decoding, source_eos=config.data.source_eos, tag=tag
        )
        found = together(
            lambda: translator.search(sources[host::count], beam_size=config.evaluation.beam_size, stop=stop)
        )
        shares = gather([best[0].text if best else None for best in found])
        in_order = [shares[number % count][number // count] for number in range(len(sources))]
        hypotheses = [text for text in in_order if text is not None]
        if len(hypotheses) < len(sources):
            return None
        scores = {
            "bleu": metrics.bleu(hypotheses, references).value,
            "chrf": metrics.chrf(hypotheses, references).value,
        }
        samples = [
            {"source": pair.source, "reference": pair.target, "translation": hypothesis}
            for pair, hypothesis in list(zip(pairs, hypotheses, strict=True))[: config.evaluation.samples]
        ]
        return Validation(scores, samples)

    return validate
