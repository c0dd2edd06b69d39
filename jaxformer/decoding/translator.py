"""Text in, text out: a trained run that translates, scores and shows what it attends to."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.decoding import batch_search
from jaxformer.decoding.batch_search import Banned, Models, Sentence, most_tokens, pad, round_width, row_count
from jaxformer.decoding.config import DecodingConfig
from jaxformer.decoding.ensemble import check_weights, mean_log_probabilities
from jaxformer.decoding.rules import SearchResult
from jaxformer.decoding.shortlist import Shortlist
from jaxformer.decoding.splitting import split
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.layer_stacking import unstack_layers
from jaxformer.models.seq2seq import AttentionWeights, Transformer
from jaxformer.training import config as configuration
from jaxformer.training.run import check_vocabulary
from jaxformer.typing import Array, Float, Int, PyTree


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
        text: the translation, on one line.
        score: log-probability, changed by a repetition penalty if there is one, divided by the length penalty; what
            hypotheses are ranked by. Minus infinity: the options of the search left no translation at all.
        log_probability: natural logarithm of the translation's probability, end of sentence included, by the model
            alone, whatever the options of the search.
        tokens: its pieces.
        finished: whether it ended by itself, before the longest length allowed.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[str]
    finished: bool


class PairScore(NamedTuple):
    """How probable a model holds a given translation.

    Attributes:
        log_probability: natural logarithm of the target's probability, end of sentence included.
        tokens: target tokens, end of sentence included.
    """

    log_probability: float
    tokens: int


class Attention(NamedTuple):
    """What a model attends to in one pair: pieces of both sides, and weights as [layers, heads, queries, keys].

    Row t of ``decoder`` and ``cross`` is where the model looks when it predicts ``target_tokens[t]``; the keys of
    ``decoder`` are the tokens that it has read, ``read_tokens``.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    read_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


