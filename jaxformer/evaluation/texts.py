"""Score runs of one stack on a data set: language models, masked words, labels,
numbers, tags and answers.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxformer import __version__
from jaxformer.data.corpus import load_evaluation
from jaxformer.data.examples import encode_examples, encode_validation
from jaxformer.data.labelled import NO_ANSWER
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary_labels import split_words
from jaxformer.errors import InputError
from jaxformer.evaluation import labels
from jaxformer.evaluation.encoder_logits import find_logits, share_rows, softmax
from jaxformer.evaluation.predictor import Prediction, Predictor
from jaxformer.evaluation.text_scores import perplexity_in_windows
from jaxformer.models.encoder import TextEncoder
from jaxformer.runs import config as configuration
from jaxformer.runs.records import fingerprint
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.objectives import Batch, draw_masks_by_row, make_objective
from jaxformer.translation.batch import batches, pad, round_width
from jaxformer.translation.translator import Translator
from jaxformer.typing import Array, Float, PyTree

# Characters of an example that an error shows.
_QUOTED = 60

Found = tuple[dict[str, Any], list[str] | None]
"""Scores, and the predictions where there are such."""


def evaluate(
    directory: Path,
    name: str | None = None,
    *,
    checkpoint: str | int = "best",
    stride: int | None = None,
    notice: Callable[[int], None] = lambda _: None,
) -> Found:
    """Score a run of any objective but translation.

    Args:
        directory: of the run.
        name: of the data set; None: the run's ``data.test``.
        checkpoint: as of :meth:`jaxformer.Translator.load`.
        stride: of the windows of a language model; None: the window.
        notice: called with the number of texts that were cut, if any was.

    Returns:
        The record of the result, and the predictions, one line each, of those
        objectives that have some.

    Raises:
        InputError: the data set does not fit the run, or there is no such checkpoint.
    """
    config = configuration.load(directory / "config.json")
    objective = config.training.objective
    if stride is not None and objective != "causal":
        raise InputError(
            "a stride is for the windows of a language model, and"
            f" {directory} has training.objective={objective}: leave it out"
        )
    name = name or config.data.test
    pairs, _ = load_evaluation(name, config.data)
    begun = time.monotonic()
    if objective == "causal":
        translator = Translator.load(directory, checkpoint, objective=objective)
        used = translator.checkpoint
        scores = perplexity_in_windows(translator, pairs, config.data, stride)
        predictions = None
    else:
        predictor = Predictor.load(directory, checkpoint)
        used = predictor.checkpoint
        scores, predictions = score_encoder(predictor, pairs, notice)
    texts = [pair.source for pair in pairs], [[pair.target for pair in pairs]]
    versions = {"jaxformer": __version__, "jax": importlib.metadata.version("jax")}
    return {
        "dataset": name,
        "objective": objective,
        "text": fingerprint(*texts),
        **scores,
        "seconds": round(time.monotonic() - begun, 2),
        "checkpoint": used,
        "versions": versions,
    }, predictions


def score_encoder(
    predictor: Predictor,
    pairs: Sequence[Pair],
    notice: Callable[[int], None] = lambda _: None,
) -> Found:
    """Score an encoder-only model; see :func:`evaluate`."""
    objective = predictor.config.training.objective
    if objective == "masked":
        given = pairs, predictor.vocabularies, predictor.config.data
        rows = [row.tolist() for row in encode_examples(*given).pairs.target]
        return score_masked(predictor, rows) | {"texts": len(pairs)}, None
    if objective == "masked_and_next":
        return score_documents(predictor, pairs), None
    _check_labels(predictor, pairs)
    found = predictor.predict([pair.source for pair in pairs], notice=notice)
    scores, predictions = _SCORES[objective](predictor, found, pairs)
    rounded = {
        key: round(value, 6) if isinstance(value, float) else value
        for key, value in scores.items()
    }
    return rounded | {"sentences": len(pairs)}, predictions


def _check_labels(predictor: Predictor, pairs: Sequence[Pair]) -> None:
    """Refuse labels that the run does not know."""
    if predictor.config.training.objective not in ("classification", "tagging"):
        return
    tagged = predictor.config.data.kind == "tagged"
    for pair in pairs:
        names = split_words(pair.target) if tagged else [pair.target]
        try:
            predictor.vocabularies.target.encode_batch(names)
        except InputError as error:
            raise InputError(f"{pair.source[:_QUOTED]!r}: {error}") from None


def _classes(
    predictor: Predictor, found: Sequence[Prediction], pairs: Sequence[Pair]
) -> Found:
    predicted, true = [str(x["label"] or "") for x in found], [x.target for x in pairs]
    names = predictor.vocabularies.target.pieces(
        range(predictor.vocabularies.target.size)
    )
    scores: dict[str, Any] = {"accuracy": labels.accuracy(predicted, true)}
    if len(names) == 2:  # of the second, as of 1 among 0 and 1
        own = labels.f1(predicted, true, names[1])
        scores |= {"f1": own, "f1_label": names[1]}
    scores["macro_f1"] = labels.macro_f1(predicted, true)
    scores["matthews"] = labels.matthews(predicted, true)
    return scores, predicted


def _numbers(
    predictor: Predictor, found: Sequence[Prediction], pairs: Sequence[Pair]
) -> Found:
    del predictor
    values = [x["value"] for x in found]  # None: a text without tokens
    both = [
        (value, float(pair.target))
        for value, pair in zip(values, pairs, strict=True)
        if value is not None
    ]
    if not both:
        raise InputError("none of the texts has a token: name other text")
    predicted, true = zip(*both, strict=True)
    return {
        "pearson": labels.pearson(predicted, true),
        "spearman": labels.spearman(predicted, true),
        "mean_squared_error": math.fsum((x - y) ** 2 for x, y in both) / len(both),
        "without_tokens": len(pairs) - len(both),
    }, ["" if value is None else str(value) for value in values]


def _tags(
    predictor: Predictor, found: Sequence[Prediction], pairs: Sequence[Pair]
) -> Found:
    del predictor
    predicted = [x["tags"] for x in found]
    true = [split_words(x.target) for x in pairs]
    flat = [[tag for tags in side for tag in tags] for side in (predicted, true)]
    scores: dict[str, Any] = {"accuracy": labels.accuracy(*flat)}
    if "entities" in found[0]:
        scores |= labels.entity_scores(predicted, true)
    return scores | {"words": len(flat[1])}, [" ".join(tags) for tags in predicted]


def _answers(
    predictor: Predictor, found: Sequence[Prediction], pairs: Sequence[Pair]
) -> Found:
    del predictor
    # Only where the data have questions without an answer may one be left open.
    may_lack = any(pair.target == NO_ANSWER for pair in pairs)
    predicted = []
    for each in found:
        score, none = each["score"], each["no_answer"]
        open_ = score is None or (may_lack and none > score)
        predicted.append("" if open_ else each["answer"])
    both = [*zip(predicted, map(true_answers, pairs), strict=True)]
    return {
        "exact_match": sum(labels.exact_match(*each) for each in both) / len(both),
        "f1": sum(labels.answer_f1(*each) for each in both) / len(both),
        "without_answer": sum(not true for _, true in both),
    }, predicted


def true_answers(pair: Pair) -> list[str]:
    """Return the answers of a question, cut from its text; none of one without."""
    if pair.target == NO_ANSWER:
        return []
    text = pair.source.partition("\t")[2]
    ends = [int(place) for place in pair.target.split()]
    return [text[begin:end] for begin, end in zip(ends[::2], ends[1::2], strict=True)]


_SCORES: dict[
    str, Callable[[Predictor, Sequence[Prediction], Sequence[Pair]], Found]
] = {
    "classification": _classes,
    "regression": _numbers,
    "tagging": _tags,
    "span": _answers,
}


def score_documents(predictor: Predictor, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Measure the loss of masked words, and whether a text is known to follow another,
    in the pairs that validation has.

    Returns:
        What :func:`score_masked` returns, ``next_accuracy``, ``next_loss`` in nats a
        pair, and the number of ``pairs``.

    Raises:
        InputError: less than two documents have two lines.
    """
    given = pairs, predictor.vocabularies, predictor.config.data
    found = encode_validation(*given, predictor.longest).pairs
    rows = [row.tolist() for row in found.source]
    losses, right = np.zeros(len(rows)), 0
    for index, logits in predictor.outputs(rows):
        label = int(found.target[index][0])
        losses[index] = -math.log(max(softmax(logits)[label], 1e-300))
        right += int(logits.argmax()) == label
    return score_masked(predictor, rows) | {
        "next_accuracy": round(right / len(rows), 6),
        "next_loss": round(math.fsum(losses) / len(rows), 6),
        "pairs": len(rows),
        "texts": len(pairs),
    }


