"""Segmentations drawn at random: as the papers have it, and the same for a seed in
every process.
"""

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

from jaxformer.data import load
from jaxformer.data.segmentation import sample

SENTENCES = [text for pair in load("bundled:en-de/valid", "en", "de") for text in pair]
ODD_TEXTS = [
    "", " ", "▁", "a▁b", "▁▁ a ▁", "x ▁ y", "😀😀 a", "a😀b 漢字😀", "<pad></s> <s>", "<unk> a", "ﬁve １２\n3",
    "\x00a\x07\tb",
    "\u200b", "e\u0301a\u0308", "--<x>--<x><xyz>a<x", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "2 <2de> Haus<2de>",
]  # fmt: skip
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
        sentence_iterator=iter(SENTENCES), model_writer=writer, vocab_size=size, model_type=kind, pad_id=3,
        minloglevel=2, **OPTIONS[name],
    )  # fmt: skip
    model.LoadFromSerializedProto(writer.getvalue())
    return model


every_model = pytest.mark.parametrize(
    ("kind", "name"), list(itertools.product(["bpe", "unigram"], OPTIONS))
)
every_bpe_model = pytest.mark.parametrize("name", OPTIONS)
text = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "▁",
                " ",
                "<x>",
                "<xyz>",
                "--",
                "</s>",
                "<2de>",
                "ß",
                "漢",
                "😀",
                "...",
                "\n",
                "ä",
                "e\u0301",
            ]
        ),
        st.sampled_from(" ".join(SENTENCES[:200]).split()),
        st.text(max_size=4),
    )
).flatmap(lambda parts: st.sampled_from(["".join(parts), " ".join(parts)]))


@every_bpe_model
class TestEnds:
    """BPE-dropout of probability 0 and 1."""

    def test_nothing_left_out_is_the_best(self, name):
        model, texts = processor("bpe", name), SENTENCES[:200] + ODD_TEXTS
        assert sample(model, texts, alpha=0.0, seed=3) == model.encode(texts)

    @settings(max_examples=20, deadline=None)
    @given(text=text)
    def test_nothing_left_out_is_the_best_of_any_text(self, name, text):
        model = processor("bpe", name)
        assert sample(model, [text], alpha=0.0, seed=0) == [model.encode(text)]

    def test_all_left_out_are_characters(self, name):
        """As SentencePiece has them: unknown ones in a row are one unk, or bytes."""
        model, texts = (
            processor("bpe", name),
            SENTENCES[:100] + [text for text in ODD_TEXTS if "<x" not in text],
        )
        for text, ids in zip(
            texts, sample(model, texts, alpha=1.0, seed=0), strict=True
        ):
            expected = []
            for character in model.normalize(text):
                id_ = model.piece_to_id(character)
                if id_ == model.unk_id() and name == "bytes":
                    expected += [
                        model.piece_to_id(f"<0x{byte:02X}>")
                        for byte in character.encode()
                    ]
                elif id_ != model.unk_id() or expected[-1:] != [id_]:
                    expected.append(id_)
            assert ids == expected


@every_model
def test_the_text_stays(kind, name):
    """A sample is another spelling of the same text."""
    model, texts = processor(kind, name), SENTENCES[:60] + ODD_TEXTS
    best = model.encode(texts)
    for alpha in (0.1, 1.0):
        drawn = sample(model, texts, alpha=alpha, seed=7)
        assert model.decode(drawn) == model.decode(best)


