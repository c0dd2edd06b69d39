"""Codes and English names of languages, as Argos Translate has them."""

from __future__ import annotations

import re

# The code of ISO 639-1 or, without one, 639-3; other codes of models: ISO 639-3, and
# the individual language that stands for a macrolanguage; the English name (CLDR). pb
# and zt are Argos's own.
_LANGUAGES = """
    aa aar Afar; ab abk Abkhazian; ae ave Avestan; af afr Afrikaans; ak aka Akan;
    am amh Amharic; an arg Aragonese; ar ara arb Arabic; as asm Assamese; ast Asturian;
    av ava Avaric; ay aym ayr Aymara; az aze azj Azerbaijani; ba bak Bashkir;
    be bel Belarusian; bg bul Bulgarian; bi bis Bislama; bm bam Bambara; bn ben Bangla;
    bo bod Tibetan; br bre Breton; bs bos Bosnian; ca cat Catalan; ce che Chechen;
    ceb Cebuano; ch cha Chamorro; ckb Central Kurdish; co cos Corsican; cr cre Cree;
    cs ces Czech; cu chu Church Slavic; cv chv Chuvash; cy cym Welsh; da dan Danish;
    de deu German; dv div Divehi; dz dzo Dzongkha; ee ewe Ewe; el ell Greek;
    en eng English; eo epo Esperanto; es spa Spanish; et est ekk Estonian;
    eu eus Basque; fa fas pes Persian; ff ful fuv Fula; fi fin Finnish; fj fij Fijian;
    fo fao Faroese; fr fra French; fy fry Western Frisian; ga gle Irish;
    gd gla Scottish Gaelic; gl glg Galician; gn grn gug Guarani; gu guj Gujarati;
    gv glv Manx; ha hau Hausa; he heb Hebrew; hi hin Hindi; ho hmo Hiri Motu;
    hr hrv Croatian; ht hat Haitian Creole; hu hun Hungarian; hy hye Armenian;
    hz her Herero; ia ina Interlingua; id ind Indonesian; ie ile Interlingue;
    ig ibo Igbo; ii iii Sichuan Yi; ik ipk esk Inupiaq; ilo Iloko; io ido Ido;
    is isl Icelandic; it ita Italian; iu iku Inuktitut; ja jpn Japanese;
    jv jav Javanese; ka kat Georgian; kg kon Kongo; ki kik Kikuyu; kj kua Kuanyama;
    kk kaz Kazakh; kl kal Kalaallisut; km khm Khmer; kn kan Kannada; ko kor Korean;
    kr kau knc Kanuri; ks kas Kashmiri; ku kur kmr Kurdish; kv kom Komi; kw cor Cornish;
    ky kir Kyrgyz; la lat Latin; lb ltz Luxembourgish; lg lug Ganda; li lim Limburgish;
    ln lin Lingala; lo lao Lao; lt lit Lithuanian; lu lub Luba-Katanga;
    lv lav lvs Latvian; mg mlg plt Malagasy; mh mah Marshallese; mi mri Māori;
    mk mkd Macedonian; ml mal Malayalam; mn mon khk Mongolian; mr mar Marathi;
    ms msa zsm Malay; mt mlt Maltese; my mya Burmese; na nau Nauru;
    nb nob Norwegian Bokmål; nd nde North Ndebele; ne nep npi Nepali; ng ndo Ndonga;
    nl nld Dutch; nn nno Norwegian Nynorsk; no nor Norwegian; nr nbl South Ndebele;
    nso ns Northern Sotho; nv nav Navajo; ny nya Nyanja; oc oci Occitan; oj oji Ojibwa;
    om orm gaz Oromo; or ori ory Odia; os oss Ossetic; pa pan Punjabi;
    pb Portuguese (Brazil); pi pli Pali; pl pol Polish; ps pus pbt Pashto;
    pt por Portuguese; qu que quy Quechua; rm roh Romansh; rn run Rundi;
    ro ron Romanian; ru rus Russian; rw kin Kinyarwanda; sa san Sanskrit;
    sc srd Sardinian; sd snd Sindhi; se sme Northern Sami; sg sag Sango;
    sh hbs Serbo-Croatian; si sin Sinhala; sk slk Slovak; sl slv Slovenian;
    sm smo Samoan; sn sna Shona; so som Somali; sq sqi als Albanian; sr srp Serbian;
    ss ssw Swati; st sot Southern Sotho; su sun Sundanese; sv swe Swedish;
    sw swa swh Swahili; ta tam Tamil; te tel Telugu; tg tgk Tajik; th tha Thai;
    ti tir Tigrinya; tk tuk Turkmen; tl tgl Tagalog; tn tsn Tswana; to ton Tongan;
    tr tur Turkish; ts tso Tsonga; tt tat Tatar; tw twi Twi; ty tah Tahitian;
    ug uig Uyghur; uk ukr Ukrainian; ur urd Urdu; uz uzb uzn Uzbek; ve ven Venda;
    vi vie Vietnamese; vo vol Volapük; wa wln Walloon; wo wol Wolof; xh xho Xhosa;
    yi yid ydd Yiddish; yo yor Yoruba; yue Cantonese; za zha Zhuang; zh zho cmn Chinese;
    zt Chinese (traditional); zu zul Zulu
"""

_REGIONS = {
    "pt": ({"BR"}, "pb"),
    "zh": ({"HANT", "TW", "HK", "MO"}, "zt"),
}
"""Regions and scripts of a language that have a code of their own."""


def describe_language(code: str) -> tuple[str, str]:
    """Return the short code and the English name of a language.

    Args:
        code: of a run: ``de``, ``deu``, ``deu_Latn``, ``de_DE``, ``de-AT``.

    Returns:
        For example ``("de", "German")``. An unknown language keeps its code, which is
        also its name.
    """
    first, *others = re.split("[_-]", code)
    found = _find(first.lower())
    if found is None:
        return code, code
    regions, own = _REGIONS.get(found[0], (set(), ""))
    if regions & {each.upper() for each in others}:
        found = _find(own) or found
    return found


def _find(code: str) -> tuple[str, str] | None:
    for entry in _LANGUAGES.split(";"):
        codes, name = re.split(r" (?=[A-Z])", entry.strip(), maxsplit=1)
        if code in codes.split():
            return codes.split()[0], name
    return None
