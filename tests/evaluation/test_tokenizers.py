"""BLEU counts the words of the language that is translated into."""

from __future__ import annotations

import pytest
import sacrebleu

from jaxformer.evaluation import breakdown, metrics
from jaxformer.evaluation.choice import choose_metrics
from jaxformer.evaluation.reranking_weights import tune
from jaxformer.evaluation.tokenizers import (
    choose_tokenizer,
    list_tokenizers,
    split_words,
)

SENTENCES = {
    "zh": ["天地玄黄，宇宙洪荒。", "日月盈昃，辰宿列张。"],
    "ja-mecab": ["これはペンです。", "東京都で会議を開いた。"],
    "flores200": [
        "ฉันกินข้าวทุกวัน",
        "ខ្ញុំញ៉ាំបាយរាល់ថ្ងៃ",
        "ကျွန်တော်ထမင်းစားတယ်",
        "ང་ལྟོ་ཟ་གི་ཡོད།",
        "ຂ້ອຍກິນເຂົ້າທຸກມື້",
    ],
    "13a": [
        "Das Haus ist alt.",
        "Дом очень старый.",
        "البيت الكبير قديم جدا",
        "나는 매일 밥을 먹는다",
        "यह घर बहुत पुराना है।",
        "Nihongo: 日本 ist ein Land",
        "ＡＢＣ ＤＥＦ ＧＨＩ ＪＫＬ",
        "",
    ],
}


@pytest.mark.parametrize(
    ("codes", "tokenizer"),
    [
        ("zh ZH zh-CN zh_TW zho zho_Hant cmn cmn_Hans zh-Hans yue chi lzh", "zh"),
        ("ja ja_XX jpn jpn_Jpan", "ja-mecab"),
        ("ko kor kor_Hang ko-KR", "ko-mecab"),
        ("th tha_Thai lo lao_Laoo km khm my mya_Mymr bo tib dz bur_Mymr", "flores200"),
        ("jav_Java ksw_Mymr", "flores200"),
        ("de deu_Latn ru vi hi ar mn jav_Latn klingon en_XX", "13a"),
    ],
)
def test_the_language_chooses(codes, tokenizer):
    """All codes of a language choose the same tokenizer."""
    for code in codes.split():
        assert list_tokenizers(code, ["Das Haus ist alt."])[0] == tokenizer, code


@pytest.mark.parametrize(
    ("tokenizer", "line"),
    [(name, line) for name, lines in SENTENCES.items() for line in lines],
)
def test_the_script_chooses_where_the_language_does_not(tokenizer, line):
    """Text without spaces has its tokenizer though the language is not known, or is the
    one of another configuration; text with spaces has 13a.
    """
    for language in (None, "de", "words"):
        assert list_tokenizers(language, [line])[0] == tokenizer
    mixed = [line] * 3 + ["Docker Desktop"]
    assert list_tokenizers(None, mixed)[0] == tokenizer


def test_a_perfect_translation_scores_100():
    """Whatever the language, what equals the references has BLEU 100, and a wrong
    character lowers it without losing all.
    """
    for lines in SENTENCES.values():
        for line in lines[:-1]:
            (bleu,) = choose_metrics(["bleu"], references=[line])
            assert bleu.key == "bleu"
            near = line[:-2] + "x" + line[-1:]
            assert metrics.score(bleu, [line], [line]).value == pytest.approx(100)
            assert 0 < metrics.score(bleu, [near], [line]).value < 100


def test_chinese_scores_are_sacrebleus():
    """``bleu`` of Chinese is sacreBLEU's with its own choice for the language."""
    references = SENTENCES["zh"]
    given = [line.replace("月", "日") for line in references]
    (bleu,) = choose_metrics(["bleu"], language="cmn_Hans")
    found = metrics.score(bleu, given, references)
    theirs = sacrebleu.BLEU(trg_lang="zh")
    assert found.value == theirs.corpus_score(given, [references]).score
    assert found.signature == theirs.get_signature().format()
    (usual,) = choose_metrics(["bleu:13a"], language="cmn_Hans")
    assert "tok:13a" in metrics.score(usual, given, references).signature


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    """A tokenizer that would be downloaded or lacks a package is replaced by ``char``,
    and one line says why; one that works is named too, and 13a is not.
    """
    spm = "sacrebleu.tokenizers.tokenizer_spm."
    monkeypatch.setattr(f"{spm}SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(f"{spm}download_file", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    metrics._build.cache_clear()
    said = []
    for language, tokenizer, words in (
        ("th", "char", "char, since flores200 is not downloaded"),
        ("ja", "char", "char, since ja-mecab is not installed (pip install"),
        ("zh", "zh", "tokenizer zh"),
        ("de", "13a", None),
    ):
        assert choose_tokenizer(language, (), said.append) == tokenizer
        assert (words in said.pop()) if words else not said
    # What a broken download leaves cannot be loaded.
    model = tmp_path / "models" / "flores200sacrebleuspm"
    model.parent.mkdir()
    model.write_bytes(b"not a model")
    assert choose_tokenizer("km", (), said.append) == "char"


def test_words_of_all_scripts_are_counted():
    """Lengths and frequencies count each character of a script without spaces."""
    text = "我用 Docker, v2"
    assert split_words(text) == ["我", "用", "Docker", ",", "v2"]
    counts = breakdown.count_words(["東京へ", "東"])
    assert counts == {"東": 2, "京": 1, "へ": 1}


def test_reranking_is_tuned_by_the_same_bleu():
    """Tuning tells translations of Chinese apart, whose 13a scores are all 0."""
    line = SENTENCES["zh"][0]
    record = {"translations": [{"text": line[::-1]}, {"text": line}]}
    record["target_language"] = "cmn"
    scores = {"search": [0.0, 0.0], "other": [0.0, 1.0]}
    found = tune([record], scores, [line])
    assert found.after.value == pytest.approx(100)
    assert "tok:zh" in found.after.signature
