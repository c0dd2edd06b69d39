"""Continue texts by a decoder-only language model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.data.frame import TEXT, Template
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.models.language_model import LanguageModel
from jaxformer.search.config import ADDED_TOKENS, DecodingConfig
from jaxformer.search.rules import SearchResult, SearchRules
from jaxformer.search.single import (
    RowState,
    draw,
    most_probable,
    row_finish,
    row_init,
    row_step,
)
from jaxformer.translation.added_text import AddedText, cut, find_held
from jaxformer.translation.batch import (
    Sentence,
    Shape,
    ban,
    batches,
    make_batch,
    round_width,
    search_batch,
)
from jaxformer.translation.codec import line_error
from jaxformer.translation.compiled import BatchInput, search, sentence_keys
from jaxformer.translation.models import Models
from jaxformer.translation.options import check_results
from jaxformer.translation.translator import Translator
from jaxformer.typing import Array, Float, Int, PyTree

# Tokens of a batch of prompts, padding included.
_TOKENS = 8192

# Tokens that are computed before the text of a batch is read for stop strings.
_STEPS = 8


class Continuation(NamedTuple):
    """A continuation of a text.

    Attributes:
        text: what is added to the prompt, as :meth:`Generator.shown`, up to the first
            stop string.
        score: by which continuations are ranked.
        log_probability: of the tokens, in nats.
        tokens: their number, with those of a stop string and, of a beam or on several
            devices, those after it.
        finished: whether it ended by itself: by the end of the text or a stop string,
            not because tokens or positions ran out.
    """

    text: str
    score: float
    log_probability: float
    tokens: int
    finished: bool


class Generator:
    """A trained language model with its vocabulary.

    Example:
        >>> Generator.load("runs/gpt").generate(["def main("])  # doctest: +SKIP
        [[Continuation(text='):', ...)]]
    """

    def __init__(self, translator: Translator) -> None:
        """Continue texts by the model of a run.

        Raises:
            InputError: it is no language model.
        """
        model, frame = translator.model, translator.codec.frame
        if not isinstance(model, LanguageModel):
            raise InputError(
                "texts are continued by a decoder-only model, and this has an encoder:"
                " set model.num_encoder_layers=0"
            )
        if translator.vocabularies.template is None:
            # A text that is continued has no end, and begins as in training.
            frame = Template(source=("{bos}", TEXT)).fill(
                translator.vocabularies, translator.languages
            )
        self._frame = frame
        self.decoding = translator.decoding
        self._translator, self._eos_id = translator, frame.end
        self._vocabulary = translator.vocabularies.target
        self._config = model.config

    @classmethod
    def load(cls, directory: str | Path, checkpoint: str | int = "best") -> Generator:
        """Read a run; see :meth:`jaxformer.Translator.load`."""
        return cls(Translator.load(directory, checkpoint, objective="causal"))

    def generate(
        self,
        prompts: Sequence[str],
        *,
        most: int = ADDED_TOKENS,
        stop: Sequence[str] = (),
        n_best: int = 1,
        decoding: DecodingConfig | None = None,
    ) -> list[list[Continuation]]:
        """Return the continuations of each prompt, the best first; samples in the order
        in which they were drawn.

        Args:
            prompts: texts; an empty one begins a new text.
            most: tokens that are added at most, as far as the model has positions.
            stop: strings that end a continuation and are not part of it. On one device
                greedy search and sampling compute few tokens after them.
            n_best: continuations of each prompt.
            decoding: how to search; None: as the run says.

        Raises:
            InputError: a prompt leaves no position for a token, or an argument is out
                of range.
        """
        decoding = self._decoding(decoding, most, stop)
        check_results(decoding, n_best, None, None)
        encoded = self._encode(prompts)
        models = self._translator.prepare(decoding.precision)
        found: list[list[Continuation]] = [[] for _ in prompts]
        sizes = decoding.batch_size, _TOKENS, self._config.max_length
        rows = decoding.sample or decoding.beam_size == 1
        for chosen, _ in batches([*map(len, encoded)], *sizes):
            run = search
            if stop and rows and models.mesh is None:
                own = self._vocabulary, [encoded[index] for index in chosen], stop
                run = functools.partial(_search_to_stop, *own)
            result = search_batch(
                models,
                [Sentence(encoded[index], 0, (index, 0)) for index in chosen],
                decoding,
                eos_id=self._eos_id,
                n_best=n_best,
                banned=self._banned(decoding),
                run=run,
            )
            for row, index in enumerate(chosen):
                for rank in np.flatnonzero(np.isfinite(result.scores[row])):
                    length = int(result.lengths[row][rank])
                    added = AddedText(self._vocabulary, encoded[index])
                    tokens = result.tokens[row][rank][:length].tolist()
                    text, stopped = cut(added.rest(tokens), stop)
                    own = Continuation(
                        text,
                        float(result.scores[row][rank]),
                        float(result.log_probabilities[row][rank]),
                        length,
                        stopped or bool(result.finished[row][rank]),
                    )
                    found[index].append(own)
        return found

    def stream(
        self,
        prompt: str,
        *,
        most: int = ADDED_TOKENS,
        stop: Sequence[str] = (),
        decoding: DecodingConfig | None = None,
    ) -> Iterator[str]:
        """Yield a continuation in parts, as its tokens come: that of :meth:`generate`,
        by greedy search or one sample.

        A part that could begin a stop string is held back until that is decided.

        Raises:
            InputError: as :meth:`generate`, or a beam.
        """
        decoding = self._decoding(decoding, most, stop)
        if not decoding.sample and decoding.beam_size > 1:
            raise InputError(
                f"a beam of {decoding.beam_size} has no text before it ends: set"
                " beam_size=1 or sample, or generate without a stream"
            )
        (ids,) = self._encode([prompt])
        added, text = AddedText(self._vocabulary, ids), ""
        for token in self._tokens(ids, decoding):
            text, stopped = cut(text + added.add(token), stop)
            ready = len(text) - (0 if stopped else find_held(text, stop))
            if ready:
                yield text[:ready]
            if stopped:
                return
            text = text[ready:]
        text, _ = cut(text + added.rest(), stop)
        if text:
            yield text

    def shown(self, prompt: str) -> str:
        """Return a prompt as it precedes its continuation: without the blanks at its
        end where the vocabulary does not read them, as with SentencePiece.

        Raises:
            InputError: as :meth:`generate`.
        """
        read = self._vocabulary.decode(self._encode([prompt])[0], lines=True)
        return prompt if read[-1:].isspace() else prompt.rstrip()

    def _tokens(self, ids: list[int], decoding: DecodingConfig) -> Iterator[int]:
        """Yield the tokens of a greedy search or of a sample, one after another."""
        models = self._translator.prepare(decoding.precision)
        batch, rules = make_batch(
            models,
            [Sentence(ids, 0, (0, 0))],
            dataclasses.replace(decoding, beam_size=1),
            eos_id=self._eos_id,
            n_best=1,
            banned=self._banned(decoding),
            shape=Shape(1, round_width(len(ids), models.positions)),
        )
        state = _begin(*_only(models), batch, rules)
        for place in range(1, int(rules.limits[0]) + 1):
            state, _ = _advance(*_only(models), batch, rules, 1, state)
            (token,) = jax.device_get(state.tokens)[:, place].tolist()
            if token in (rules.eos_id, rules.pad_id):  # padding: no token is possible
                return
            yield token

    def _decoding(
        self, decoding: DecodingConfig | None, most: int, stop: Sequence[str]
    ) -> DecodingConfig:
        if most < 1:
            raise InputError(f"at least 1 token is generated, not {most}")
        if isinstance(stop, str) or not all(stop):
            raise InputError(f"stop must be a list of texts that are not empty: {stop}")
        own = decoding or self.decoding
        if own.coverage_penalty:
            raise InputError(
                f"decoding.coverage_penalty={own.coverage_penalty:g} counts attention"
                " to a source, and a language model has none: set it to 0"
            )
        return dataclasses.replace(
            own,
            max_extra_length=min(most, self._config.max_length),
            max_target_length=None,
            max_length_ratio=None,
            min_length_ratio=0.0,
        )

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Encode prompts; an empty one is the first input of a text."""
        frame, positions = self._frame, self._config.max_length
        encoded = []
        for number, ids in enumerate(
            self._vocabulary.encode_batch(list(prompts)), start=1
        ):
            ids = [*frame.source_before, *ids] or [self._config.bos_id]
            if len(ids) > positions:
                fault = (
                    f"has {len(ids)} tokens and the model has {positions} positions:"
                    " shorten it"
                )
                raise line_error("prompt", number, fault)
            encoded.append(ids)
        return encoded

    def _banned(self, decoding: DecodingConfig) -> Any:
        columns = self._config.vocabulary_size
        return ban(decoding, [], self._vocabulary, columns, surplus=True)


