"""One language under the codes of models and data sets: ``deu_Latn`` is ``de_DE``.

A code is that of ISO 639-1, 639-2 or 639-3, then perhaps a script of ISO 15924 and a
region, in any case and joined by ``_`` or ``-``.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from jaxformer.errors import InputError

# ISO 639-1 and the code of ISO 639-3.
_ISO_639 = """
    aa:aar ab:abk ae:ave af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze
    ba:bak be:bel bg:bul bi:bis bm:bam bn:ben bo:bod br:bre bs:bos ca:cat ce:che ch:cha
    co:cos cr:cre cs:ces cu:chu cv:chv cy:cym da:dan de:deu dv:div dz:dzo ee:ewe el:ell
    en:eng eo:epo es:spa et:est eu:eus fa:fas ff:ful fi:fin fj:fij fo:fao fr:fra fy:fry
    ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau he:heb hi:hin ho:hmo hr:hrv ht:hat
    hu:hun hy:hye hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido is:isl it:ita
    iu:iku ja:jpn jv:jav ka:kat kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor
    kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao
    lt:lit lu:lub lv:lav mg:mlg mh:mah mi:mri mk:mkd ml:mal mn:mon mr:mar ms:msa mt:mlt
    my:mya na:nau nb:nob nd:nde ne:nep ng:ndo nl:nld nn:nno no:nor nr:nbl nv:nav ny:nya
    oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus pt:por qu:que rm:roh
    rn:run ro:ron ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag sh:hbs si:sin sk:slk
    sl:slv sm:smo sn:sna so:som sq:sqi sr:srp ss:ssw st:sot su:sun sv:swe sw:swa ta:tam
    te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi
    ty:tah ug:uig uk:ukr ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid
    yo:yor za:zha zh:zho zu:zul
"""

# Languages of ISO 639-3 that go by the code of their macrolanguage (not the dialects of
# Arabic, nor South Azerbaijani and Dari); Filipino, Tagalog in M2M-100 and NLLB.
_OTHERS = """
    ar:arb ay:ayr az:azj et:ekk fa:pes ff:fuv gn:gug iu:ike kr:knc ku:kmr kv:kpv lv:lvs
    mg:plt mn:khk ms:zlm ms:zsm ne:npi om:gaz or:ory ps:pbt ps:pbu qu:quy qu:quz sq:als
    sw:swh uz:uzn yi:ydd zh:cmn tl:fil
"""

# Other codes of one language: withdrawn ones; M2M-100's ns for Northern Sotho, which
# has three letters; and the bibliographic codes of ISO 639-2.
_ALIASES = """
    he:iw id:in yi:ji jv:jw nso:ns
    bo:tib cs:cze cy:wel de:ger el:gre eu:baq fa:per fr:fre hy:arm is:ice ka:geo mi:mao
    mk:mac ms:may my:bur nl:dut ro:rum sk:slo sq:alb zh:chi
"""

# The script of a code that names none, where a model has the language in several.
_SCRIPTS = """
    ace:Latn az:Latn bjn:Latn bs:Latn ja:Jpan kk:Cyrl ko:Hang kr:Latn ks:Arab ku:Latn
    min:Latn mn:Cyrl ms:Latn sr:Cyrl taq:Latn tg:Cyrl tk:Latn tt:Cyrl ug:Arab uz:Latn
    zh:Hans
