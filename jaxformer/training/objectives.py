"""What a step minimises: translation, the next word, masked words, or labels.

An objective says what of a batch goes into the model, what is predicted, and where it
counts. The step (:mod:`jaxformer.training.step`) computes the losses, adds up the sum
and the count over all parts and devices, and divides once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError
from jaxformer.functional.attention import LOWEST
from jaxformer.kernels.matmul import project_to_vocabulary
from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.typing import Array, Bool, Float, Int, Key

Batch: TypeAlias = Mapping[str, Int[Array | np.ndarray, "B T"]]
"""``source`` [B, S] and ``target`` [B, T], padded on the right. A row of only
padding weighs nothing.

With packed rows also ``source_segments`` [B, S] and ``target_segments`` [B, T]: see
:class:`jaxformer.Transformer`. Text of one side is only ``target``. Labels are
``target`` [B, 1], tags [B, S], the first and last position of spans [B, 2].

Where words are masked, ``continues`` [B, T] is an argument of :func:`draw_masks`, and
``row`` [B, 1], which only validation has, one of :func:`draw_masks_by_row`.
"""


class Output(NamedTuple):
    """What logits are made of: vectors and the table of words, or the logits
    themselves, where they are few; and the logits of a second term, if there is one.
    """

    x: Float[Array, "*B D"]
    table: Float[Array, "V D"] | None = None
    bias: Float[Array, " V"] | None = None
    second: Float[Array, "B C"] | None = None

    def logits(self) -> Float[Array, "*B V"]:
        """Compute the logits in float32."""
        if self.table is None:
            return self.x
        return project_to_vocabulary(self.table, self.x, self.bias)


class Objective(NamedTuple):
    """How a batch becomes a loss.

    Attributes:
        output: runs the model on a batch; it is called within ``apply``.
        targets: what is predicted, and whether each of it counts: integers and booleans
            of one shape. Without a weight a target may be any number.
        prepare: draws what a step draws of its batch, such as masks, for the whole
            batch, before that is cut in parts.
        regression: whether the loss is the square of the error of one number; its
            targets are the bits of float32 numbers.
        second: the targets of a second term, with a count of its own: the loss is the
            sum of the means of both.
    """

    output: Callable[..., Output]
    targets: Callable[[Batch], tuple[Int[Array, "*B"], Bool[Array, "*B"]]]
    prepare: Callable[[Batch, Key], Batch] = lambda batch, _: batch
    regression: bool = False
    second: Callable[[Batch], tuple[Int[Array, " B"], Bool[Array, " B"]]] | None = None


def make_objective(model: TransformerConfig, config: TrainingConfig) -> Objective:
    """Build the objective that ``training.objective`` names.

    Raises:
        InputError: the model has no head for it.
    """
    if config.masks:
        if model.head in ("none", "pooled"):
            raise InputError(
                f"model.head={model.head} predicts no words: set model.head=words,"
                " which is then newly drawn, or another objective with its head"
            )
        return _masked(model, config)
    return _OBJECTIVES[config.objective](model)


def _words(model: TransformerConfig) -> Callable[[Batch], tuple[Array, Array]]:
    def targets(batch: Batch) -> tuple[Array, Array]:
        words = jnp.asarray(batch["target"])
        return words, words != model.pad_id

    return targets


def _translation(model: TransformerConfig) -> Objective:
    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        sides = batch["source"], batch["target"]
        segments = batch.get("source_segments"), batch.get("target_segments")
        x, _ = module.hidden(*sides, *segments, train=train)
        return Output(x, *module.output_layer())

    return Objective(output, _words(model))


def _causal(model: TransformerConfig) -> Objective:
    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        segments = batch.get("target_segments")
        x, _ = module.hidden(batch["target"], segments, train=train)
        return Output(x, *module.output_layer())

    return Objective(output, _words(model))


def _masked(model: TransformerConfig, config: TrainingConfig) -> Objective:
    two = config.objective == "masked_and_next"
    side = "source" if two else "target"

    def prepare(batch: Batch, key: Key) -> Batch:
        given, rate = batch[side], config.mask_rate
        if "row" in batch:
            rows = jnp.asarray(batch["row"])[:, 0]
            masks = draw_masks_by_row(given, rows, model, rate)
        else:
            masks = draw_masks(given, key, model, rate, batch.get("continues"))
        return {**batch, **masks._asdict()}

    def targets(batch: Batch) -> tuple[Array, Array]:
        words = jnp.asarray(batch[side])
        counts = jnp.asarray(batch["counts"]).astype(bool)
        return jnp.take_along_axis(words, jnp.asarray(batch["places"]), 1), counts

    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        segments = batch.get("target_segments")
        x, _ = module.hidden(batch["masked"], None, segments, train=train)
        # The logits of all positions would be seven times as many.
        chosen = jnp.take_along_axis(x, jnp.asarray(batch["places"])[..., None], 1)
        words = module.word_transform(chosen), *module.output_layer()
        return Output(*words, second=module.next(x) if two else None)

    second = _classification(model).targets if two else None
    return Objective(output, targets, prepare, second=second)


class Masks(NamedTuple):
    """Words that are predicted from the others; all are integers.

    Attributes:
        masked: [B, T], the text with masks.
        places: [B, K], positions of the words to predict.
        counts: [B, K], 1 where there is such a word, else 0.
    """

    masked: Int[Array, "B T"]
    places: Int[Array, "B K"]
    counts: Int[Array, "B K"]


def draw_masks(
    tokens: Int[Array | np.ndarray, "B T"],
    key: Key,
    model: TransformerConfig,
    rate: float,
    continues: Int[Array | np.ndarray, "B T"] | None = None,
) -> Masks:
    """Choose words to predict, and replace them (Devlin et al. 2019, section 3.1).

    Of a row of n words that are not special, ``max(1, round(rate * n))`` are chosen. Of
    these 80 % become the mask, 10 % another word and 10 % stay. No word is drawn that
    is special: the paper draws from the whole vocabulary.

    With ``continues`` words have several tokens. They are drawn until the next one
    would be too many: so a few tokens less are chosen, and of a first word that is
    longer only the first ones.

    Args:
        tokens: a batch, padded.
        key: random key.
        model: has the special ids: of padding, beginning, end and mask.
        rate: share of the words; 0.15 in the paper.
        continues: 1 where a token belongs to the word before; None: each is a word.

    Raises:
        InputError: the vocabulary has no mask.
    """
    tokens = jnp.asarray(tokens)
    if model.mask_id is None:
        raise InputError(
            "the vocabulary has no piece <mask>, which masked words need: train it with"
            " data.kind=masked, or begin with a run that has it"
        )
    special = special_ids(model)
    usable = jnp.ones(tokens.shape, bool)
    for each in special:
        usable &= tokens != each
    by_place, by_kind, by_word = jax.random.split(key, 3)
    places, counts = _draw_places(usable, by_place, rate, continues)
    words = jnp.take_along_axis(tokens, places, axis=1)
    others = jax.random.randint(
        by_word, words.shape, 0, model.text_vocabulary_size - len(special)
    )
    for each in special:  # from the smallest: skip it
        others += (others >= each).astype(others.dtype)
    kind = jax.random.uniform(by_kind, words.shape)
    new = jnp.where(kind < 0.8, model.mask_id, jnp.where(kind < 0.9, others, words))
    rows = jnp.arange(len(tokens))[:, None]
    masked = tokens.at[rows, places].set(jnp.where(counts, new, words))
    return Masks(masked, places, counts.astype(jnp.int32))


def _draw_places(
    usable: Bool[Array, "B T"],
    key: Key,
    rate: float,
    continues: Int[Array | np.ndarray, "B T"] | None,
) -> tuple[Int[Array, "B K"], Bool[Array, "B K"]]:
    """Return positions of words to predict, and whether there are so many."""
    count = usable.sum(axis=1)
    # Of decimal numbers: 0.15 times 190 is above 28.5 in float32.
    products = [round(rate * n, 9) for n in range(usable.shape[1] + 1)]
    chosen = jnp.array([min(n, max(1, round(x))) for n, x in enumerate(products)])
    chosen = chosen[count]
    most = max(1, math.ceil(products[-1]))
    order = jax.random.uniform(key, usable.shape)
    last = None
    if continues is not None:
        first, last = _find_words(usable, jnp.asarray(continues) == 1)
        order = jnp.take_along_axis(order, first, axis=1)
    order = jnp.where(usable, order, -1.0)
    _, places = jax.lax.top_k(order, most)
    counts = jnp.arange(most)[None] < chosen[:, None]
    if last is None:
        return places, counts
    # The tokens of a word follow one another in this order too.
    end = jnp.arange(most)[None] + jnp.take_along_axis(last, places, 1) - places
    fits = end < chosen[:, None]
    return places, counts & (fits | ~fits[:, :1])


def draw_masks_by_row(
    tokens: Int[Array | np.ndarray, "B T"],
    rows: Int[Array | np.ndarray, " B"],
    model: TransformerConfig,
    rate: float,
) -> Masks:
    """Choose words as :func:`draw_masks` does, with a key for each row: equal text has
    the same masks in every run, and on any number of devices. Pieces are masked, not
    whole words.

    Args:
        tokens: a batch, padded.
        rows: number of each row in its data set.
        model: as of :func:`draw_masks`.
        rate: share of the words.
    """

    def draw(text: Int[Array, " T"], row: Int[Array, ""]) -> Masks:
        key = jax.random.fold_in(jax.random.key(0), row)
        return Masks(*(each[0] for each in draw_masks(text[None], key, model, rate)))

    return jax.vmap(draw)(jnp.asarray(tokens), jnp.asarray(rows))


def _find_words(
    usable: Bool[Array, "B T"], continues: Bool[Array, "B T"]
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """Return where the word of each token begins, and where its last token is."""
    place = jnp.arange(usable.shape[1])[None]
    begins = usable & ~(continues & jnp.pad(usable[:, :-1], ((0, 0), (1, 0))))
    after = ~usable[:, 1:] | begins[:, 1:]
    ends = usable & jnp.pad(after, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
    beyond = usable.shape[1]
    last = jax.lax.cummin(jnp.where(ends, place, beyond), axis=1, reverse=True)
    return first, last


def special_ids(model: TransformerConfig) -> list[int]:
    """Return the ids of padding, beginning, end and mask, as far as the model has them,
    in ascending order.
    """
    ids = {model.pad_id, model.bos_id, model.eos_id, model.mask_id}
    return sorted(each for each in ids if each is not None)


def _classification(model: TransformerConfig) -> Objective:
    def targets(batch: Batch) -> tuple[Array, Array]:
        real = (jnp.asarray(batch["source"]) != model.pad_id).any(axis=1)
        return jnp.asarray(batch["target"])[:, 0], real

    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        source = jnp.asarray(batch["source"])
        x, _ = module.hidden(source, train=train)
        return Output(module.classify(x, train=train))

    return Objective(output, targets)


def _regression(model: TransformerConfig) -> Objective:
    return _classification(model)._replace(regression=True)


def _tagging(model: TransformerConfig) -> Objective:
    def targets(batch: Batch) -> tuple[Array, Array]:
        tags = jnp.asarray(batch["target"])
        real = jnp.asarray(batch["source"]) != model.pad_id
        # Pieces after the first of a word have a number beyond the tags.
        return tags, real & (tags < model.vocabulary_size)

    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        segments = batch.get("source_segments")
        x, _ = module.hidden(batch["source"], None, segments, train=train)
        return Output(module.tag(x, train=train))

    return Objective(output, targets)


def _span(model: TransformerConfig) -> Objective:
    def targets(batch: Batch) -> tuple[Array, Array]:
        ends = jnp.asarray(batch["target"])
        real = (jnp.asarray(batch["source"]) != model.pad_id).any(axis=1, keepdims=True)
        return ends, jnp.broadcast_to(real, ends.shape)

    def output(module: Any, batch: Batch, *, train: bool) -> Output:
        source = jnp.asarray(batch["source"])
        x, _ = module.hidden(source, train=train)
        logits = module.find_span(x).swapaxes(1, 2)
        return Output(jnp.where((source != model.pad_id)[:, None], logits, LOWEST))

    return Objective(output, targets)


_OBJECTIVES = {
    "translation": _translation,
    "causal": _causal,
    "classification": _classification,
    "regression": _regression,
    "tagging": _tagging,
    "span": _span,
}
