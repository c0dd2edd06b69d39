"""An encoder-only model that labels, measures, tags, answers, or fills in words."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer.data.examples import join_texts
from jaxformer.data.frame import make_frame
from jaxformer.data.labelled import find_words, marks_entities
from jaxformer.data.sources import IMPORTED
from jaxformer.data.vocabulary import MASK, Vocabularies
from jaxformer.data.windows import Window, question_windows
from jaxformer.errors import InputError
from jaxformer.evaluation.encoder_logits import find_logits, share_rows, softmax
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.models.stacking import unstack_layers
from jaxformer.runs.config import RunConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import Precision
from jaxformer.training.objectives import Batch
from jaxformer.training.optimizer import frozen_mask
from jaxformer.translation import models
from jaxformer.translation.batch import batches, pad, round_width
from jaxformer.translation.codec import line_error
from jaxformer.translation.encoder_rows import (
    best_span,
    entities_of,
    rows_of_words,
    with_mask,
)
from jaxformer.typing import Float, PyTree

Prediction = dict[str, Any]
"""What :meth:`Predictor.predict` says of a text, as JSON."""


class Predictor:
    """A trained encoder-only model with its vocabularies.

    Example:
        >>> Predictor.load("runs/sst2").predict(["A fine film."])  # doctest: +SKIP
        [{'label': '1', 'probabilities': {'0': 0.02, '1': 0.98}}]
    """

    def __init__(
        self,
        config: RunConfig,
        params: PyTree,
        vocabularies: Vocabularies,
        *,
        checkpoint: int | str | None = None,
        directory: Path | None = None,
        precision: Precision | None = None,
    ) -> None:
        """Build a predictor from its parts; :meth:`load` reads them from a run.

        Args:
            config: of the run.
            params: of the model.
            vocabularies: of text and labels.
            checkpoint: name of the parameters.
            directory: of the run.
            precision: of :func:`jaxformer.translation.models.prepare`; None: as the run
                says (``decoding.precision``).

        Raises:
            InputError: the model is not encoder-only.
        """
        _check_encoder(directory, config)
        model = config.model
        if model.attention_backend != "plain":
            # The machine that trained may have had another kernel.
            model = dataclasses.replace(model, attention_backend="auto")
        if model.scan_layers:
            model = dataclasses.replace(model, scan_layers=False)
            params = unstack_layers(params)
        precision = precision or config.decoding.precision
        if precision != "model":
            model, params = models.prepare(model, params, precision)
        self.mesh = models.mesh_of_devices()
        if self.mesh is not None:
            params = jax.device_put(params, NamedSharding(self.mesh, PartitionSpec()))
        self.config = dataclasses.replace(config, model=model)
        self.model, self.params = make_model(model), params
        self.vocabularies = vocabularies
        self.frame = make_frame(vocabularies, ("", ""))
        self.checkpoint, self.directory = checkpoint, directory

    @classmethod
    def load(
        cls,
        directory: str | Path,
        checkpoint: str | int = "best",
        *,
        precision: Precision | None = None,
    ) -> Predictor:
        """Read a run's configuration, vocabularies and parameters.

        Args:
            directory: of the run; on the disk or in a bucket (``gs://bucket/run``).
            checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
            precision: as of the constructor.

        Raises:
            InputError: there is no such run or checkpoint, its parts do not belong
                together, it is not encoder-only, or what predicts was newly drawn and
                never trained.
        """
        directory, config, saved, vocabularies = models.open_run(
            directory, checkpoint, _check_encoder
        )
        like = abstract_parameters(config.model)
        untrained = _untrained(config.training, like, saved.name, saved.drawn)
        if untrained:
            raise InputError(
                f"{', '.join(untrained)} of checkpoint {saved.name} of {directory} was"
                " newly drawn and never trained, so that it predicts nothing: train the"
                " run first"
            )
        more: dict[str, Any] = {"checkpoint": saved.name, "directory": directory}
        params = saved.load(like)
        return cls(config, params, vocabularies, precision=precision, **more)

    @property
    def longest(self) -> int:
        """Most tokens of a row, with those around the text, as in training."""
        return min(self.config.data.max_length, self.config.model.max_length)

    def predict(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        notice: Callable[[int], None] = lambda _: None,
    ) -> list[Prediction]:
        """Return what the model says of each text, in order.

        ============== ========================= ======================================
        objective      text                      prediction
        ============== ========================= ======================================
        classification one, or two and a tab     ``label``, ``probabilities``
        regression     the same                  ``value``
        tagging        words                     ``words``, ``tags``, and of tags in
                                                 IOB or IOBES ``entities``
        span           question, tab, text       ``answer``, its characters ``start``
                                                 and ``end``, its ``score``, and
                                                 ``no_answer``, the score of none
        masked         with ``<mask>`` once      ``candidates``, words with their
                                                 probabilities
        masked_and_    the same, or two texts    ``next``, the probability that the
        next           and a tab                 second text follows the first
        ============== ========================= ======================================

        An imported model with both heads predicts both.

        Texts to label or measure are cut to ``data.max_length`` as in training; tagged
        ones are divided between words, and those with answers into windows. What is
        said of a text without a token is None, or no words.

        Args:
            texts: a line each.
            top: words for a mask.
            notice: called at the end with the number of texts that were cut, if any
                was.

        Raises:
            InputError: a text does not have the form above, or one with a mask is too
                long.
        """
        objective = self.config.training.objective.removesuffix("_and_next")
        return getattr(self, f"_{objective}")(texts, top, notice)

    @property
    def _knows_next(self) -> bool:
        """Whether the model was trained to say whether a text follows another."""
        imported = self.config.data.train.startswith(IMPORTED)
        both = self.config.model.head == "words_and_next"
        return both and (imported or self.config.training.objective != "masked")

    def _classification(
        self, texts: Sequence[str], top: int, notice: Callable[[int], None]
    ) -> list[Prediction]:
        del top
        labels = self.vocabularies.target.pieces(range(self.vocabularies.target.size))
        found: list[Prediction] = []
        for logits in self._whole(texts, notice):
            if logits is None:
                found.append({"label": None, "probabilities": None})
                continue
            shares = softmax(logits)
            rounded = dict(zip(labels, np.round(shares, 6).tolist(), strict=True))
            best = labels[int(shares.argmax())]
            found.append({"label": best, "probabilities": rounded})
        return found

    def _regression(
        self, texts: Sequence[str], top: int, notice: Callable[[int], None]
    ) -> list[Prediction]:
        del top
        return [
            {"value": None if number is None else float(number[0])}
            for number in self._whole(texts, notice)
        ]

    def _whole(
        self, texts: Sequence[str], notice: Callable[[int], None]
    ) -> list[Float[np.ndarray, " C"] | None]:
        """Return the outputs for whole texts; None for those without a token."""
        rows, cut = [], 0
        divided = [text.split("\t") for text in texts]
        for number, parts in enumerate(divided, start=1):
            if len(parts) > 2:
                fault = f"has {len(parts)} texts, separated by tabs: give one or two"
                raise line_error("text", number, fault)
        whole = [*itertools.chain.from_iterable(divided)]
        encoded = iter(self.vocabularies.source.encode_batch(whole))
        for parts in divided:
            first, *others = itertools.islice(encoded, len(parts))
            second = others[0] if others else None
            tokens, lost = join_texts(first, second, self.frame, self.longest)
            rows.append(tokens if any((first, *others)) else [])
            cut += lost
        found = dict(self.outputs(rows))
        if cut:
            notice(cut)
        return [found.get(index) for index in range(len(rows))]

    def _tagging(
        self, texts: Sequence[str], top: int, notice: Callable[[int], None]
    ) -> list[Prediction]:
        del top, notice
        words = [find_words(text) for text in texts]
        source = self.vocabularies.source
        rows: list[list[int]] = []
        places: list[tuple[int, list[int]]] = []
        for number, own in enumerate(words):
            for row, firsts in rows_of_words(own, source, self.frame, self.longest):
                rows.append(row)
                places.append((number, firsts))
        tags: list[list[str]] = [[] for _ in texts]
        parts: list[list[str]] = [[] for _ in rows]
        for index, logits in self.outputs(rows):
            best = logits[places[index][1]].argmax(-1)
            parts[index] = self.vocabularies.target.pieces(best)
        for (number, _), part in zip(places, parts, strict=True):
            tags[number] += part
        labels = self.vocabularies.target.pieces(range(self.vocabularies.target.size))
        named = marks_entities(labels)
        return [
            {"words": own, "tags": given}
            | ({"entities": entities_of(own, given)} if named else {})
            for own, given in zip(words, tags, strict=True)
        ]

    def _span(
        self, texts: Sequence[str], top: int, notice: Callable[[int], None]
    ) -> list[Prediction]:
        del top, notice
        windows: list[Window] = []
        owners: list[int] = []
        parts = [text.partition("\t") for text in texts]
        for number, (question, tab, _) in enumerate(parts, start=1):
            if question.strip() and not tab:
                fault = "is no question and text: put a tab between them"
                raise line_error("text", number, fault)
        vocabulary = self.vocabularies.source
        questions = vocabulary.encode_batch([question for question, _, _ in parts])
        contexts = [context for _, _, context in parts]
        for number, texts_of in enumerate(zip(questions, contexts, strict=True)):
            own = question_windows(
                *(*texts_of, vocabulary, self.frame),
                *(self.longest, self.config.data.stride),
            )
            own = own if texts[number].strip() else []
            windows += own
            owners += [number] * len(own)
        nothing = {"answer": None, "start": None, "end": None, "score": None}
        best: list[Prediction] = [{**nothing, "no_answer": None} for _ in texts]
        for index, logits in self.outputs([window.tokens for window in windows]):
            answer, none = best[owners[index]], float(logits[0, 0] + logits[1, 0])
            known = answer["no_answer"]
            answer["no_answer"] = none if known is None else min(none, known)
            span = best_span(logits, windows[index])
            if span and (answer["score"] is None or span[0] > answer["score"]):
                answer["score"], answer["start"], answer["end"] = span
                answer["answer"] = contexts[owners[index]][span[1] : span[2]]
        return best

    def _masked(
        self, texts: Sequence[str], top: int, notice: Callable[[int], None]
    ) -> list[Prediction]:
        found: list[Prediction] = [{} for _ in texts]
        two = [self._knows_next and "\t" in x and MASK not in x for x in texts]
        pairs = [x if is_pair else "" for x, is_pair in zip(texts, two, strict=True)]
        for number, logits in enumerate(self._whole(pairs, notice)):
            share = None if logits is None else round(float(softmax(logits)[0]), 6)
            found[number] = {"next": share}
        rows, places, owners = [], [], []
        for number, text in enumerate(texts, start=1):
            if two[number - 1]:
                continue
            if not text.strip():
                found[number - 1] = {"candidates": None}
                continue
            if text.count(MASK) != 1:
                fault = f"has {text.count(MASK) or 'no'} {MASK}: give each text one"
                fault += ", or two texts and a tab" if self._knows_next else ""
                raise line_error("text", number, fault)
            row, place = with_mask(text, self.vocabularies.source, self.frame)
            if len(row) > self.longest:
                fault = (
                    f"has {len(row)} tokens and the run takes {self.longest}"
                    " (data.max_length): shorten it"
                )
                raise line_error("text", number, fault)
            rows.append(row)
            places.append(place)
            owners.append(found[number - 1])
            found[number - 1].clear()
        vocabulary = self.vocabularies.target
        ids = {getattr(vocabulary, f"{x}_id") for x in ("pad", "unk", "bos", "eos")}
        ids |= {vocabulary.mask_id, *vocabulary.languages.values()}
        special = [id_ for id_ in ids if id_ is not None and id_ < vocabulary.size]
        for index, logits in self.outputs(rows, places):
            shares = softmax(logits[0])[: vocabulary.size]
            shares[special] = -1.0
            order = [id_ for id_ in np.argsort(-shares)[:top] if shares[id_] >= 0]
            names = [name.replace("▁", " ") for name in vocabulary.pieces(order)]
            owners[index]["candidates"] = [
                [name.strip() or name, round(float(shares[id_]), 6)]
                for name, id_ in zip(names, order, strict=True)
            ]
        return found

    def outputs(
        self, rows: Sequence[list[int]], places: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Float[np.ndarray, "..."]]]:
        """Yield the number of each row and its logits in float32, in batches of similar
        lengths over all devices; nothing of a row without tokens.

        Args:
            rows: tokens in their frame.
            places: of the mask in each row; None: the output is that for whole rows.
        """
        config, decoding = self.model.config, self.config.decoding
        sizes = decoding.batch_size, decoding.tokens_per_batch, config.max_length
        for indices, most in batches([*map(len, rows)], *sizes):
            width = round_width(len(rows[indices[0]]), config.max_length)
            count = share_rows(most, self.mesh)
            tokens = pad([rows[i] for i in indices], count, width, config.pad_id)
            batch: Batch = {"source": tokens}
            if places is not None:
                masks = pad([[places[i]] for i in indices], count, 1, 0)
                batch = {"masked": tokens, "places": masks}
            given = self.model, self.config.training, self.params, batch, self.mesh
            yield from zip(indices, np.asarray(find_logits(*given)), strict=False)


def _check_encoder(directory: Path | None, config: RunConfig) -> None:
    model = config.model
    if model.num_decoder_layers:
        other = "translate" if model.num_encoder_layers else "generate"
        raise InputError(
            f"{directory or 'this run'} has a decoder, and predict is for encoder-only"
            f" models: use {other}"
        )


def _untrained(
    config: TrainingConfig, like: PyTree, checkpoint: int | str, drawn: Sequence[str]
) -> list[str]:
    """Return the parts that were drawn and that no step has changed."""
    if checkpoint == 0 or config.frozen is None:
        return [*drawn] if checkpoint == 0 else []
    frozen = frozen_mask(like, config.frozen)
    return [part for part in drawn if all(jax.tree.leaves(frozen.get(part, False)))]
