"""Text in, text out: a trained run that translates, scores and shows what it attends to."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.decoding import batch_search, given_pairs
from jaxformer.decoding.alignment import choose_layer
from jaxformer.decoding.batch_search import Banned
from jaxformer.decoding.codec import Codec
from jaxformer.decoding.config import DecodingConfig, Precision
from jaxformer.decoding.line_search import LineSearch, Prefixes, Required
from jaxformer.decoding.models import Models
from jaxformer.decoding.partners import combine
from jaxformer.decoding.results import Attention, Hypothesis, PairScore
from jaxformer.decoding.shortlist import Shortlist
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.layer_stacking import unstack_layers
from jaxformer.models.seq2seq import Transformer
from jaxformer.training import config as configuration
from jaxformer.training.run import check_vocabulary
from jaxformer.typing import PyTree

# Full batches that a window of a stream has: with so many to choose from, batches of like lengths have 3% more padding
# than those of all sentences at once; with a quarter of them 14%.
_BATCHES = 64


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
        source_language: str = "",
    ) -> None:
        """Put a translator together from its parts; :meth:`load` reads them from a run.

        Args:
            config: of the model. Scanned layers are looped here, since decoding goes through them one by one.
            params: of the model.
            vocabularies: of source and target.
            decoding: how to search.
            source_eos: whether sources end with the end-of-sentence token.
            tag: the language to translate into, for a model whose sources begin with its tag.
            source_language: for the abbreviations of paragraphs; empty: not known.

        Raises:
            InputError: the vocabulary has no such tag.
        """
        if config.scan_layers:
            config, params = dataclasses.replace(config, scan_layers=False), unstack_layers(params)
        self.models = Models((Transformer(config),), (params,))
        """The model with its parameters, or those of an ensemble."""
        self._prepared: tuple[Models, Precision, Models] | None = None
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.source_eos = source_eos
        self.codec = Codec(vocabularies, config.max_length, source_eos, tag, source_language)
        self.checkpoint: int | str | None = None
        self.directory: Path | None = None
        self.shortlist: Shortlist | None = None
        """What :meth:`search` keeps to, if anything; probabilities are then those among the tokens of the list."""

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
        models = combine(translators, weights)
        together = copy.copy(translators[0])
        together.models = models
        together.codec = dataclasses.replace(together.codec, positions=models.positions)
        if len(translators) > 1:
            folders = ("" if each.directory is None else f"{each.directory.name}@" for each in translators)
            pairs = zip(folders, translators, strict=True)
            together.checkpoint = " + ".join(f"{folder}{each.checkpoint}" for folder, each in pairs)
        return together

    @property
    def model(self) -> Transformer:
        """The model, or the first of an ensemble."""
        return self.models.models[0]

    @property
    def params(self) -> PyTree:
        """The parameters of :attr:`model`."""
        return self.models.params[0]

    def _prepare(self, precision: Precision) -> Models:
        """Give the models in a precision, which is kept for the next search."""
        if self._prepared is None or self._prepared[0] is not self.models or self._prepared[1] != precision:
            self._prepared = self.models, precision, self.models.prepare(precision)
        return self._prepared[2]

    @classmethod
    def load(
        cls, directory: str | Path, checkpoint: str | int = "best", target_language: str | None = None
    ) -> Translator:
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
        saved = find_parameters(directory, str(checkpoint), config.evaluation.best_metric)
        vocabularies = Vocabularies.load(directory / "vocabulary")
        check_vocabulary(directory, vocabularies, saved.vocabulary, saved.name)
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        like = jax.eval_shape(Transformer(config.model).init, jax.random.key(0), tokens, tokens)["params"]
        params = saved.load(like)
        tag = language if data.language_tags else None
        # A model of both directions reads the other language.
        source = data.source_language if language != data.source_language else data.target_language
        translator = cls(
            config.model,
            params,
            vocabularies,
            config.decoding,
            source_eos=data.source_eos,
            tag=tag,
            source_language=source,
        )
        translator.checkpoint, translator.directory = saved.name, directory
        return translator

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        decoding: DecodingConfig | None = None,
        ban: Sequence[str] = (),
        prefixes: Sequence[str | Sequence[str]] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        paragraphs: bool = False,
    ) -> list[str]:
        """Translate sentences; one string out for each string in, in order. Blank ones stay empty.

        Takes what :meth:`search` takes.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an argument is out of range.
        """
        found = self.search(
            texts,
            beam_size=beam_size,
            alpha=alpha,
            decoding=decoding,
            ban=ban,
            prefixes=prefixes,
            required=required,
            paragraphs=paragraphs,
        )
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
        prefixes: Sequence[str | Sequence[str]] | None = None,
        required: Sequence[Sequence[str]] | None = None,
        alignment: bool = False,
        alignment_layer: int | None = None,
        paragraphs: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[list[Hypothesis]]:
        """Give the best translations of each sentence, the best first; or samples, as they are drawn.

        Args:
            texts: sentences.
            beam_size: hypotheses alive at a time; by default that of ``decoding``.
            alpha: strength of the length penalty; by default that of ``decoding``.
            n_best: translations of each sentence, at most ``beam_size``; or how many are drawn.
            decoding: how to search; by default as the run says.
            ban: words or phrases that no translation holds as the vocabulary spells them: at the begin of a word, and
                small ones with a capital first letter too; see :meth:`Codec.banned`.
            prefixes: what the translation of each sentence begins with, as text; an empty one asks for nothing. Its
                last word may go on, and what is banned may stand in it. Several, in a list, are alternatives. Of a
                sentence that is split, the first part has it; a blank sentence stays empty.
            required: words or phrases that the translation of each sentence holds, in any order, as the vocabulary
                spells them at the begin of a word; they need a beam of at least 2. Of a sentence that is split, the
                first part has them.
            alignment: whether each translation comes with where the model looked in the source.
            alignment_layer: of the decoder, counted from 1, whose attention that is; by default the one before the
                last.
            paragraphs: whether each text is cut into sentences, which are translated alone and put together again with
                the white space that was between them.
            stop: asked between batches; where it says True, what is not yet translated comes back as no hypotheses.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an argument is out of range. Nothing
                is translated then.
        """
        for name, lists in (("prefixes", prefixes), ("lists of required phrases", required)):
            if lists is not None and not isinstance(lists, str) and len(lists) != len(texts):
                raise InputError(
                    f"there are {len(lists)} {name} for {len(texts)} sentences: give one for each, empty where nothing "
                    "is asked for"
                )
        asked = self._line_search(
            texts,
            beam_size=beam_size,
            alpha=alpha,
            n_best=n_best,
            decoding=decoding,
            ban=ban,
            prefixes=prefixes,
            required=required,
            alignment=alignment,
            alignment_layer=alignment_layer,
            paragraphs=paragraphs,
            window=max(1, len(texts)),
        )
        return list(dataclasses.replace(asked, stop=stop).stream(texts, prefixes, required))

    def stream(
        self,
        texts: Iterable[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        decoding: DecodingConfig | None = None,
        ban: Sequence[str] = (),
        prefixes: Prefixes = None,
        required: Required = None,
        alignment: bool = False,
        alignment_layer: int | None = None,
        paragraphs: bool = False,
        window: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Iterator[list[Hypothesis]]:
        """Translate a stream of any length in bounded memory: what :meth:`search` gives, one text after the other.

        A window of texts is read, sorted by length and translated before the next one is read. Each translation is
        given when it and all before it are there. A text that is refused ends the stream at its window: what stands
        before the window has been given by then.

        Takes what :meth:`search` takes; beside it ``window``, most sentences that are read at a time (by default 64
        batches; a short one answers sooner and fills batches worse, and 1 answers each sentence before it reads the
        next), and ``progress``, which is told after each batch how many sentences it has made whole.

        Raises:
            InputError: at once, an argument is out of range; from the stream, a sentence has more tokens than the model
                has positions, or there are more prefixes than sentences or fewer.
        """
        asked = self._line_search(
            texts,
            beam_size=beam_size,
            alpha=alpha,
            n_best=n_best,
            decoding=decoding,
            ban=ban,
            prefixes=prefixes,
            required=required,
            alignment=alignment,
            alignment_layer=alignment_layer,
            paragraphs=paragraphs,
            window=window,
        )
        return dataclasses.replace(asked, progress=progress).stream(texts, prefixes, required)

    def astream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        decoding: DecodingConfig | None = None,
        ban: Sequence[str] = (),
        prefixes: Prefixes = None,
        required: Required = None,
        alignment: bool = False,
        alignment_layer: int | None = None,
        paragraphs: bool = False,
        window: int | None = None,
    ) -> AsyncIterator[list[Hypothesis]]:
        """Do as :meth:`stream` without blocking the event loop: texts are read and batches translated in threads.

        Of an asynchronous iterable a window is what has arrived; while it is translated, as much again is read. A task
        that is cancelled ends at once; the batch that is being translated then runs to its end, unheard, in its thread.

        Raises:
            InputError: as :meth:`stream`.
        """
        asked = self._line_search(
            texts,
            beam_size=beam_size,
            alpha=alpha,
            n_best=n_best,
            decoding=decoding,
            ban=ban,
            prefixes=prefixes,
            required=required,
            alignment=alignment,
            alignment_layer=alignment_layer,
            paragraphs=paragraphs,
            window=window,
        )
        return asked.astream(texts, prefixes, required)

    def check(
        self,
        texts: Iterable[str],
        *,
        decoding: DecodingConfig | None = None,
        prefixes: Prefixes = None,
        required: Required = None,
        paragraphs: bool = False,
    ) -> int:
        """Read a stream and translate nothing: find what :meth:`stream` would refuse; give the number of texts.

        Raises:
            InputError: as :meth:`stream`.
        """
        asked = self._line_search(texts, decoding=decoding, prefixes=prefixes, required=required, paragraphs=paragraphs)
        return asked.check(texts, prefixes, required)

    def _line_search(
        self,
        texts: object,
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        decoding: DecodingConfig | None,
        ban: Sequence[str] = (),
        prefixes: object,
        required: object,
        alignment: bool = False,
        alignment_layer: int | None = None,
        paragraphs: bool,
        window: int | None = None,
    ) -> LineSearch:
        """Check what a call asks for."""
        for name, given in (("texts", texts), ("ban", ban), ("prefixes", prefixes), ("required", required)):
            if isinstance(given, str):  # a list of letters, to Python
                raise InputError(f"{name} must be a list, not one string: put it in a list, [{given[:20]!r}]")
        chosen = {key: x for key, x in (("beam_size", beam_size), ("alpha", alpha)) if x is not None}
        decoding = dataclasses.replace(decoding or self.decoding, **chosen)
        if n_best < 1 or (n_best > decoding.beam_size and not decoding.sample):
            most = "" if decoding.sample else f" and at most the beam of {decoding.beam_size}"
            raise InputError(f"n_best must be at least 1{most}, not {n_best}")
        if required is not None:
            batch_search.check_beam(decoding)
        if window is not None and window < 1:
            raise InputError(f"a window must have at least 1 sentence, not {window}")
        if alignment_layer is not None and not alignment:
            raise InputError("an alignment layer is for alignments: ask for them too, or leave it out")
        models = self._prepare(decoding.precision)
        return LineSearch(
            models=models,
            codec=self.codec,
            reader=(self.model, self.params),
            shortlist=self.shortlist,
            decoding=decoding,
            n_best=n_best,
            banned=self._ban(ban, decoding),
            forced=prefixes is not None,
            layer=choose_layer(alignment_layer, self.model.config.num_decoder_layers) if alignment else None,
            paragraphs=paragraphs,
            window=window or _BATCHES * decoding.batch_size * models.devices,
        )

    def _ban(self, phrases: Sequence[str], decoding: DecodingConfig) -> Banned:
        vocabulary, columns = self.vocabularies.target, self.model.config.vocabulary_size
        encoded = self.codec.banned(phrases)
        return batch_search.ban(decoding, encoded, vocabulary.unk_id, vocabulary.size, columns)

    def score(self, pairs: Sequence[Pair]) -> list[PairScore]:
        """Give the log-probability of each target under its source, by one forward pass.

        Raises:
            InputError: a sentence has more tokens than the model has positions.
        """
        return given_pairs.score(self.models, self.codec, pairs, self.decoding)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Give all attention weights of a pair; without a target, of the translation.

        Raises:
            InputError: a blank sentence, or one with more tokens than the model has positions.
        """
        if not source.strip():
            raise InputError("attention needs a sentence that is not blank")
        if target is None:
            target = self.translate([source])[0]
        return given_pairs.attend(self.model, self.params, self.codec, source, target)