class Translator:
    """A model with its vocabularies.

    Example:
        >>> Translator.load("runs/ende").translate(["Hello, world."])  # doctest: +SKIP
        ['Hallo, Welt.']
    """

    def __init__(
        self,
        config: TransformerConfig,
        params: PyTree,
        vocabularies: Vocabularies,
        decoding: DecodingConfig,
        *,
        source_eos: bool = True,
        tag: str | None = None,
    ) -> None:
        """Put a translator together from its parts; :meth:`load` reads them from a run.

        Args:
            config: of the model. Scanned layers are looped here, since decoding goes through them one by one.
            params: of the model.
            vocabularies: of source and target.
            decoding: how to search.
            source_eos: whether sources end with the end-of-sentence token.
            tag: the language to translate into, for a model whose sources begin with its tag.
        """
        if config.scan_layers:
            config, params = dataclasses.replace(config, scan_layers=False), unstack_layers(params)
        self.model = Transformer(config)
        self.params = params
        self._others: tuple[Translator, ...] = ()
        self._weights: np.ndarray | None = None
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.source_eos = source_eos
        source = vocabularies.source
        self._before = [] if tag is None else [source.tag_id(tag)]
        self._behind = [source.eos_id] if source_eos else []
        self.checkpoint: int | str | None = None
        self.shortlist: Shortlist | None = None
        """What :meth:`search` keeps to, if anything; probabilities are then those among the tokens of the list."""

    @property
    def models(self) -> Models:
        """The model, or those of the ensemble, with their parameters."""
        members = (self, *self._others)
        return Models(tuple(each.model for each in members), tuple(each.params for each in members), self._weights)

    @classmethod
    def ensemble(cls, translators: Sequence[Translator], weights: Sequence[float] | None = None) -> Translator:
        """Put translators of one vocabulary together, whose models then predict each token together.

        The first says how to search; :meth:`attention` is that of its model. The models may differ in size and in the
        type of their computation.

        Args:
            translators: single ones, each as :meth:`load` gives it: runs, or checkpoints of one run.
            weights: of the models, at least 0; None: all alike. See
                :func:`~jaxformer.decoding.ensemble.mean_log_probabilities`.

        Raises:
            InputError: there is no translator, or they do not read and write the same tokens.

        Example:
            >>> both = [Translator.load("runs/first"), Translator.load("runs/second")]  # doctest: +SKIP
            >>> Translator.ensemble(both).translate(["Hello, world."])  # doctest: +SKIP
            ['Hallo, Welt.']
        """
        if not translators:
            raise InputError("an ensemble needs a translator: give at least one")
        if weights is not None:
            check_weights(weights, len(translators))
        first, *others = translators
        for number, other in enumerate(others, start=2):
            first._check_partner(other, number)
        together = copy.copy(first)
        together._others = tuple(others)
        together._weights = None if weights is None else np.asarray(weights, np.float32)
        if others:
            together.checkpoint = " + ".join(str(each.checkpoint) for each in translators)
        return together

    def _check_partner(self, other: Translator, number: int) -> None:
        """Refuse a model that reads or writes other tokens than this one.

        Raises:
            InputError: one is an ensemble, or vocabularies, what is added to sources, or columns of the output differ.
        """
        if self._others or other._others:
            raise InputError("an ensemble is put together at once: give its models, not another ensemble of some")
        own, others = self.vocabularies.hash, other.vocabularies.hash
        if own != others:
            raise InputError(
                f"model {number} of the ensemble has another vocabulary (hash {others[:12]}) than the first "
                f"({own[:12]}): train both with one, by the same vocabulary files in their directories"
            )
        before, after = (
            {
                "data.source_eos": each.source_eos,
                "the language tag": each.vocabularies.source.pieces(each._before),
                "model.vocabulary_size": each.model.config.vocabulary_size,
                "model.pad_id": each.model.config.pad_id,
                "model.bos_id": each.model.config.bos_id,
            }
            for each in (self, other)
        )
        for name, value in before.items():
            if after[name] != value:
                raise InputError(
                    f"the first model of the ensemble has {name} {value} and model {number} has {after[name]}: "
                    "put models together that agree in it"
                )

    @classmethod
    def load(cls, directory: str | Path, checkpoint: str = "best", target_language: str | None = None) -> Translator:
        """Read a run's configuration, vocabularies and parameters.

        Args:
            directory: of the run.
            checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
            target_language: what to translate into; None: the ``data.target_language`` of the run. Another than that
                needs a run with ``data.language_tags=True``.

        Raises:
            InputError: there is no run or no such checkpoint, or its parts do not belong together.
        """
        directory = Path(directory)
        config = configuration.load(directory / "config.json")
        data = config.data
        language = target_language or data.target_language
        if language != data.target_language and not data.language_tags:
            raise InputError(
                f"{directory} translates into {data.target_language} alone, not into {language!r}: train with "
                "data.language_tags=True for several languages"
            )
        saved = find_parameters(directory, checkpoint, config.evaluation.best_metric)
        vocabularies = Vocabularies.load(directory / "vocabulary")
        check_vocabulary(directory, vocabularies, saved.vocabulary, saved.name)
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        like = jax.eval_shape(Transformer(config.model).init, jax.random.key(0), tokens, tokens)["params"]
        params = saved.load(like)
        tag = language if data.language_tags else None
        translator = cls(config.model, params, vocabularies, config.decoding, source_eos=data.source_eos, tag=tag)
        translator.checkpoint = saved.name
        return translator

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        decoding: DecodingConfig | None = None,
        ban: Sequence[str] = (),
        prefixes: Sequence[str] | None = None,
    ) -> list[str]:
        """Translate sentences; one string out for each string in, in order. Blank ones stay empty.

        Takes what :meth:`search` takes.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an argument is out of range.
        """
        found = self.search(texts, beam_size=beam_size, alpha=alpha, decoding=decoding, ban=ban, prefixes=prefixes)
        return [hypotheses[0].text for hypotheses in found]

    def search(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        decoding: DecodingConfig | None = None,
        ban: Sequence[str] = (),
        prefixes: Sequence[str] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[list[Hypothesis]]:
        """Give the best translations of each sentence, the best first; or samples, as they are drawn.

        Args:
            texts: sentences.
            beam_size: hypotheses alive at a time; by default that of ``decoding``.
            alpha: strength of the length penalty; by default that of ``decoding``.
            n_best: translations of each sentence, at most ``beam_size``; or how many are drawn.
            decoding: how to search; by default as the run says.
            ban: words or phrases that no translation holds as the vocabulary spells them, at the begin of a word.
            prefixes: what the translation of each sentence begins with, as text; an empty one asks for nothing. Its
                last word may go on, and what is banned may stand in it. Of a sentence that is split, the first part
                has it; a blank sentence stays empty.
            stop: asked between batches; where it says True, what is not yet translated comes back as no hypotheses.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an argument is out of range.
        """
        for name, given in (("texts", texts), ("ban", ban), ("prefixes", prefixes)):
            if isinstance(given, str):  # a list of letters, to Python
                raise InputError(
                    f"{name} must be a list of sentences, not one string: put it in a list, [{given[:20]!r}]"
                )
        chosen = {key: x for key, x in (("beam_size", beam_size), ("alpha", alpha)) if x is not None}
        asked = copy.copy(self)
        asked.decoding = dataclasses.replace(decoding or self.decoding, **chosen)
        return asked._search(list(texts), n_best, asked._ban(ban), prefixes, stop)

    def _search(
        self,
        texts: list[str],
        n_best: int,
        banned: Banned,
        prefixes: Sequence[str] | None,
        stop: Callable[[], bool],
    ) -> list[list[Hypothesis]]:
        decoding = self.decoding
        if n_best < 1 or (n_best > decoding.beam_size and not decoding.sample):
            most = "" if decoding.sample else f" and at most the beam of {decoding.beam_size}"
            raise InputError(f"n_best must be at least 1{most}, not {n_best}")
        divided = [self._split(ids) for ids in self.vocabularies.source.encode_batch(texts)]
        self._check_lengths("source", [max(parts, key=len) for parts in divided], self._most_source_tokens)
        sentences = self._sentences(divided, prefixes)
        results: list[list[Hypothesis]] = [
            [] if each.ids else [Hypothesis("", 0.0, 0.0, [], finished=True)] for each in sentences
        ]
        # Many samples of a sentence take the room of as many hypotheses.
        size = max(1, decoding.batch_size * min(decoding.beam_size, n_best) // n_best)
        decoding, forced = dataclasses.replace(decoding, batch_size=size), any(each.prefix for each in sentences)
        for indices in self._batches([each.ids for each in sentences], size):
            if stop():
                break
            found = batch_search.search_batch(
                self.models,
                [sentences[i] for i in indices],
                decoding,
                eos_id=self.vocabularies.target.eos_id,
                n_best=n_best,
                banned=banned,
                forced=forced,
                shortlist=self.shortlist,
            )
            for row, index in enumerate(indices):
                results[index] = self._hypotheses(found, row)
        remaining = iter(results)
        return [_joined([next(remaining) for _ in parts]) for parts in divided]

    def score(self, pairs: Sequence[Pair]) -> list[PairScore]:
        """Give the log-probability of each target under its source, by one forward pass.

        Raises:
            InputError: a sentence has more tokens than the model has positions.
        """
        sources = self._encode_sources([pair.source for pair in pairs])
        targets = self._encode_targets([pair.target for pair in pairs])
        results = [PairScore(0.0, 0)] * len(pairs)
        longest = [max(source, target, key=len) for source, target in zip(sources, targets, strict=True)]
        for indices in self._batches(longest, self.decoding.batch_size):
            width = round_width(max(len(longest[i]) for i in indices), self.models.positions)
            rows = row_count(len(indices), self.decoding.batch_size)
            pad_id = self.model.config.pad_id
            source = pad([sources[i] for i in indices], rows, width, pad_id)
            target = pad([targets[i] for i in indices], rows, width, pad_id)
            totals = np.asarray(_score(*self.models, source, target))
            for row, index in enumerate(indices):
                results[index] = PairScore(float(totals[row]), len(targets[index]))
        return results

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Give all attention weights of a pair; without a target, of the translation.

        Raises:
            InputError: a blank sentence, or one with more tokens than the model has positions.
        """
        if not source.strip():
            raise InputError("attention needs a sentence that is not blank")
        if target is None:
            target = self.translate([source])[0]
        (source_ids,) = self._encode_sources([source])
        (target_ids,) = self._encode_targets([target])
        pair = (np.asarray([ids], np.int32) for ids in (source_ids, target_ids))
        weights = _attention(self.model, self.params, *pair)
        encoder, decoder, cross = (np.concatenate([np.asarray(layer) for layer in kind]) for kind in weights)
        read = [self.model.config.bos_id, *target_ids[:-1]]
        return Attention(
            self.vocabularies.source.pieces(source_ids),
            self.vocabularies.target.pieces(target_ids),
            self.vocabularies.target.pieces(read),
            encoder,
            decoder,
            cross,
        )

    def _encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode, with the tag and the end of sentence where the run has them; a blank text gives no token at all."""
        encoded = [self._complete(ids) for ids in self.vocabularies.source.encode_batch(list(texts))]
        self._check_lengths("source", encoded, self.models.positions)
        return encoded

    def _complete(self, ids: list[int]) -> list[int]:
        return [*self._before, *ids, *self._behind] if ids else []

    @property
    def _most_source_tokens(self) -> int:
        most = self.models.positions
        return min(self.decoding.max_source_length or most, most)

    def _split(self, ids: list[int]) -> list[list[int]]:
        """Give the tokens of a sentence, complete; if it is too long and may be split, in parts."""
        room = self._most_source_tokens - len(self._before) - len(self._behind)
        if self.decoding.long_sources == "refuse" or len(ids) <= room:
            return [self._complete(ids)]
        return [self._complete(ids[start:stop]) for start, stop in split(self.vocabularies.source.pieces(ids), room)]

    def _encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode, each with its end of sentence."""
        vocabulary = self.vocabularies.target
        encoded = [ids + [vocabulary.eos_id] for ids in vocabulary.encode_batch(list(texts))]
        self._check_lengths("target", encoded, self.models.positions)
        return encoded

    def _check_lengths(self, side: str, sentences: list[list[int]], limit: int) -> None:
        rule = f"the model has {limit} positions"
        if limit < self.models.positions:
            rule = f"decoding.max_source_length is {limit}"
        for number, ids in enumerate(sentences, start=1):
            if len(ids) > limit:
                raise InputError(
                    f"{side} sentence {number} has {len(ids)} tokens and {rule}; split the sentence (translate "
                    "--split_long does it), or train with a larger model.max_length"
                )

    def _sentences(self, divided: list[list[list[int]]], prefixes: Sequence[str] | None) -> list[Sentence]:
        """Put together what the search must know of each part of each sentence."""
        if prefixes is not None and len(prefixes) != len(divided):
            raise InputError(
                f"there are {len(prefixes)} prefixes for {len(divided)} sentences: give one for each, empty where "
                "nothing is asked for"
            )
        encoded = self.vocabularies.target.encode_batch(list(prefixes or [""] * len(divided)))
        added = len(self._before) + len(self._behind)
        sentences = []
        for number, (parts, prefix) in enumerate(zip(divided, encoded, strict=True)):
            for part, ids in enumerate(parts):
                words = max(len(ids) - added, 0)
                most = most_tokens(self.decoding, words, self.models.positions)
                if prefix and ids and part == 0 and len(prefix) >= most:
                    raise InputError(
                        f"prefix {number + 1} has {len(prefix)} tokens and its translation at most {most}: shorten it, "
                        "or raise decoding.max_extra_length"
                    )
                sentences.append(Sentence(ids, words, [] if part else prefix, (number, part)))
        return sentences

    def _ban(self, phrases: Sequence[str]) -> Banned:
        vocabulary = self.vocabularies.target
        encoded = vocabulary.encode_batch(list(phrases))
        if not all(encoded):
            raise InputError("a banned word must not be blank: leave it out")
        columns = self.model.config.vocabulary_size
        return batch_search.ban(self.decoding, encoded, vocabulary.unk_id, vocabulary.size, columns)

    def _batches(self, sentences: list[list[int]], size: int) -> list[list[int]]:
        """Put sentences of like length together, longest first, so that memory is short at once or never."""
        order = sorted((i for i, ids in enumerate(sentences) if ids), key=lambda i: (-len(sentences[i]), i))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _hypotheses(self, found: SearchResult, row: int) -> list[Hypothesis]:
        vocabulary = self.vocabularies.target
        hypotheses = []
        for tokens, score, log_probability, length, finished in zip(*(part[row] for part in found[:5]), strict=True):
            if not np.isfinite(score):
                continue  # the sentence has fewer hypotheses than were asked for
            ids = [int(token) for token in tokens[:length]]
            text = " ".join(vocabulary.decode(ids).split("\n"))
            pieces = vocabulary.pieces(ids)
            hypotheses.append(Hypothesis(text, float(score), float(log_probability), pieces, bool(finished)))
        return hypotheses or [Hypothesis("", -math.inf, -math.inf, [], finished=False)]


def _joined(parts: list[list[Hypothesis]]) -> list[Hypothesis]:
    """Put the translations of the parts of a sentence together, the best with the best."""
    if len(parts) == 1:
        return parts[0]
    return [
        Hypothesis(
            " ".join(part.text for part in row),
            sum(part.score for part in row),
            sum(part.log_probability for part in row),
            [token for part in row for token in part.tokens],
            all(part.finished for part in row),
        )
        for row in zip(*parts, strict=False)
    ]


@functools.partial(jax.jit, static_argnums=0)
def _score(
    models: tuple[Transformer, ...],
    params: tuple[PyTree, ...],
    weights: Float[Array, " M"] | None,
    source: Int[Array, "B S"],
    target: Int[Array, "B T"],
) -> Float[Array, " B"]:
    logits = [
        cast(Array, model.apply({"params": own}, source, target)) for model, own in zip(models, params, strict=True)
    ]
    log_probabilities = mean_log_probabilities(logits, weights)
    chosen = jnp.take_along_axis(log_probabilities, target[..., None], axis=-1)[..., 0]
    return jnp.where(target != models[0].config.pad_id, chosen, 0.0).sum(axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def _attention(
    model: Transformer, params: PyTree, source: Int[Array, "B S"], target: Int[Array, "B T"]
) -> AttentionWeights:
    return cast(Any, model.apply({"params": params}, source, target, method="forward"))[1]
