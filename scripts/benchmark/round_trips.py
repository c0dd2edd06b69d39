#!/usr/bin/env python3
"""Print the share of lines that come back unchanged from tokens, for each choice of
``data.normalization``.

    python scripts/benchmark/round_trips.py

The lines are made of what normalization changes in many scripts. The vocabularies are
trained on these lines, so that no character is unknown.
"""

from __future__ import annotations

import random
import sys

from jaxformer.data.normalization import KNOWN, TABLES
from jaxformer.data.vocabulary import Vocabulary

TEXTS = {
    "full width": "你好，世界！ （测试） ＡＢＣ １２３ ｶﾀｶﾅ 「引用」 ￥５００ 　",
    "figures": "10⁶ m² 5×10⁻³ H₂O ½ 3½ ⅔ ¼ ① ⑳ Ⅳ ª º 1.º №5 ℃ µm ㎏",
    "signs": "Windows™ ©2026 ℠ ℡ … ‥ ﬁle ﬂat ĳ ŉ ſ ‼ ⁉ ´ ¨ ˚ ʰ",
    "white space": "Oui\u00a0! 10\u202f000 «\u00a0Non» a\u2009b c\u3000d x\u00ady",
    "Persian": "می‌خواهم کتاب‌ها را خانه‌ای نمی‌دانم ﷼ لا ﻻ ۱۲۳",
    "Indic": "क्‍ष र्‍य ക്‍ ශ්‍රී লক্ষ্‌য क़ ड़ फ़ ড় য় ਖ਼ தமிழ்",
    "Thai": "น้ำ ทำ ประเทศไทย ๑๒๓ ํา ເກົ່າ ຳ ໜ ໝ",
    "Hangul": "한국어 각 값 \u1112\u1161\u11ab\u1100\u116e\u11a8 가\u11a8 ㄱㄴ ㅏ ㈜ ﾡ",
    "marks": "e\u0301 a\u0308 n\u0303 o\u0323\u0302 o\u0302\u0323 A\u030a \u212b"
    " x\u0301 ё й \u05e9\u05c1 אֱ \u0627\u0653 が は\u309a Z\u0351\u0300",
    "emoji": "👩‍👩‍👧 👍🏽 🏳️‍🌈 ❤️ 1️⃣ 🇩🇪 ☺︎ 👨🏿‍🚀",
    "direction": "\u200fשלום\u200e (abc) \u2067مرحبا\u2069 \u200b \u2060",
    "plain": "Hello world don’t “quote” – it’s Straße naïve Ελλάδα Привет",
}
"""Words of each kind, separated by spaces."""


def awkward_lines(count: int = 2_000) -> list[str]:
    """Return lines of two to seven words, most of them of one kind; always the same."""
    draw = random.Random(0)
    words = {kind: text.split(" ") for kind, text in TEXTS.items()}
    words = {kind: [*filter(None, each)] for kind, each in words.items()}
    kinds = [*words]
    lines = []
    for number in range(count):
        own, others = words[kinds[number % len(kinds)]], words["plain"]
        own = own + others[:2]
        lines.append(" ".join(draw.choices(own, k=draw.randint(2, 7))))
    return lines


def main() -> None:
    """Print a row for each choice."""
    lines = awkward_lines()
    for choice in (*KNOWN, *TABLES):
        vocabulary = Vocabulary.train(lines, 600, normalization=choice)
        encoded = vocabulary.encode_batch(lines)
        same = sum(
            vocabulary.decode(ids) == line
            for ids, line in zip(encoded, lines, strict=True)
        )
        print(f"| `{choice}` | {same / len(lines):.1%} |")


if __name__ == "__main__":
    sys.exit(main())
