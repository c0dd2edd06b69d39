"""A trained run that translates, scores and shows its attention: text in, text out."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from jaxformer.data.frame import choose_languages, make_frame
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.models.base import Model
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.runs.folder import check_objective
from jaxformer.search.config import DecodingConfig, Precision
from jaxformer.translation.batch import ban as ban_tokens
from jaxformer.translation.codec import Codec
from jaxformer.translation.models import Models, combine, open_run, prepare_params
from jaxformer.translation.options import (
    Prefixes,
    Required,
    ResultOptions,
    SearchOptions,
    check_lists,
    check_results,
    check_text,
    choose_layer,
)
from jaxformer.translation.results import Attention, Hypothesis, LongSources, PairScore
from jaxformer.translation.stream import LineSearch
from jaxformer.typing import PyTree

if TYPE_CHECKING:
    from jaxformer.data.records import Pair
    from jaxformer.translation.shortlist import Shortlist

# Full batches of a window: sorting so many by length leaves 3% more padding than
# sorting all sentences; a quarter of them leaves 14%.
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
        checkpoint: int | str | None = None,
        directory: Path | None = None,
    ) -> None:
        """Build a translator from its parts; :meth:`load` reads them from a run.

        Args:
            config: of the model. Scanned layers become a loop for decoding.
            params: of the model.
            vocabularies: of source and target.
            decoding: how to search.
            source_eos: whether sources end with the end-of-sentence token.
            tag: the language to translate into, if sources begin with its tag.
            source_language: code, for the abbreviations of paragraphs; empty: unknown.
            target_language: code; empty: unknown.
            trained_length: most tokens of a source in training, those added to it
                included; longer sources are cut. None: the model's positions.
            checkpoint: name of the parameters.
            directory: of the run.

        Raises:
            InputError: the vocabulary has no such tag, or the model no such language.
        """
        languages = source_language, target_language
        frame = make_frame(vocabularies, languages, source_eos=source_eos, tag=tag)
        config = dataclasses.replace(config, bos_id=frame.start)
        if config.scan_layers:
            from jaxformer.models.stacking import unstack_layers

            config = dataclasses.replace(config, scan_layers=False)
            params = unstack_layers(params)
        if config.attention_backend != "plain":
            # The machine that trained may have had another kernel.
            config = dataclasses.replace(config, attention_backend="auto")
        self.models = Models((make_model(config),), (params,))
        self.vocabularies = vocabularies
        self.decoding = decoding
        self.source_eos = source_eos
        self.codec = Codec(
            vocabularies, self.models.positions, frame, source_language, trained_length
        )
        self.languages = languages
        """Codes of source and target; empty: unknown."""
        self.checkpoint = checkpoint
        self.directory = directory
        self.shortlist: Shortlist | None = None
        """The target tokens of :meth:`search`; probabilities are those among them."""

    @classmethod
    def ensemble(
        cls, translators: Sequence[Translator], weights: Sequence[float] | None = None
    ) -> Translator:
        """Combine translators of one vocabulary, whose models predict each token
        together. The first sets how to search, and its model has the :meth:`attention`.

        Args:
            translators: single ones; their models may differ in size and dtype.
            weights: of the models, at least 0; None: all equal.

        Raises:
            InputError: there is no translator, or they read or write other tokens.
        """
        models = combine(
            [each.models for each in translators],
            [each.codec for each in translators],
            weights,
        )
        together = copy.copy(translators[0])
        together.models = models
        together.codec = dataclasses.replace(
            together.codec,
            positions=models.positions,
            trained=min(
                (each.codec.longest for each in translators if each.codec.trained),
                default=None,
            ),
        )
        names = [
            f"{f'{each.directory.name}@' if each.directory else ''}{each.checkpoint}"
            for each in translators
        ]
        for place, weight in enumerate(weights or ()):
            names[place] = f"{weight:g}*{names[place]}"
        if len(names) > 1:
            together.checkpoint = " + ".join(names)
        return together

    @property
    def models(self) -> Models:
        """The model with its parameters, or those of an ensemble."""
        return self._models

    @models.setter
    def models(self, models: Models) -> None:
        """Replace them, in every precision."""
        self._models = models
        self._prepared: dict[Precision, Models] = {}

    def prepare(self, precision: Precision) -> Models:
        """Return the models in a precision; those of the last one are kept."""
        if precision not in self._prepared:
            self._prepared = {precision: self.models.prepare(precision)}
        return self._prepared[precision]

    @property
    def model(self) -> Model:
        """The model, or the first of an ensemble."""
        return self.models.models[0]

    @property
    def params(self) -> PyTree:
        """The parameters of :attr:`model`, a tree of arrays."""
        return self.models.params[0]

    @classmethod
    def load(
        cls,
        directory: str | Path,
        checkpoint: str | int = "best",
        target_language: str | None = None,
        source_language: str | None = None,
        precision: Precision | None = None,
        objective: str = "translation",
    ) -> Translator:
        """Read a run's configuration, vocabularies and parameters.

        Args:
            directory: of the run; on the disk or in a bucket (``gs://bucket/run``).
            checkpoint: ``best``, ``latest``, a step, ``average`` or ``average/NAME``.
            target_language: None: that of the run. Another one needs a run with
                ``data.language_tags=True``.
            source_language: None: that of the run. Another one is for imported models
                whose input names it.
            precision: keep the weights only in this precision, which takes less memory:
                searches in another one are refused, and scores and attention are of
                these weights. None: as they were saved.
            objective: that the run must have been trained for.

        Raises:
            InputError: there is no such run, checkpoint or language, or its parts do
                not belong together.
        """
        directory, config, saved, vocabularies = open_run(
            directory, checkpoint, functools.partial(check_objective, wanted=objective)
        )
        source, target = choose_languages(
            directory, config.data, vocabularies, source_language, target_language
        )
        if config.model.scan_layers:
            precision = None  # they are unstacked first
        found = cls(
            config.model,
            saved.load(
                abstract_parameters(config.model),
                precision
                and functools.partial(prepare_params, config.model, precision),
            ),
            vocabularies,
            config.decoding,
            source_eos=config.data.source_eos,
            tag=target if config.data.language_tags else None,
            source_language=source,
            target_language=target,
            trained_length=config.data.max_length,
            checkpoint=saved.name,
            directory=directory,
        )
        found.models = found.models._replace(precision=precision)
        return found

    def translate(
        self, texts: Sequence[str], **options: Unpack[SearchOptions]
    ) -> list[str]:
        """Translate sentences: one string for each, in order. Blank ones stay empty.

        Args:
            texts: sentences.
            **options: see :class:`~jaxformer.translation.options.SearchOptions`.

        Raises:
            InputError: as :meth:`search`.
        """
        return [hypotheses[0].text for hypotheses in self.search(texts, **options)]

    def search(
        self,
        texts: Sequence[str],
        *,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int], None] = lambda _: None,
        notice: Callable[[LongSources], None] = LongSources.warn,
        **options: Unpack[ResultOptions],
    ) -> list[list[Hypothesis]]:
        """Return the translations of each sentence, the best first; samples in the
        order in which they were drawn.

        Args:
            texts: sentences.
            stop: called between batches; True leaves the other sentences without
                hypotheses.
            progress: called after each batch with the number of completed sentences.
            notice: called at the end if sentences are longer than in training; by
                default a :class:`~jaxformer.errors.LongSourceWarning`.
            **options: see :class:`~jaxformer.translation.options.ResultOptions`, with
                prefixes and lists of required phrases for each sentence.

        Raises:
            InputError: a sentence is longer than the model's positions, or an argument
                is out of range. Nothing is translated then.
        """
        search = self.line_search(texts, window=max(1, len(texts)), **options)
        return list(search.stream(texts, stop=stop, progress=progress, notice=notice))

    def stream(
        self,
        texts: Iterable[str],
        *,
        window: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
        notice: Callable[[LongSources], None] = LongSources.warn,
        pause: Callable[[], bool] = lambda: False,
        **options: Unpack[ResultOptions],
    ) -> Iterator[list[Hypothesis]]:
        """Yield what :meth:`search` returns, for a stream of any length in bounded
        memory.

        A window of texts is read, sorted by length and translated before the next one.
        A text that is refused ends the stream after the windows before it.

        Args:
            texts: sentences.
            window: most sentences that are read at a time, by default 64 batches; 1
                answers each sentence before it reads the next.
            progress: called after each batch with the number of completed sentences.
            notice: as of :meth:`search`.
            pause: called after each text is read; True translates what was read before
                the next one.
            **options: see :class:`~jaxformer.translation.options.ResultOptions`.
                Prefixes and required phrases are read along with the texts.

        Raises:
            InputError: at once, an argument is out of range; from the stream, a
                sentence is longer than the model's positions, or there are more
                prefixes than sentences or fewer.
        """
        search = self.line_search(texts, window=window, **options)
        return search.stream(texts, progress=progress, notice=notice, pause=pause)

    def line_search(
        self,
        texts: object = (),
        *,
        window: int | None = None,
        decoding: DecodingConfig | None = None,
        beam_size: int | None = None,
        alpha: float | None = None,
        ban: Sequence[str] = (),
        prefixes: Prefixes = None,
        required: Required = None,
        paragraphs: bool = False,
        n_best: int = 1,
        alignment: bool = False,
        alignment_layer: int | None = None,
        format: Literal["text", "html"] = "text",
        glossary: Mapping[str, str] | None = None,
        placeholders: bool = False,
    ) -> LineSearch:
        """Return the search of a call, whose steps may also be taken one by one. The
        options are those of :class:`~jaxformer.translation.options.ResultOptions`.

        Raises:
            InputError: an argument is out of range; no text is read.
        """
        check_lists(texts, ban, prefixes, required)
        changes = {"beam_size": beam_size, "alpha": alpha}
        changes = {name: each for name, each in changes.items() if each is not None}
        decoding = dataclasses.replace(decoding or self.decoding, **changes)
        needed = required if glossary is None else ()
        check_results(decoding, n_best, needed, window)
        models = self.prepare(decoding.precision)
        is_html = format == "html"
        search = LineSearch(
            models=models,
            aligner=self.models,
            codec=self.codec,
            shortlist=self.shortlist,
            decoding=decoding,
            n_best=n_best,
            banned=ban_tokens(
                decoding,
                [*map(list, self.codec.frame.banned), *self.codec.banned(ban)],
                self.vocabularies.target,
                self.model.config.vocabulary_size,
                surplus=self.vocabularies.template is not None,
            ),
            prefixes=prefixes,
            required=required,
            layer=choose_layer(
                alignment or is_html,
                alignment_layer,
                self.model.config.attention_layers,
            ),
            paragraphs=paragraphs or is_html,
            window=window or _BATCHES * decoding.batch_size * models.devices,
        )
        if not (is_html or glossary is not None or placeholders):
            return search
        from jaxformer.translation.text.search import TextSearch

        return TextSearch.of(
            search,
            glossary,
            format=format,
            placeholders=placeholders,
            alignment=alignment,
        )

    def score(self, pairs: Sequence[Pair]) -> list[PairScore]:
        """Return the log-probability of each target given its source.

        Raises:
            InputError: a sentence is longer than the model's positions, or not a
                string.
        """
        from jaxformer.translation import pairs as given_pairs

        return given_pairs.score(self.models, self.codec, pairs, self.decoding)

    def attention(self, source: str, target: str | None = None) -> Attention:
        """Return all attention weights of a pair; without a target, of the translation.

        Raises:
            InputError: a sentence is blank, not a string, or longer than the model's
                positions.
        """
        from jaxformer.translation import pairs as given_pairs

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
        return given_pairs.attend(self.models, self.codec, source, target)
