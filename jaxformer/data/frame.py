"""The tokens around the text of a sentence pair.

A run trained here begins a source with the tag of its target language, if it has
several, and ends both sides with the end of sentence. Encoder-only models and
imported models have other frames, which their vocabulary keeps as templates of strings
in ``frame.json``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer.errors import InputError
from jaxformer.files import parse_json, write_whole

if TYPE_CHECKING:
    from jaxformer.data.config import DataConfig
    from jaxformer.data.vocabulary import Vocabularies, Vocabulary

FILE = "frame.json"
"""Its name in a folder of vocabularies; a run of sentence pairs trained here has
none.
"""

TEXT, TEXT2, SOURCE, TARGET = "{text}", "{text2}", "{source}", "{target}"
UNKNOWN = ("source", "target")
"""The languages of an imported run that does not know them."""

_SPECIAL = ("{pad}", "{unk}", "{bos}", "{eos}")


@dataclasses.dataclass(frozen=True)
class Frame:
    """The tokens around a source and a target, in one direction of translation.

    Attributes:
        source_before: tokens before the text of a source.
        source_after: tokens after it.
        target_before: tokens before the text of a target. A search generates them
            first, at no cost.
        start: the decoder's first input.
        end: ends a target.
        banned: sequences of target tokens that are never generated.
        source_between: tokens between the two texts of a source; None: it has one.
    """

    source_before: tuple[int, ...]
    source_after: tuple[int, ...]
    target_before: tuple[int, ...]
    start: int
    end: int
    banned: tuple[tuple[int, ...], ...] = ()
    source_between: tuple[int, ...] | None = None

    @property
    def added(self) -> int:
        """Number of tokens that are added to the text of a source, of one text."""
        return len(self.source_before) + len(self.source_after)

    @property
    def added_to_two(self) -> int:
        """Number of tokens that are added to two texts.

        Raises:
            InputError: a source has one.
        """
        return self.added + len(self.between)

    @property
    def between(self) -> tuple[int, ...]:
        """Tokens between the two texts of a source.

        Raises:
            InputError: a source has one.
        """
        if self.source_between is None:
            raise InputError(
                "there are two texts, and the vocabulary's frame.json has no place for"
                " a second one ({text2}): give one text, or import a model that has it"
            )
        return self.source_between

    def row(
        self, text: Iterable[int], second: Iterable[int] | None = None
    ) -> list[int]:
        """Put the tokens of a text, or of two, into the frame of a source.

        Raises:
            InputError: a source has one text, and two are given.
        """
        if second is not None:
            text = [*text, *self.between, *second]
        return [*self.source_before, *text, *self.source_after]


@dataclasses.dataclass(frozen=True)
class Template:
    """The frames of all directions.

    A part is ``{text}``, a second text (``{text2}``), the piece of a language
    (``{source}``, ``{target}``), or a special token (``{pad}``, ``{unk}``, ``{bos}``,
    ``{eos}``).

    Attributes:
        source: parts of a source: ``{text}`` once, and after it perhaps ``{text2}``.
            Without a second text it and the parts between the two are left out.
        target: parts of a target: ``{text}`` once, and ``{eos}`` at the end.
        start: the part that is the decoder's first input.
        banned: sequences of target tokens that are never generated.

    Raises:
        InputError: the parts of a side are not such.
    """

    source: tuple[str, ...] = (TEXT, "{eos}")
    target: tuple[str, ...] = (TEXT, "{eos}")
    start: str = "{bos}"
    banned: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        """Check the parts of both sides."""
        parts = {TEXT, SOURCE, TARGET, *_SPECIAL}
        others = [part for part in self.source if part != TEXT2]
        for part in (*others, *self.target, self.start):
            if part not in parts:
                raise InputError(f"a frame has no part {part!r}")
        for side in (self.source, self.target):
            if side.count(TEXT) != 1:
                raise InputError(f"a frame has {TEXT} once a side, not {list(side)}")
        if TEXT2 in self.source[: self.source.index(TEXT)] or (
            self.source.count(TEXT2) > 1
        ):
            raise InputError(
                f"a frame has {TEXT2} once, after {TEXT}, not {list(self.source)}"
            )
        if self.target[-2:] != (TEXT, "{eos}"):
            raise InputError(
                f"a target ends with {TEXT} and {{eos}}, not {list(self.target)}"
            )

    @property
    def has_source(self) -> bool:
        """Whether tokens depend on the language that is translated from."""
        return SOURCE in (*self.source, *self.target, self.start)

    @property
    def has_target(self) -> bool:
        """Whether tokens depend on the language that is translated into."""
        return TARGET in (*self.source, *self.target, self.start)

    def fill(self, vocabularies: Vocabularies, languages: tuple[str, str]) -> Frame:
        """Return the frame of a direction.

        Args:
            vocabularies: of source and target.
            languages: codes of source and target.

        Raises:
            InputError: an unknown language.
        """

        def find(parts: Sequence[str], side: Vocabulary) -> tuple[int, ...]:
            return tuple(_find(part, side, languages) for part in parts)

        source, target = vocabularies.source, vocabularies.target
        place = self.source.index(TEXT)
        after, between = self.source[place + 1 :], None
        if TEXT2 in after:
            second = after.index(TEXT2)
            after, between = after[second + 1 :], find(after[:second], source)
        return Frame(
            find(self.source[:place], source),
            find(after, source),
            find(self.target[:-2], target),
            _find(self.start, target, languages),
            target.eos_id,
            self.banned,
            between,
        )

    def to_json(self) -> str:
        """Return the content of the file."""
        record = {
            name: value for name, value in dataclasses.asdict(self).items() if value
        }
        return f"{json.dumps(record, indent=2, ensure_ascii=False)}\n"

    @property
    def hash(self) -> str:
        """SHA-256 of the file, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Write ``frame.json``, whole or not at all."""
        write_whole(directory / FILE, self.to_json())

    @classmethod
    def load(cls, directory: Path) -> Template | None:
        """Read ``frame.json`` of a folder of vocabularies; None where there is none."""
        path = directory / FILE
        return cls.from_json(path.read_bytes()) if path.exists() else None

    @classmethod
    def from_json(cls, content: str | bytes) -> Template:
        """Read what :meth:`to_json` wrote."""
        record: Any = parse_json(content)
        record["banned"] = tuple(map(tuple, record.get("banned", ())))
        for side in ("source", "target"):
            record[side] = tuple(record[side])
        return cls(**record)


ENCODER = Template(source=("{bos}", TEXT, "{eos}", TEXT2, "{eos}"))
"""The frame of encoder-only models that are trained here, as in BERT."""


def make_frame(
    vocabularies: Vocabularies,
    languages: tuple[str, str],
    *,
    source_eos: bool = True,
    tag: str | None = None,
) -> Frame:
    """Return the frame of a direction, by the template of the vocabularies if they have
    one.

    Args:
        vocabularies: of source and target.
        languages: codes of source and target.
        source_eos: whether sources end with the end-of-sentence token.
        tag: the target language whose tag begins each source; None: no tag.

    Raises:
        InputError: the vocabulary has no such tag, or the template no such language.
    """
    template = vocabularies.template
    if template is None:
        before = () if tag is None else (TARGET,)
        after = ("{eos}",) if source_eos else ()
        template = Template(source=(*before, TEXT, *after))
        return template.fill(vocabularies, (languages[0], tag or languages[1]))
    source, target = (name_language(code, vocabularies) for code in languages)
    return template.fill(vocabularies, (source, target))


def _find(part: str, vocabulary: Vocabulary, languages: tuple[str, str]) -> int:
    """Return the token of a part."""
    if part in _SPECIAL:
        return getattr(vocabulary, f"{part[1:-1]}_id")
    return vocabulary.tag_id(languages[part == TARGET])


def name_language(code: str, vocabularies: Vocabularies) -> str:
    """Return the vocabulary's name of a language, ``en_XX`` or ``eng_Latn`` for ``en``,
    ``ar_AR`` for ``ar_EG``; an unknown code as it is.
    """
    from jaxformer.data.language_codes import find_model_language

    return find_model_language(code, vocabularies.source.languages) or code


def name_options(vocabularies: Vocabularies, languages: tuple[str, str]) -> list[str]:
    """Return the options by which an imported model learns from text in languages."""
    if (template := vocabularies.template) is None:
        return []
    flags = zip(("from", "to"), languages, strict=True)
    needed = template.has_source, template.has_target
    named = [
        f"--{flag}={x}" for (flag, x), has in zip(flags, needed, strict=True) if has
    ]
    return ["--source=FILE", "--reference=FILE", *named]


def choose_languages(
    directory: Path,
    data: DataConfig,
    vocabularies: Vocabularies,
    source: str | None,
    target: str | None,
) -> tuple[str, str]:
    """Return the languages that a run translates from and into, where others than its
    own may be asked for.

    Raises:
        InputError: the run has no such language.
    """
    if target is None:
        target = data.target_language
    elif data.language_tags:
        target = name_language(target, vocabularies)
    else:
        target = check_target(target, data, str(directory))
    source = source and name_language(source, vocabularies)
    return source or data.language_into(target), target


def check_target(target: str, data: DataConfig, name: str) -> str:
    """Return the only language that a run translates into, under its own code.

    Args:
        target: any code of it.
        data: the configuration of the run.
        name: of the run, for the error.

    Raises:
        InputError: it is another language.
    """
    from jaxformer.data.language_codes import same_language

    if not same_language(target, data.target_language):
        raise InputError(
            f"{name} translates only into {data.target_language}, not into {target!r}:"
            " leave it out, or take a run of several languages (data.language_tags)"
        )
    return data.target_language
