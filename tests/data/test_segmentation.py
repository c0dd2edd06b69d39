"""Random segmentations: as in the papers, and the same for a seed in every process."""

import collections
import functools
import io
import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.segmentation import sample
from jaxformer.data.sources import load

SENTENCES = [text for pair in load("bundled:en-de/valid", "en", "de") for text in pair]
ODD_TEXTS = ["", " ", "▁", "a▁b", "▁▁ a ▁", "x ▁ y", "😀😀 a", "a😀b 漢字😀"]
ODD_TEXTS += ["<pad></s> <s>", "<unk> a", "ﬁve １２\n3", "\x00a\x07\tb", "\u200b"]
ODD_TEXTS += ["e\u0301a\u0308", "--<x>--<x><xyz>a<x", 32 * "a", "2 <2de> Haus<2de>"]
# Models as we train them, and as users bring them.
OPTIONS = {
    "plain": {},
    "bytes": {"byte_fallback": True, "character_coverage": 0.98},
    "suffix": {"treat_whitespace_as_suffix": True},
    "across": {"split_by_whitespace": False},
    "bare": {
        "add_dummy_prefix": False,
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
    "defined": {
        "user_defined_symbols": ["<x>", "<xyz>", "--"],
        "control_symbols": ["<2de>"],
    },
    "identity": {"normalization_rule_name": "identity", "character_coverage": 0.98},
}


@functools.cache
def processor(kind, name="plain", size=700):
    """Train a model with SentencePiece itself; character coverage below 1 leaves
    unknown characters.
    """
    model = sentencepiece.SentencePieceProcessor()
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=writer,
        vocab_size=size,
        model_type=kind,
        pad_id=3,
        minloglevel=2,
        **OPTIONS[name],
    )
    model.LoadFromSerializedProto(writer.getvalue())
    return model


WORDS = [*"▁ßä漢😀 \n", "<x>", "<xyz>", "--", "</s>", "<2de>", "...", "e\u0301"]
WORDS_OF_TEXT = " ".join(SENTENCES[:200]).split()
text = st.lists(
    st.sampled_from(WORDS) | st.sampled_from(WORDS_OF_TEXT) | st.text(max_size=4)
).flatmap(lambda parts: st.sampled_from(["".join(parts), " ".join(parts)]))
examples = settings(max_examples=20, deadline=None)


@pytest.mark.parametrize("name", OPTIONS)
class TestBpe:
    @examples
    @given(text=text, alpha=st.floats(0, 1), seed=st.integers(0, 2**64))
    def test_any_text_stays(self, name, text, alpha, seed):
        model = processor("bpe", name)
        best = model.encode(text)
        assert sample(model, [text], alpha=0.0, seed=0) == [best]
        (ids,) = sample(model, [text], alpha=alpha, seed=seed)
        assert model.decode(ids) == model.decode(best)

    def test_dropout_of_every_merge_is_characters(self, name):
        """Unknown ones in a row are one unk, or bytes."""
        model = processor("bpe", name)
        texts = SENTENCES[:100] + [text for text in ODD_TEXTS if "<x" not in text]
        drawn = sample(model, texts, alpha=1.0, seed=0)
        for text, ids in zip(texts, drawn, strict=True):
            expected = []
            for character in model.normalize(text):
                id_ = model.piece_to_id(character)
                if id_ == model.unk_id() and name == "bytes":
                    names = [f"<0x{byte:02X}>" for byte in character.encode()]
                    expected += map(model.piece_to_id, names)
                elif id_ != model.unk_id() or expected[-1:] != [id_]:
                    expected.append(id_)
            assert ids == expected


@pytest.mark.parametrize("name", ["plain", "bytes", "suffix"])
@examples
@given(text=text, alpha=st.floats(0, 1), seed=st.integers(0, 2**64))
def test_any_text_stays_with_unigram(name, text, alpha, seed):
    model, texts = (
        processor("unigram", name),
        [text, "", ODD_TEXTS[seed % len(ODD_TEXTS)]],
    )
    drawn = sample(model, texts, alpha=alpha, seed=seed)
    assert model.decode(drawn) == model.decode(model.encode(texts))