def _search_to_stop(
    vocabulary: Vocabulary,
    prompts: Sequence[list[int]],
    stop: Sequence[str],
    models: Models,
    batch: BatchInput,
    rules: SearchRules,
) -> SearchResult:
    """Search as :func:`~jaxformer.translation.compiled.search` does, a few tokens at a
    time, and end each row at its first stop string.
    """
    added = [AddedText(vocabulary, x) for x in prompts for _ in range(rules.beam_size)]
    texts, longest = [""] * len(added), max(map(len, stop))
    state, place = _begin(*_only(models), batch, rules), 1
    done, ends = np.zeros(len(state.done), bool), np.full(len(state.done), rules.length)
    values = np.zeros(len(done), np.float32)
    while not done.all():
        state, history = _advance(*_only(models), batch, rules, _STEPS, state)
        read = state.tokens, state.done, history
        tokens, now, after = map(np.array, jax.device_get(read))
        for row in np.flatnonzero(~done[: len(added)]):
            for step, token in enumerate(tokens[row, place : place + _STEPS].tolist()):
                if token in (rules.eos_id, rules.pad_id):
                    break
                text, stopped = cut(texts[row] + added[row].add(token), stop)
                texts[row] = text[-longest:]
                if stopped:
                    now[row], ends[row] = True, place + step
                    values[row] = after[step, row]
                    break
        done, place = now, place + _STEPS
        state = state._replace(done=jnp.asarray(done))
    return _finish(rules, state, ends, values)