@settings(max_examples=20, deadline=None)
@given(text=text, alpha=st.floats(0, 1), seed=st.integers(0, 2**64))
@every_model
def test_any_text_stays(kind, name, text, alpha, seed):
    model = processor(kind, name)
    (ids,) = sample(model, [text], alpha=alpha, seed=seed)
    assert model.decode(ids) == model.decode(model.encode(text))


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
        _, place = min(
            merge for merge, stays in zip(merges, stay, strict=True) if stays
        )
        merged = (
            *symbols[:place],
            symbols[place] + symbols[place + 1],
            *symbols[place + 2 :],
        )
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
        spelt = [
            i
            for i in range(model.get_piece_size())
            if not model.is_control(i) and not model.is_unknown(i)
        ]
        return {model.id_to_piece(i): model.get_score(i) for i in spelt}

    def drawn(self, model, word, alpha):
        ids = sample(model, [word] * 10_000, alpha=alpha, seed=11)
        return collections.Counter(tuple(model.id_to_piece(one)) for one in ids)

    @pytest.mark.parametrize("alpha", [0.1, 0.35, 0.8])
    @pytest.mark.parametrize("word", ["table", "Zellen", "the", "enenen"])
    def test_bpe(self, word, alpha):
        """Each merge, at each step, is left out with probability alpha (Provilkov et
        al. 2020, section 3.1).
        """
        model = processor("bpe")
        assert_drawn_from(
            self.drawn(model, word, alpha),
            dropout(tuple("▁" + word), self.scores(model), alpha),
        )

    @pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0])
    @pytest.mark.parametrize("word", ["table", "denten", "instern"])
    def test_unigram(self, word, alpha):
        """In proportion to p(x) ** alpha over the 64 best segmentations (Kudo 2018,
        section 3.3).
        """
        model = processor("unigram")
        ways = segmentations("▁" + word, self.scores(model))
        best = sorted(ways, key=ways.get, reverse=True)[:64]
        weights = {way: math.exp(alpha * ways[way]) for way in best}
        total = sum(weights.values())
        counts = self.drawn(model, word, alpha)
        assert_drawn_from(
            counts, {way: weight / total for way, weight in weights.items()}
        )

    def test_words_are_drawn_on_their_own(self):
        """Neighbours and repetitions of a word do not change its distribution."""
        model, alpha = processor("bpe"), 0.4
        alone = self.drawn(model, "the", alpha)
        pairs = collections.Counter()
        for ids in sample(model, ["the the"] * 10_000, alpha=alpha, seed=5):
            pieces = tuple(model.id_to_piece(ids))
            second = pieces.index("▁the", 1) if "▁the" in pieces[1:] else max(
                i for i, piece in enumerate(pieces) if piece[0] == "▁")  # fmt: skip
            pairs[pieces[:second], pieces[second:]] += 1
        for (first, second), count in pairs.items():
            expected = alone[first] * alone[second] / 10_000
            assert abs(count - expected) < 6 * math.sqrt(expected + 10)

    @pytest.mark.parametrize("name", OPTIONS)
    def test_a_large_power_gives_the_best(self, name):
        """As good as the best: where two are, which one is given is not said."""
        model = processor("unigram", name)
        texts = SENTENCES[:60]
        for drawn, best in zip(
            sample(model, texts, alpha=1e5, seed=1), model.encode(texts), strict=True
        ):
            assert sum(map(model.get_score, drawn)) == pytest.approx(
                sum(map(model.get_score, best)), abs=1e-3
            )


PROGRAM = """
import hashlib, sys, sentencepiece
from jaxformer.data.segmentation import sample
texts = sys.stdin.buffer.read().decode().split("\\n")
for path in sys.argv[1:]:
    model = sentencepiece.SentencePieceProcessor(model_file=path)
    print(hashlib.sha256(repr(sample(model, texts, alpha=0.2, seed=42)).encode()).hexdigest())
"""


class TestReproducible:
    def test_processes_draw_alike(self, tmp_path):
        """A run that is resumed reads what it would have read."""
        paths = []
        for kind in ("bpe", "unigram"):
            paths.append(tmp_path / f"{kind}.model")
            paths[-1].write_bytes(processor(kind).serialized_model_proto())
        outputs = [
            subprocess.run(
                [sys.executable, "-c", PROGRAM, *map(str, paths)],
                input="\n".join(SENTENCES).encode(),
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                check=True,
                capture_output=True,
            ).stdout
            for hash_seed in ("1", "2")
        ]
        assert outputs[0] == outputs[1]
        assert len(set(outputs[0].split())) == 2

    @pytest.mark.parametrize("kind", ["bpe", "unigram"])
    def test_seeds_differ(self, kind):
        model = processor(kind)
        one, other = (sample(model, SENTENCES, alpha=0.3, seed=seed) for seed in (0, 1))
        assert np.mean([a != b for a, b in zip(one, other, strict=True)]) > 0.8


@pytest.mark.parametrize("kind", ["word", "char"])
def test_models_of_one_segmentation(kind):
    model = processor(kind, size={"word": 700, "char": 60}[kind])
    assert sample(model, SENTENCES[:50], alpha=0.5, seed=0) == model.encode(
        SENTENCES[:50]
    )


@every_model
def test_no_text(kind, name):
    model = processor(kind, name)
    assert sample(model, [], alpha=0.5, seed=0) == []
    assert sample(model, ["", ""], alpha=0.5, seed=0) == [[], []]
