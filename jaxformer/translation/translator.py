"""Text in, text out: a trained run that translates, scores and shows what it attends
to.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.models.layer_stacking import unstack_layers
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs import config as configuration
from jaxformer.runs.folder import check_vocabulary
from jaxformer.search.config import MOST_COUNTED, DecodingConfig, Precision
from jaxformer.search.ensemble import check_weights
from jaxformer.translation import batch as batch_search
from jaxformer.translation import pairs as given_pairs
from jaxformer.translation.batch import Banned
from jaxformer.translation.codec import Codec
from jaxformer.translation.models import Models
from jaxformer.translation.options import (
    ResultOptions,
    SearchOptions,
    check_names,
    check_text,
    gather,
    resolve,
)
from jaxformer.translation.pairs import choose_layer
from jaxformer.translation.results import Attention, Hypothesis, LongSources, PairScore
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.stream import LineSearch
from jaxformer.typing import PyTree

# Full batches that a window of a stream has: with so many to choose from, batches of
# like lengths have 3% more padding than those of all sentences at once; with a quarter
# of them 14%.
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
        target_language: str = "",
        trained_length: int | None = None,
    ) -> None:
        """Put a translator together from its parts; :meth:`load` reads them from a run.

        Args:
            config: of the model. Scanned layers are looped here, since decoding goes
                through them one by one.
            params: of the model.
            vocabularies: of source and target.
            decoding: how to search.
            source_eos: whether sources end with the end-of-sentence token.
            tag: the language to translate into, for a model whose sources begin with
                its tag.
            source_language: code of the language to translate from, for the
                abbreviations of paragraphs; empty: not known.
            target_language: code of the language to translate into; empty: not known.
            trained_length: most tokens of a source in training, those added to it
                included, beyond which sources are cut; None: not known, and the model's
                positions are the limit.

        Raises:
            InputError: the vocabulary has no such tag.
        """
        if config.scan_layers:
            config, params = (
                dataclasses.replace(config, scan_layers=False),
                unstack_layers(params),
            )
        self.models = Models((Transformer(config),), (params,))
        """The model with its parameters, or those of an ensemble."""
        self._prepared: tuple[Models, Precision, Models] | None = None
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.source_eos = source_eos
        self.codec = Codec(
            vocabularies,
            config.max_length,
            source_eos,
            tag,
            source_language,
            trained_length,
        )
        self.languages = source_language, target_language
        """Codes of those translated from and into; empty: not known."""
        self.checkpoint: int | str | None = None
        self.directory: Path | None = None
        self.shortlist: Shortlist | None = None
        """What :meth:`search` keeps to, if anything; probabilities are then those
        among the tokens of the list.
        """

    @classmethod
    def ensemble(
        cls, translators: Sequence[Translator], weights: Sequence[float] | None = None
    ) -> Translator:
        """Put translators of one vocabulary together, whose models then predict each
        token together.

        The first says how to search; :meth:`attention` is that of its model. The models
        may differ in size and in the type of their computation.

        Args:
            translators: single ones, each as :meth:`load` gives it: runs, or
                checkpoints of one run.
            weights: of the models, at least 0; None: all alike. See
                :func:`~jaxformer.search.ensemble.mean_log_probabilities`.

        Raises:
            InputError: there is no translator, or they do not read and write the same
                tokens.

        Example:
            >>> both = [Translator.load("runs/first"), Translator.load("runs/second")]  # doctest: +SKIP
            >>> Translator.ensemble(both).translate(["Hello, world."])  # doctest: +SKIP
            ['Hallo, Welt.']
        """
        models = _combine(translators, weights)
        together = copy.copy(translators[0])
        together.models = models
        trained = min(
            (each.codec.longest for each in translators if each.codec.trained),
            default=None,
        )
        together.codec = dataclasses.replace(
            together.codec, positions=models.positions, trained=trained
        )
        if len(translators) > 1:
            folders = (
                "" if each.directory is None else f"{each.directory.name}@"
                for each in translators
            )
            pairs = zip(folders, translators, strict=True)
            names = [f"{folder}{each.checkpoint}" for folder, each in pairs]
            if weights is not None:
                names = [
                    f"{weight:g}*{name}"
                    for weight, name in zip(weights, names, strict=True)
                ]
            together.checkpoint = " + ".join(names)
        return together

    @property
    def model(self) -> Transformer:
        """The model, or the first of an ensemble."""
        return self.models.models[0]

    @property
    def params(self) -> PyTree:
        """The parameters of :attr:`model`, a tree of arrays."""
        return self.models.params[0]

    def _prepare(self, precision: Precision) -> Models:
        """Return the models in a precision, which is kept for the next search."""
        if (
            self._prepared is None
            or self._prepared[0] is not self.models
            or self._prepared[1] != precision
        ):
            self._prepared = self.models, precision, self.models.prepare(precision)
        return self._prepared[2]

    @classmethod
    def load(
        cls,
        directory: str | Path,
        checkpoint: str | int = "best",
        target_language: str | None = None,
    ) -> Translator:
        """Read a run's configuration, vocabularies and parameters.

        Args:
            directory: of the run.
            checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
            target_language: what to translate into; None: the ``data.target_language``
                of the run. Another than that needs a run with
                ``data.language_tags=True``.

        Raises:
            InputError: there is no run or no such checkpoint, or its parts do not
                belong together.
        """
        directory = Path(directory)
        config = configuration.load(directory / "config.json")
        data = config.data
        language = target_language or data.target_language
        if language != data.target_language and not data.language_tags:
            raise InputError(
                f"{directory} translates into {data.target_language} alone, not into"
                f" {language!r}: train with data.language_tags=True for several"
                " languages"
            )
        saved = find_parameters(
            directory, str(checkpoint), config.evaluation.best_metric
        )
        vocabularies = Vocabularies.load(directory / "vocabulary")
        check_vocabulary(directory, vocabularies, saved.vocabulary, saved.name)
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        like = jax.eval_shape(
            Transformer(config.model).init, jax.random.key(0), tokens, tokens
        )["params"]
        params = saved.load(like)
        tag = language if data.language_tags else None
        # A model of both directions reads the other language.
        source = (
            data.source_language
            if language != data.source_language
            else data.target_language
        )
        translator = cls(
            config.model,
            params,
            vocabularies,
            config.decoding,
            source_eos=data.source_eos,
            tag=tag,
            source_language=source,
            target_language=language,
            trained_length=data.max_length,
        )
        translator.checkpoint, translator.directory = saved.name, directory
        return translator

    def translate(
        self, texts: Sequence[str], **options: Unpack[SearchOptions]
    ) -> list[str]:
        """Translate sentences; one string out for each string in, in order. Blank ones
        stay empty.

        Args:
            texts: sentences.
            **options: see :class:`~jaxformer.translation.options.SearchOptions`.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an
                argument is out of range.
        """
        check_names("Translator.translate", options, SearchOptions)
        return [hypotheses[0].text for hypotheses in self.search(texts, **options)]

    def search(
        self,
        texts: Sequence[str],
        *,
        stop: Callable[[], bool] = lambda: False,
        notice: Callable[[LongSources], None] = LongSources.warn,
        **options: Unpack[ResultOptions],
    ) -> list[list[Hypothesis]]:
        """Return the best translations of each sentence, the best first; or samples, as
        they are drawn.

        Args:
            texts: sentences.
            stop: asked between batches; where it says True, what is not yet translated
                comes back as no hypotheses.
            notice: told at the end if any sentence is longer than training saw; by
                default a :class:`~jaxformer.errors.LongSourceWarning`.
            **options: see :class:`~jaxformer.translation.options.ResultOptions`. There
                are as many prefixes and lists of required phrases as sentences.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or an
                argument is out of range. Nothing is translated then.
        """
        check_names("Translator.search", options, ResultOptions)
        asked = self._line_search(texts, options, max(1, len(texts)))
        prefixes, required = gather(options, len(texts))
        return list(
            dataclasses.replace(asked, stop=stop, notice=notice).stream(
                texts, prefixes, required
            )
        )

    def stream(
        self,
        texts: Iterable[str],
        *,
        window: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
        notice: Callable[[LongSources], None] = LongSources.warn,
        **options: Unpack[ResultOptions],
    ) -> Iterator[list[Hypothesis]]:
        """Translate a stream of any length in bounded memory: what :meth:`search`
        gives, one text after the other.

        A window of texts is read, sorted by length and translated before the next one
        is read. Each translation is given when it and all before it are there. A text
        that is refused ends the stream at its window: what stands before the window has
        been given by then.

        Args:
            texts: sentences.
            window: most sentences that are read at a time, by default 64 batches; a
                short one answers sooner and fills batches worse, and 1 answers each
                sentence before it reads the next.
            progress: told after each batch how many sentences it has made whole.
            notice: told at the end of the stream if any sentence is longer than
                training saw; by default a :class:`~jaxformer.errors.LongSourceWarning`.
            **options: see :class:`~jaxformer.translation.options.ResultOptions`.
                Prefixes and required phrases are read beside the texts.

        Raises:
            InputError: at once, an argument is out of range; from the stream, a
                sentence has more tokens than the model has positions, or there are more
                prefixes than sentences or fewer.
        """
        check_names("Translator.stream", options, ResultOptions)
        asked = dataclasses.replace(
            self._line_search(texts, options, window), progress=progress, notice=notice
        )
        return asked.stream(texts, options.get("prefixes"), options.get("required"))

    def check(self, texts: Iterable[str], **options: Unpack[ResultOptions]) -> int:
        """Read a stream and translate nothing: find what :meth:`stream` would refuse;
        give the number of texts.

        Raises:
            InputError: as :meth:`stream`.
        """
        check_names("Translator.check", options, ResultOptions)
        asked = self._line_search(texts, options, None)
        return asked.check(texts, options.get("prefixes"), options.get("required"))

    def _line_search(
        self, texts: object, options: ResultOptions, window: int | None
    ) -> LineSearch:
        """Check what a call asks for, before any text is read."""
        decoding = resolve(texts, options, self.decoding)
        if window is not None and window < 1:
            raise InputError(f"a window must have at least 1 sentence, not {window}")
        if window is not None and window > MOST_COUNTED:
            raise InputError(
                f"a window must have at most {MOST_COUNTED:,} sentences, not {window}"
            )
        models, layers = (
            self._prepare(decoding.precision),
            self.model.config.num_decoder_layers,
        )
        return LineSearch(
            models=models,
            codec=self.codec,
            reader=(self.model, self.params),
            shortlist=self.shortlist,
            decoding=decoding,
            n_best=options.get("n_best", 1),
            banned=self._ban(options.get("ban", ()), decoding),
            forced=options.get("prefixes") is not None,
            layer=(
                choose_layer(options.get("alignment_layer"), layers)
                if options.get("alignment")
                else None
            ),
            paragraphs=options.get("paragraphs", False),
            window=window or _BATCHES * decoding.batch_size * models.devices,
        )

    def _ban(self, phrases: Sequence[str], decoding: DecodingConfig) -> Banned:
        vocabulary, columns = (
            self.vocabularies.target,
            self.model.config.vocabulary_size,
        )
        encoded = self.codec.banned(phrases)
        return batch_search.ban(
            decoding, encoded, vocabulary.unk_id, vocabulary.size, columns
        )

    def score(self, pairs: Sequence[Pair]) -> list[PairScore]:
        """Return the log-probability of each target under its source, by one forward
        pass.

        Raises:
            InputError: a sentence has more tokens than the model has positions, or is
                no string.
        """
        for place, pair in enumerate(pairs):
            check_text(f"pairs[{place}].source", pair.source)
            check_text(f"pairs[{place}].target", pair.target)
        return given_pairs.score(self.models, self.codec, pairs, self.decoding)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Give all attention weights of a pair; without a target, of the translation.

        Raises:
            InputError: a blank sentence, or one with more tokens than the model has
                positions.
        """
        check_text("source", source)
        if not source.strip():
            raise InputError("attention needs a sentence that is not blank")
        self.codec.encode_sources([source])  # refused before it is translated
        if target is None:
            whole = dataclasses.replace(
                self.decoding, long_sources="refuse", max_source_length=None
            )
            target = self.translate([source], decoding=whole)[0]
        check_text("target", target)
        return given_pairs.attend(self.model, self.params, self.codec, source, target)