"""


def _rows(table: str) -> list[list[str]]:
    return [row.split(":") for row in table.split()]


_SHORT = {code: short for short, code in _rows(_ISO_639 + _OTHERS + _ALIASES)}
_SCRIPT = {row[0]: row[1] for row in _rows(_SCRIPTS)}
_SEVERAL = {row[0] for row in _rows(_OTHERS + _SCRIPTS)}
_PARTS = re.compile(
    r"(?P<language>[a-z]{2,3})([-_](?P<script>[a-z]{4}))?"
    r"([-_](?P<region>[a-z]{2}|\d{3}))?",
    re.IGNORECASE,
)


class Code(NamedTuple):
    """The parts of a code of a language; None: it names none."""

    language: str
    script: str | None
    region: str | None


def short_code(code: str) -> str:
    """Return the code of a language as most data sets and tools write it: that of ISO
    639-1 with two letters if there is one, else that of ISO 639-3.

    Example:
        >>> [short_code(code) for code in ("deu_Latn", "pt_BR", "arb_Arab", "ceb")]
        ['de', 'pt', 'ar', 'ceb']
    """
    return read_code(code).language


def same_language(code: str, other: str) -> bool:
    """Return whether two codes may mean one language: nothing that both name differs.

    Example:
        >>> same_language("zho_Hans", "zh"), same_language("zho_Hant", "zh")
        (True, False)
    """
    return find_language(code, (other,)) is not None


def find_language(code: str, known: Collection[str]) -> str | None:
    """Return the one of the known codes that means a language, None if none or several
    do.

    Example:
        >>> find_language("zho_Hans", ["en", "zh-cn", "zh-tw"])
        'zh-cn'
    """
    return code if code in known else _find(code, tuple(known))


@functools.lru_cache(1024)  # each record of a data set asks for its fields
def _find(code: str, known: tuple[str, ...]) -> str | None:
    asked = read_code(code)
    found = [name for name in known if _agree(asked, read_code(name))]
    for choose in (
        lambda own: own == asked,
        lambda own: own.language == asked.language,
        lambda own: own.region is None,
    ):
        found = [name for name in found if choose(read_code(name))] or found
    found = [name for name in found if _names_script(name)] or found
    return found[0] if len(found) == 1 else None


def find_model_language(code: str, known: Collection[str]) -> str | None:
    """Return the code by which a model knows a language, in any of its regions if the
    model has only one; None if it has none or several.

    Example:
        >>> find_model_language("ar_EG", ["ar_AR", "zh_CN"])
        'ar_AR'
        >>> find_model_language("zh_TW", ["ar_AR", "zh_CN"])  # of another script
    """
    found = read_code(code)
    anywhere = "_".join(filter(None, (found.language, found.script)))
    return find_language(code, known) or find_language(anywhere, known)


def describe_choices(asked: Iterable[str | None], found: Iterable[str]) -> list[str]:
    """Return a note for each language of a model that is not in the region asked for,
    or that is one of the languages and scripts that a code may mean.

    Example:
        >>> describe_choices(["zh", "pt-br", "de"], ["cmn_Hans", "pt", "deu_Latn"])
        ['zh is read as cmn_Hans', 'there is no pt-br: pt is used']
    """
    notes = []
    for code, name in zip(asked, found, strict=True):
        if code is None or code.lower() == name.lower():
            continue
        wanted, own = read_code(code), read_code(name)
        may_be_others = wanted.language != own.language or own.language in _SEVERAL
        if wanted.region not in (None, own.region):
            notes.append(f"there is no {code}: {name} is used")
        elif may_be_others and not _names_script(code):
            notes.append(f"{code} is read as {name}")
    return notes


def _names_script(code: str) -> bool:
    parts = _PARTS.fullmatch(code)
    return bool(parts and parts["script"])


def _agree(one: Code, other: Code) -> bool:
    # Bokmål goes by the code of Norwegian too.
    languages = {"no" if x.language == "nb" else x.language for x in (one, other)}
    return len(languages) == 1 and all(
        own is None or its is None or own == its
        for own, its in zip(one[1:], other[1:], strict=True)
    )


@functools.lru_cache(1024)
def read_code(code: str) -> Code:
    """Split a code, and complete its script; other words are languages as they are."""
    parts = _PARTS.fullmatch(code)
    if parts is None:
        return Code(code, None, None)
    language = parts["language"].lower()
    language = _SHORT.get(language, language)
    region = (parts["region"] or "XX").upper()
    usual = _SCRIPT.get(language)
    if language == "zh" and region in ("HK", "MO", "TW"):
        usual = "Hant"
    script = parts["script"] or usual
    # mBART's XX is no region.
    return Code(language, script and script.title(), None if region == "XX" else region)


def unknown_language(language: str, known: Collection[str]) -> InputError:
    """Return the error of a language that a vocabulary has no piece for, with the five
    nearest codes: those of the language, those that begin as it does, then those with
    most letters in common.
    """
    if not known:
        return InputError(
            f"the vocabulary has no languages, and {language!r} is asked for: leave it"
            " out"
        )

    def distance(code: str) -> tuple[bool, bool, float, str]:
        ratio = difflib.SequenceMatcher(None, language, code).ratio()
        other = short_code(code) != short_code(language)
        return other, not code.startswith(language[:2]), -ratio, code

    nearest = ", ".join(sorted(known, key=distance)[:5])
    return InputError(
        f"the vocabulary has no language {language!r}; the nearest of its {len(known)}"
        f" are {nearest}"
    )
