"""The tokenizer of sacreBLEU that suits a text.

BLEU counts words. Tokenizer 13a splits at white space and punctuation, so a clause
without spaces is one word of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxformer.data.language_codes import read_code
from jaxformer.errors import require
from jaxformer.evaluation.metrics import load_tokenizer
from jaxformer.translation.paragraphs import HAN, KANA, SOUTHEASTERN

USUAL = "13a"
"""sacreBLEU's tokenizer for words between spaces."""

_PIECES = ("flores200", "flores101", "spBLEU-1K", "char")
# Codes of languages and scripts with their tokenizer, then others that suit them too.
# Korean has spaces, between more than words.
_TOKENIZERS = {
    "zh yue wuu hak gan hsn nan lzh cdo Hani Hans Hant": ("zh", *_PIECES),
    "ja Jpan Hira Kana": ("ja-mecab", *_PIECES),
    "ko Hang Kore": ("ko-mecab", USUAL, *_PIECES),
    "th lo km my bo dz shn Thai Laoo Khmr Mymr Tibt Java Lana": _PIECES,
}
# A character of a script without spaces.
_UNSPACED = re.compile(rf"(?P<zh>[{HAN}])|(?P<ja>[{KANA}])|(?P<th>[{SOUTHEASTERN}])")


def list_tokenizers(
    language: str | None, references: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the tokenizer for a language, then others that suit it too.

    A language without a tokenizer of its own has that of the script of its text: a
    configuration may name another language.

    Args:
        language: its code; None: unknown.
        references: text in the language, of which the first lines are read.

    Example:
        >>> list_tokenizers("cmn_Hant")[0], list_tokenizers("deu_Latn")
        ('zh', ('13a',))
        >>> list_tokenizers(None, ["これはペンです。"])[0]
        'ja-mecab'
    """
    code = read_code(language or "")
    for codes, tokenizers in _TOKENIZERS.items():
        if {code.language, code.script} & {*codes.split()}:
            return tokenizers
    text = "\n".join(references[:1_000])
    found = Counter(each.lastgroup for each in _UNSPACED.finditer(text))
    if found.total() <= len(re.findall(r"[^\W\d_]+", _UNSPACED.sub(" ", text))):
        return (USUAL,)
    if found["ja"] > 0.1 * found["zh"]:  # Chinese has kana only in names
        del found["zh"]
    return list_tokenizers(found.most_common(1)[0][0])


def choose_tokenizer(
    language: str | None,
    references: Sequence[str] = (),
    notice: Callable[[str], object] = lambda _: None,
) -> str:
    """Return the tokenizer for a language, or ``char`` where it cannot be used here.

    Nothing is downloaded.

    Args:
        language: its code; None: unknown.
        references: text in the language.
        notice: called with a line that names another tokenizer than 13a.
    """
    tokenizer = said = list_tokenizers(language, references)[0]
    if tokenizer != USUAL:
        if lack := find_lack(tokenizer):
            tokenizer, said = "char", f"char, since {lack}"
        notice(f"BLEU uses sacreBLEU's tokenizer {said}")
    return tokenizer


def find_lack(tokenizer: str) -> str | None:
    """Return why a tokenizer cannot be used without a download or another package."""
    spm = require("sacrebleu.tokenizers.tokenizer_spm", "train")
    if tokenizer in spm.SPM_MODELS:
        name = Path(spm.SPM_MODELS[tokenizer]["url"]).name
        if not Path(spm.SACREBLEU_DIR, "models", name).exists():
            download = f"--metrics=bleu:{tokenizer} of jaxformer evaluate downloads it"
            return f"{tokenizer} is not downloaded ({download})"
    try:
        load_tokenizer(tokenizer)
    except (ImportError, RuntimeError, OSError, AssertionError):
        return f"{tokenizer} is not installed (pip install 'sacrebleu[ja,ko]')"
    return None


def split_words(text: str) -> list[str]:
    """Split a line into words and punctuation by 13a; each character of a script
    without spaces is a word.
    """
    return load_tokenizer(USUAL)(_UNSPACED.sub(r" \g<0> ", text)).split()