def _combine(
    translators: Sequence[Translator], weights: Sequence[float] | None = None
) -> Models:
    """Put the models of single translators together, the first of which says what the
    others must agree in.

    Raises:
        InputError: there is none, they do not read and write the same tokens, or the
            weights do not fit.
    """
    if not translators:
        raise InputError("an ensemble needs a translator: give at least one")
    if weights is not None:
        check_weights(weights, len(translators))
    for number, other in enumerate(translators[1:], start=2):
        _check_partner(translators[0], other, number)
    return Models(
        tuple(each.model for each in translators),
        tuple(each.params for each in translators),
        None if weights is None else np.asarray(weights, np.float32),
    )


def _check_partner(first: Translator, other: Translator, number: int) -> None:
    """Refuse a model that reads or writes other tokens than the first of an ensemble.

    Raises:
        InputError: one is an ensemble, or vocabularies, what is added to sources, or
            columns of the output differ.
    """
    if len(first.models.models) > 1 or len(other.models.models) > 1:
        raise InputError(
            "an ensemble is put together at once: give its models, not another ensemble"
            " of some"
        )
    own, others = first.vocabularies.hash, other.vocabularies.hash
    if own != others:
        raise InputError(
            f"model {number} of the ensemble has another vocabulary (hash"
            f" {others[:12]}) than the first ({own[:12]}): train both with one, by the"
            " same vocabulary files in their directories"
        )
    before, after = (
        {
            "data.source_eos": each.source_eos,
            "the language tag": each.vocabularies.source.pieces(each.codec.before),
            "model.vocabulary_size": each.model.config.vocabulary_size,
            "model.pad_id": each.model.config.pad_id,
            "model.bos_id": each.model.config.bos_id,
        }
        for each in (first, other)
    )
    for name, value in before.items():
        if after[name] != value:
            raise InputError(
                f"the first model of the ensemble has {name} {value} and model {number}"
                f" has {after[name]}: put models together that agree in it"
            )
