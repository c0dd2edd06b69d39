"""The probability of texts under a language model, and its perplexity."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.config import DataConfig
from jaxformer.data.examples import encode_examples
from jaxformer.data.records import Pair
from jaxformer.data.store import Encoded
from jaxformer.data.windows import cut_with_stride
from jaxformer.errors import InputError
from jaxformer.evaluation.perplexity import Perplexity
from jaxformer.models.language_model import LanguageModel
from jaxformer.translation.batch import batches, pad, round_width
from jaxformer.translation.results import PairScore
from jaxformer.translation.translator import Translator
from jaxformer.typing import Array, Float, Int, PyTree

# Most tokens of a batch, padding included, and most bytes of its logits.
_TOKENS, _BYTES = 8192, 2**29
_ROWS = 256


def check_language_model(translator: Translator, name: str) -> LanguageModel:
    """Return the only model of a translator.

    Args:
        translator: of a run.
        name: of what needs it, for an error.

    Raises:
        InputError: it is no language model, or an ensemble.
    """
    model = translator.model
    if not isinstance(model, LanguageModel) or len(translator.models.models) > 1:
        raise InputError(
            f"{name} without a source needs one language model, and"
            f" {translator.directory or 'this run'} is none or an ensemble: name"
            " another run"
        )
    return model


def score_texts(translator: Translator, texts: Sequence[str]) -> list[PairScore]:
    """Return the log-probability of each text, with its end, under a language model.

    Raises:
        InputError: a text has more tokens than the model has positions, or the model is
            another.
    """
    model = check_language_model(translator, "score")
    rows = [np.array(ids) for ids in translator.codec.encode_targets(texts)]
    found = log_probabilities(model, translator.params, rows)
    return [PairScore(math.fsum(each.tolist()), len(each)) for each in found]


def perplexity_in_windows(
    translator: Translator,
    pairs: Sequence[Pair],
    data: DataConfig,
    stride: int | None = None,
) -> dict[str, Any]:
    """Measure the perplexity of a language model; every token counts once.

    A window has ``data.window`` tokens, or ``data.max_length`` where each text is a row
    of its own, and its first token is predicted from the beginning of a text. In a
    window after the first only the last ``stride`` tokens count. The others are read.

    Args:
        translator: of the run.
        pairs: texts.
        data: of the run.
        stride: from a window to the next, at most the window; None: the window.

    Returns:
        Sums and means: ``nll`` in nats a token; ``perplexity`` of a token;
        ``word_perplexity`` of a word between white space, the end of a text counted as
        a word; ``bits_per_byte`` of the text in UTF-8, which compares models of any
        vocabulary.

    Raises:
        InputError: no text has a token, or the stride is longer than the window.
    """
    model = check_language_model(translator, "perplexity")
    window = data.window or data.max_length
    stride = window if stride is None else stride
    if not 1 <= stride <= window:
        raise InputError(
            f"a stride of {stride} tokens would leave some out: give 1 to {window}, the"
            " window"
        )
    texts = encode_examples(pairs, translator.vocabularies, data).pairs
    if not len(texts):
        raise InputError("none of the texts has a token: name other text")
    rows, skips = zip(*_windows(texts, window, stride, data.window), strict=True)
    found = log_probabilities(model, translator.params, rows)
    nats = math.fsum(
        math.fsum(each[skip:].tolist()) for each, skip in zip(found, skips, strict=True)
    )
    lines = [pair.target for pair in pairs]
    tokens = sum(len(each) - skip for each, skip in zip(found, skips, strict=True))
    words = sum(len(line.split()) for line in lines) + len(texts)
    size = sum(len(line.encode("utf-8", "replace")) for line in lines)
    record = Perplexity(len(pairs), tokens, words, nats).to_record()
    record["texts"] = record.pop("sentences")
    return record | {
        "bits_per_byte": round(-nats / (math.log(2) * max(size, 1)), 6),
        "bytes": size,
        "window": window,
        "stride": stride,
    }


def _windows(
    texts: Encoded, window: int, stride: int, joined: int | None
) -> Iterator[tuple[Int[np.ndarray, " T"], int]]:
    """Yield the tokens of each window, and how many of them are only read."""
    streams: Iterator[Encoded] | list[Encoded] = [texts]
    if not joined:
        streams = (texts.take(np.array([index])) for index in range(len(texts)))
    for stream in streams:
        cut, read = cut_with_stride(stream, window, stride)
        for index, skip in enumerate(read.tolist()):
            yield cut.target[index], skip


def log_probabilities(
    model: LanguageModel, params: PyTree, rows: Sequence[Int[np.ndarray, " T"]]
) -> list[Float[np.ndarray, " T"]]:
    """Return the log-probability of each token of rows given those before it, in nats.

    Rows are computed in batches of similar lengths, which change it by rounding alone.

    Args:
        model: a language model.
        params: of the model.
        rows: tokens, at most as many as the model has positions.
    """
    config = model.config
    tokens = max(1, min(_TOKENS, _BYTES // (4 * config.vocabulary_size)))
    found = [np.zeros(0, np.float32)] * len(rows)
    lengths = [len(row) for row in rows]
    for indices, count in batches(lengths, _ROWS, tokens, config.max_length):
        width = round_width(lengths[indices[0]], config.max_length)
        batch = pad([rows[i].tolist() for i in indices], count, width, config.pad_id)
        scores = np.asarray(_token_scores(model, params, batch))
        for row, index in enumerate(indices):
            found[index] = scores[row, : lengths[index]]
    return found


@functools.partial(jax.jit, static_argnums=0)
def _token_scores(
    model: LanguageModel, params: PyTree, tokens: Int[Array, "B T"]
) -> Float[Array, "B T"]:
    logits: Any = model.apply({"params": params}, tokens)
    shares = jax.nn.log_softmax(logits.astype(jnp.float32))
    # A vocabulary without padding has no row for it.
    known = jnp.where(tokens == model.config.pad_id, 0, tokens)
    return jnp.take_along_axis(shares, known[..., None], axis=-1)[..., 0]
