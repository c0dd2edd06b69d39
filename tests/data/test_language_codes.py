"""One language under the codes of models and data sets."""

from __future__ import annotations

import pytest

from jaxformer.data.language_codes import (
    describe_choices,
    find_language,
    find_model_language,
    same_language,
    short_code,
)
from jaxformer.interop.huggingface.language_lists import M2M100, MBART50, NLLB200

# What OPUS-MT has between >> and <<, old models first.
OPUS = """
    fr pt_br pt_BR zh_cn zh_TW es_MX fr_CA nb nn deu fra por cmn_Hans cmn_Hant cmn nob
    nno nor zsm_Latn srp_Cyrl srp_Latn fas pes arq ary uzb_Latn uzb_Cyrl tgl_Latn yue
""".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("code", "short"),
    [
        ("eng_Latn", "en"),
        ("cmn_Hans", "zh"),
        ("arb_Arab", "ar"),
        ("arz_Arab", "arz"),
        ("ns", "nso"),
        ("iw", "he"),
        ("", ""),
    ],
)
def test_a_short_code_has_two_letters_where_a_language_has_such(code, short):
    """Dialects of Arabic are no standard Arabic; other words stay as they are."""
    assert short_code(code) == short


def test_every_code_of_a_family_has_the_code_of_cldr():
    """But for what two codes of a family would then mean, and what CLDR lacks."""
    aliases = pytest.importorskip("babel.core").get_global("language_aliases")
    different = {}
    for code in (*NLLB200, *M2M100, *MBART50, *OPUS):
        own = code.split("_")[0]
        if short_code(code) != aliases.get(own, own):
            different[own] = short_code(code)
    # There tl is fil, twi is ak, and ajp (South Levantine Arabic) is apc.
    expected = "tgl:tl tl:tl twi:tw ajp:ajp prs:prs dik:dik fuv:ff pbt:ps quy:qu ns:nso"
    assert different == dict(row.split(":") for row in expected.split())


@pytest.mark.parametrize("family", [NLLB200, M2M100, MBART50])
def test_no_two_codes_of_a_family_mean_one_language(family):
    """Each finds itself, also with other letters' case and with a hyphen."""
    for code in family:
        others = [other for other in family if other != code]
        assert find_language(code, others) is None, code
        assert find_language(code.upper().replace("_", "-"), family) == code


def test_the_families_find_each_others_languages():
    """M2M-100 has Breton and Frisian, which NLLB has not; mBART-50 has Telugu."""
    missing = [code for code in M2M100 if find_language(code, NLLB200) is None]
    assert missing == ["br", "fy"]
    assert all(find_language(code, NLLB200) for code in MBART50)
    missing = [code for code in MBART50 if find_language(code, M2M100) is None]
    assert missing == ["te_IN"]
    missing = [code for code in OPUS if find_language(code, NLLB200) is None]
    assert missing == ["srp_Latn", "arq", "uzb_Cyrl"]


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        ("zh", NLLB200, "zho_Hans"),
        ("no", NLLB200, "nob_Latn"),
        ("nob_Latn", ["nn", "no"], "no"),
        ("zho_Hant", ["en", "zh"], None),
        ("pt_BR", ["pt", "pt-br"], "pt-br"),
        ("srp_Latn", ["sr"], None),
        ("deu_Latn", ["de-AT", "de-CH"], None),
        ("source", ["source_text"], None),
    ],
)
def test_a_language_is_found_by_what_its_codes_say(code, known, found):
    """Scripts and regions decide if both sides name them; of several nothing is found.
    Chinese, Serbian and Uzbek without a script have that of most text.
    """
    assert find_language(code, known) == found
    if len(known) == 1:
        assert same_language(code, known[0]) == (found is not None)


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        ("ar_EG", MBART50, "ar_AR"),
        ("zh_TW", MBART50, None),
        ("sr-Latn-RS", NLLB200, None),
        ("es_AR", ["es_ES", "es_MX"], None),
        ("es_AR", ["es", "es_MX"], "es"),
        ("tlh_DE", MBART50, None),
        ("zh", OPUS, "cmn_Hans"),
        ("zh-Hant", ["cmn", "cmn_Hans", "cmn_Hant"], "cmn_Hant"),
        ("PT-BR", ["pt", "pt_br", "pt_PT"], "pt_br"),
    ],
)
def test_a_model_translates_every_region_of_a_language_that_it_has_once(
    code, known, found
):
    """Another script, or a choice of regions, is not decided. Of several codes for the
    usual script, the one that names it is taken.
    """
    assert find_model_language(code, known) == found


@pytest.mark.parametrize(
    ("code", "found", "is_said"),
    [
        ("zh", "cmn_Hans", True),
        ("zh_Hans", "cmn_Hans", False),
        ("de", "deu_Latn", False),
        ("nso", "ns", False),
        ("DE", "de", False),
        (None, "cmn_Hans", False),
        ("pt-br", "pt", True),
        ("ar_EG", "ar_AR", True),
    ],
)
def test_a_language_other_than_the_one_asked_for_is_said(code, found, is_said):
    """Another region, or one of the languages and scripts that a code may mean."""
    notes = describe_choices([code], [found])
    assert bool(notes) == is_said
    assert all(code in note and found in note for note in notes)