def assert_drawn_from(counts, probabilities):
    """Compare by chi-square, five standard deviations wide; outcomes expected fewer
    than five times count together.
    """
    assert set(counts) <= set(probabilities)
    total = sum(counts.values())
    assert sum(probabilities.values()) == pytest.approx(1)
    often = {outcome: p for outcome, p in probabilities.items() if p * total >= 5}
    cells = [(counts[outcome], p * total) for outcome, p in often.items()]
    rest = total - sum(expected for _, expected in cells)
    if rest >= 5:
        cells.append((total - sum(count for count, _ in cells), rest))
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = len(cells) - 1
    assert freedom >= 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def dropout(symbols, scores, alpha):
    """Work out Provilkov et al. (2020), algorithm 1: every set of merges that may be
    left out, at every step.
    """
    merges = [
        (-scores[left + right], place)
        for place, (left, right) in enumerate(itertools.pairwise(symbols))
        if left + right in scores
    ]
    result = collections.Counter()
    for stay in itertools.product([False, True], repeat=len(merges)):
        chance = math.prod(1 - alpha if stays else alpha for stays in stay)
        if not any(stay):
            result[symbols] += chance
            continue
        _, place = min(itertools.compress(merges, stay))
        joined = symbols[place] + symbols[place + 1]
        merged = (*symbols[:place], joined, *symbols[place + 2 :])
        for outcome, p in dropout(merged, scores, alpha).items():
            result[outcome] += chance * p
    return result


def segmentations(word, scores):
    """List every way to spell a word in pieces, with the sum of the scores."""
    if not word:
        return {(): 0.0}
    return {
        (word[:end], *others): scores[word[:end]] + score
        for end in range(1, len(word) + 1)
        if word[:end] in scores
        for others, score in segmentations(word[end:], scores).items()
    }


class TestDistribution:
    def scores(self, model):
        pieces = range(model.get_piece_size())
        spelt = [
            i for i in pieces if not model.is_control(i) and not model.is_unknown(i)
        ]
        return {model.id_to_piece(i): model.get_score(i) for i in spelt}

    def drawn(self, model, word, alpha):
        ids = sample(model, [word] * 10_000, alpha=alpha, seed=11)
        return collections.Counter(tuple(model.id_to_piece(one)) for one in ids)

    @pytest.mark.parametrize(
        ("word", "alpha"), [("table", 0.1), ("Zellen", 0.35), ("enenen", 0.8)]
    )
    def test_bpe(self, word, alpha):
        """Each merge, at each step, is left out with probability alpha (Provilkov et
        al. 2020, section 3.1).
        """
        model = processor("bpe")
        expected = dropout(tuple("▁" + word), self.scores(model), alpha)
        assert_drawn_from(self.drawn(model, word, alpha), expected)

    @pytest.mark.parametrize(("word", "alpha"), [("denten", 0.0), ("table", 0.5)])
    def test_unigram(self, word, alpha):
        """In proportion to p(x) ** alpha over the 64 best segmentations (Kudo 2018,
        section 3.3).
        """
        model = processor("unigram")
        ways = segmentations("▁" + word, self.scores(model))
        best = sorted(ways, key=ways.get, reverse=True)[:64]
        weights = np.exp(alpha * np.array([ways[way] for way in best]))
        expected = dict(zip(best, weights / weights.sum(), strict=True))
        assert_drawn_from(self.drawn(model, word, alpha), expected)


PROGRAM = """
import sys, sentencepiece
from jaxformer.data.segmentation import sample
texts = sys.stdin.buffer.read().decode().split("\\n")
for path in sys.argv[1:]:
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    print(sample(model, texts, alpha=0.2, seed=42))
"""


def test_every_process_draws_the_same(tmp_path):
    """A run that is resumed reads what it would have read; other seeds draw others."""
    texts, drawn, paths = SENTENCES[:200], [], []
    for kind in ("bpe", "unigram"):
        model = processor(kind)
        paths.append(tmp_path / f"{kind}.model")
        paths[-1].write_bytes(model.serialized_model_proto())
        one, other = (sample(model, texts, alpha=0.2, seed=seed) for seed in (42, 0))
        assert np.mean([a != b for a, b in zip(one, other, strict=True)]) > 0.8
        drawn.append(f"{one}\n")
    command = [sys.executable, "-c", PROGRAM, *map(str, paths)]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run(
        command, input="\n".join(texts).encode(), env=environment, check=True, stdout=-1
    )
    assert found.stdout.decode() == "".join(drawn)


@pytest.mark.parametrize(("kind", "size"), [("word", 700), ("char", 60)])
def test_models_of_one_segmentation(kind, size):
    model, texts = processor(kind, size=size), SENTENCES[:50]
    assert sample(model, texts, alpha=0.5, seed=0) == model.encode(texts)