def score_masked(predictor: Predictor, rows: Sequence[list[int]]) -> dict[str, Any]:
    """Measure the loss of masked words. The tokens of a row, its number and the rate
    determine which are masked, not the batch or the parameters.

    Args:
        predictor: of the run.
        rows: tokens of each text in its frame.

    Returns:
        ``loss`` in nats a masked word, ``perplexity``, ``accuracy``, how many ``words``
        were masked, and the ``mask_rate``, with ``mask_unit``: pieces are masked
        also where training masks whole words.

    Raises:
        InputError: no text has a word.
    """
    config, model = predictor.config, predictor.model.config
    decoding, rate = config.decoding, config.training.mask_rate
    sums = np.zeros(3)
    limit = max([predictor.longest, *map(len, rows)])
    sizes = decoding.batch_size, decoding.tokens_per_batch, limit
    for indices, most in batches([*map(len, rows)], *sizes):
        width = round_width(len(rows[indices[0]]), limit)
        count = share_rows(most, predictor.mesh)
        # One width for all: few programs draw masks, and the draw is that of any width.
        whole = pad([rows[i] for i in indices], count, limit, model.pad_id)
        numbers = np.array([*indices, *[0] * (count - len(indices))])
        masks = _draw(whole, numbers, model, rate)
        kept = math.ceil(round(rate * width, 9))
        batch = {
            "target": whole[:, :width],
            "masked": masks.masked[:, :width],
            "places": (masks.places * masks.counts)[:, :kept],
            "counts": masks.counts[:, :kept],
        }
        given = predictor.model, config.training, predictor.params
        sums += np.asarray(_masked_sums(*given, batch, predictor.mesh))
    loss, correct, words = sums.tolist()
    if not words:
        raise InputError("none of the texts has a word to mask: name other text")
    return {
        "loss": round(loss / words, 6),
        "perplexity": round(math.exp(min(loss / words, 700)), 4),
        "accuracy": round(correct / words, 6),
        "words": int(words),
        "mask_rate": rate,
        "mask_unit": "piece",
    }


_draw = jax.jit(draw_masks_by_row, static_argnums=(2, 3))


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def _masked_sums(
    model: TextEncoder,
    config: TrainingConfig,
    params: PyTree,
    batch: Batch,
    mesh: Mesh | None,
) -> Float[Array, " 3"]:
    """Return the loss, the right words and all words of a batch."""
    config = dataclasses.replace(config, objective="masked")
    objective = make_objective(model.config, config)
    logits = find_logits(model, config, params, batch, mesh)
    words, counts = objective.targets(batch)
    shares = jax.nn.log_softmax(logits)
    losses = -jnp.take_along_axis(shares, words[..., None], axis=-1)[..., 0]
    right = counts & (logits.argmax(-1) == words)
    loss = jnp.where(counts, losses, 0.0).sum()
    right, words = (jnp.sum(each, dtype=loss.dtype) for each in (right, counts))
    return jnp.stack([loss, right, words])