def _only(models: Models) -> tuple[LanguageModel, PyTree]:
    """Return the one model and its parameters."""
    return cast(LanguageModel, models.models[0]), models.params[0]


@jax.jit
def _finish(
    rules: SearchRules,
    state: RowState,
    ends: Int[Array, " N"],
    values: Float[Array, " N"],
) -> SearchResult:
    """Return the hypotheses, each without its tokens after the first ``ends``, where
    its log-probability was ``values``.
    """
    kept = jnp.arange(state.tokens.shape[1])[None] <= ends[:, None]
    return row_finish(
        rules,
        state._replace(
            tokens=jnp.where(kept, state.tokens, rules.pad_id),
            values=jnp.where(ends < state.lengths, values, state.values),
            token_log_probabilities=jnp.where(kept, state.token_log_probabilities, 0.0),
            lengths=jnp.minimum(state.lengths, ends),
        ),
    )


@functools.partial(jax.jit, static_argnums=0)
def _begin(
    model: LanguageModel, params: PyTree, batch: BatchInput, rules: SearchRules
) -> RowState:
    memory: Any = model.apply({"params": params}, batch.source, method="start")
    rows = batch.source.shape[0] * rules.beam_size
    return row_init(rules, (model.empty_cache(memory, rows, rules.length), memory))


@functools.partial(jax.jit, static_argnums=(0, 4), donate_argnums=5)
def _advance(
    model: LanguageModel,
    params: PyTree,
    batch: BatchInput,
    rules: SearchRules,
    steps: int,
    state: RowState,
) -> tuple[RowState, Float[Array, "K N"]]:
    """Extend each row by up to K ``steps`` tokens; also return its log-probability
    after each.
    """

    def step(tokens: jax.Array, own: PyTree) -> tuple[jax.Array, PyTree]:
        cache, memory = own
        found = model.apply({"params": params}, tokens, cache, memory, method="step")
        logits, grown = cast(tuple[jax.Array, PyTree], found)
        return logits, (grown, memory)

    choose = most_probable
    if rules.sampling is not None:
        choose = draw(rules.sampling, sentence_keys(batch), rules.beam_size)

    def extend(
        carry: tuple[jax.Array, RowState, jax.Array],
    ) -> tuple[jax.Array, RowState, jax.Array]:
        count, state, values = carry
        state = row_step(rules, step, choose, state)
        return count + 1, state, values.at[count].set(state.values)

    _, state, values = jax.lax.while_loop(
        lambda carry: (carry[0] < steps) & ~carry[1].done.all(),
        extend,
        (jnp.int32(0), state, jnp.zeros((steps, *state.values.shape))),
    )
    return state, values
