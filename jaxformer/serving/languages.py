"""The languages of a server as the protocols of others write them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxformer.data.language_codes import find_model_language, read_code, same_language
from jaxformer.interop.argos_languages import describe_language
from jaxformer.serving.errors import ServingError
from jaxformer.serving.schema import wrong
from jaxformer.translation.text.text import Query, Translated

if TYPE_CHECKING:
    from jaxformer.serving.engine import TranslationEngine
    from jaxformer.serving.service import Service


_LONGEST_CODE = 35  # BCP 47
_ALIASES = {"pb": "pt-BR", "zt": "zh-Hant"}  # LibreTranslate's older codes


class Source(NamedTuple):
    """The language of a text, and the probability that it is the one."""

    code: str
    probability: float


def name_language(code: str) -> str:
    """Return the English name of a language."""
    return describe_language(code)[1]


@functools.cache
def write_code(code: str) -> str:
    """Return the code of a run's language as LibreTranslate writes it.

    Example:
        >>> [write_code(code) for code in ("deu_Latn", "pt_BR", "zho_Hant", "kas_Deva")]
        ['de', 'pt-BR', 'zh-Hant', 'ks-Deva']
    """
    found = read_code(code)
    if found.language == "zh" or not same_language(found.language, code):
        return f"{found.language}-{found.script}"
    if (found.language, found.region) == ("pt", "BR"):
        return "pt-BR"
    return found.language


def write_target(code: str) -> str:
    """Return the code of a run's language as DeepL writes that of a translation."""
    return write_code(code).upper()


def write_source(code: str) -> str:
    """Return the code of a run's language as DeepL writes that of a text."""
    return write_target(code).partition("-")[0]


def list_codes(
    service: Service, field: str, write: Callable[[str], str] = str
) -> list[str]:
    """Return the codes of what a field, such as ``source`` or ``target_lang``, may be.

    Args:
        service: of some pairs of languages.
        field: its name begins with the side of the pairs.
        write: writes the code of a run's language.
    """
    place = ("source", "target").index(field.partition("_")[0])
    return sorted({write(pair[place]) for pair in service.engines})


def find_language(
    service: Service, field: str, code: str, write: Callable[[str], str] = write_code
) -> str:
    """Return the code by which the runs know a language.

    Raises:
        ServingError: the server does not have it; says which codes the field may have,
            as ``write`` writes them.
    """
    asked, found = _ALIASES.get(code.lower(), code), None
    if len(code) <= _LONGEST_CODE:
        found = find_model_language(asked, service.languages)
    if found is None:
        names = ", ".join(list_codes(service, field, write))
        shown = code[:_LONGEST_CODE]
        raise wrong(field, f"one of {names}", shown, "unknown_language")
    return found


def find_engine(service: Service, pair: tuple[str, str]) -> TranslationEngine:
    """Return the engine of a pair of languages of the runs.

    Raises:
        ServingError: nothing translates the pair; in the words of LibreTranslate.
    """
    if pair in service.engines:
        return service.engines[pair]
    source, target = (f"{name_language(code)} ({write_code(code)})" for code in pair)
    fault = f"{target} is not available as a target language from {source}"
    given = write_code(pair[1])
    raise ServingError(400, "unknown_pair", fault, field="target", given=given)


async def find_source(service: Service, field: str, texts: Sequence[str]) -> Source:
    """Return the language that texts are in: that of the runs if all have the same.

    Raises:
        ServingError: there are several, and no package to tell them apart.
    """
    sources = list_codes(service, "source")
    try:
        ranked = await service.detect("\n".join(texts))
    except ServingError as error:
        if sources[1:]:
            raise ServingError(400, error.code, error.message, field=field) from None
        return Source(sources[0], 0.0)
    if sources[1:]:
        return Source(*ranked[0])
    return Source(sources[0], dict(ranked).get(sources[0], 0.0))


async def translate(
    service: Service, texts: Sequence[str], source: str, target: str, **options: Any
) -> list[Translated]:
    """Translate texts of one language. What is in the target language stays as it is.

    Args:
        service: that translates.
        texts: to translate.
        source: code of a run.
        target: code of a run.
        options: of each :class:`Query`.

    Raises:
        ServingError: nothing translates the pair, or a text is refused.
    """
    if source == target:
        return [Translated(text, [], [], [], source) for text in texts]
    find_engine(service, (source, target))
    queries = [Query(text, source, target, **options) for text in texts]
    return await service.translate(queries)
