"""The languages of a server as the protocols of others write them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from jaxformer.data.language_codes import find_model_language, read_code, same_language
from jaxformer.interop.argos_languages import describe_language
from jaxformer.serving.errors import ServingError, replace_surrogates
from jaxformer.translation.text.html_text import Html
from jaxformer.translation.text.text import Query, Translated

if TYPE_CHECKING:
    from jaxformer.serving.engine import TranslationEngine
    from jaxformer.serving.service import Client, Service

_LONGEST_CODE = 35  # BCP 47
_ALIASES = {"pb": "pt-BR", "zt": "zh-Hant"}  # LibreTranslate's older codes

Engines: TypeAlias = "Mapping[tuple[str, str], TranslationEngine]"


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


def read_language(engines: Engines, field: str, code: str) -> str:
    """Return the code by which the runs know a language.

    Raises:
        ServingError: the server does not have it; says which it has.
    """
    asked, found = _ALIASES.get(code.lower(), code), None
    known = sorted({code for pair in engines for code in pair})
    if len(code) <= _LONGEST_CODE:
        found = find_model_language(asked, known)
    if found is None:
        shown = replace_surrogates(code[:_LONGEST_CODE])
        names = ", ".join(sorted({*map(write_code, known)}))
        fault = f"{field} must be one of {names}, not {shown!r}"
        raise ServingError(400, "unknown_language", fault, field=field, given=shown)
    return found


def find_engine(engines: Engines, source: str, target: str) -> TranslationEngine:
    """Return the engine of a pair of languages; an empty code is any language.

    Raises:
        ServingError: a language or the pair is unknown, or several pairs fit.
    """
    asked = {"source": source, "target": target}
    known = [read_language(engines, *own) if own[1] else "" for own in asked.items()]
    pairs = [
        pair
        for pair in engines
        if all(code in ("", own) for code, own in zip(known, pair, strict=True))
    ]
    if len(pairs) == 1:
        return engines[pairs[0]]
    empty = [name for name, code in asked.items() if not code]
    if pairs:
        fault, field = f"{empty[0]} is missing", empty[0]
    else:
        one, other = (code or "any language" for code in known)
        field = "target" if target else "source"
        fault = f"{field} must fit: nothing translates {one} to {other}"
    choices = ", ".join("-".join(pair) for pair in pairs or engines)
    raise ServingError(
        400,
        "missing" if pairs else "unknown_pair",
        f"{fault}; choose one of {choices}",
        field=field,
        given=asked[field] or None,
    )


async def translate_others(
    service: Service, queries: Sequence[Query], client: Client
) -> list[Translated]:
    """Translate texts; what is in the target language stays as it is."""
    asked = [query for query in queries if query.source != query.target]
    rest = iter(await service.translate(asked, client) if asked else [])
    return [
        Translated(query.text, [], [], [], query.source)
        if query.source == query.target
        else next(rest)
        for query in queries
    ]


async def find_pair(
    service: Service, named: Mapping[str, str], texts: Sequence[str], format: str
) -> tuple[str, str, float]:
    """Return the source and the target language of texts, which may be the same, and
    the probability of the source if that is not named: then it is the most probable
    that can be translated into the target language, or that itself.

    Args:
        service: that translates.
        named: what the request has as its source and as its target.
        texts: of the request.
        format: of the texts, whose markup has no language.

    Raises:
        ServingError: nothing translates the pair; in the words of LibreTranslate. Or
            the source is not named, there are several, and no package to tell them
            apart.
    """
    (field, source), (aim, target) = named.items()
    engines, probability = service.engines, 0.0
    target = read_language(engines, aim, target)
    if source:
        source = read_language(engines, field, source)
    else:
        text = "\n".join(texts)
        if format == "html":
            text = "\n".join(block.text for block in Html(text).blocks)
        sources = {source for source, _ in engines}
        try:
            ranked = await service.detect(text)
        except ServingError as error:
            if len(sources) > 1:
                why = error.code, error.message
                raise ServingError(400, *why, field=field) from None
            ranked = [(code, 0.0) for code in sources]
        if len(sources) > 1:
            sources = {source for source, own in engines if own == target} | {target}
        source, probability = next(own for own in ranked if own[0] in sources)
    if source != target and (source, target) not in engines:
        one, other = (
            f"{name_language(code)} ({write_code(code)})" for code in (source, target)
        )
        fault = f"{other} is not available as a target language from {one}"
        given = write_code(target)
        raise ServingError(400, "unknown_pair", fault, field=aim, given=given)
    return source, target, probability
