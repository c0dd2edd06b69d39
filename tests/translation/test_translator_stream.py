"""Streams of any length: what a list gives, in bounded memory, as soon as it is
there.
"""

from __future__ import annotations

import itertools
import tracemalloc
import weakref

import numpy as np
import pytest
from translation.translators import equally_long, many, random_translator

from jaxformer.errors import InputError, LongSourceWarning
from jaxformer.search.rules import SearchResult
from jaxformer.translation import batch as batch_search
from jaxformer.translation.models import Models
from jaxformer.translation.results import Hypothesis


def found_of(hypotheses: list[Hypothesis]) -> list[tuple]:
    return [(each.text, each.tokens, each.finished) for each in hypotheses]


@pytest.fixture
def stub(monkeypatch):
    """Put a search in place of the model's that gives each source back, and notes
    the shapes of its batches.
    """
    shapes = []

    def search_batch(models, sentences, decoding, *, eos_id, n_best, **_):
        width = max(len(each.ids) for each in sentences)
        shapes.append(
            (
                len(sentences),
                decoding.batch_size,
                batch_search.round_width(width, models.positions),
            )
        )
        tokens = np.zeros((len(sentences), n_best, width), np.int32)
        for row, each in enumerate(sentences):
            tokens[row, :, : len(each.ids)] = each.ids
        lengths = np.array([[len(each.ids)] * n_best for each in sentences])
        each = np.zeros(tokens.shape, np.float32)
        known = {
            "tokens": tokens,
            "lengths": lengths,
            "finished": lengths > 0,
            "token_log_probabilities": each,
        }
        parts = {
            name: known.get(name, np.zeros(lengths.shape))
            for name in SearchResult._fields
        }
        return SearchResult(**parts)  # pyright: ignore

    monkeypatch.setattr(batch_search, "search_batch", search_batch)
    # on one device
    monkeypatch.setattr(Models, "devices", 1)
    return shapes


# Streams


@pytest.mark.parametrize("window", [None, 1, 5, 100])
def test_a_stream_gives_what_a_list_gives(window):
    """Whatever the window, each sentence has its translation, in order."""
    translator, texts = random_translator(), ["", *many()[:12], " "]
    expected = [
        found_of(each) for each in translator.search(texts, beam_size=4, n_best=4)
    ]
    found = translator.stream(iter(texts), beam_size=4, n_best=4, window=window)
    assert [found_of(each) for each in found] == expected


def test_samples_of_a_stream_are_those_of_a_list():
    """They depend on the seed and the number of the sentence, wherever windows
    begin.
    """
    translator = random_translator(sample=True, seed=4)
    expected = [found_of(each) for each in translator.search(many()[:12], n_best=2)]
    assert [
        found_of(each) for each in translator.stream(many()[:12], n_best=2, window=5)
    ] == expected


def test_a_stream_has_no_end(stub):
    """It is read a window at a time, and a window is given before the next is read."""
    translator, read = random_translator(), []
    texts = (read.append(number) or f"word {number}" for number in itertools.count())
    stream = translator.stream(texts, window=20)
    assert read == []
    vocabulary = translator.vocabularies.source
    for number, hypotheses in zip(range(50), stream, strict=False):
        assert hypotheses[0].text == vocabulary.decode(
            vocabulary.encode(f"word {number}")
        )
        assert len(read) == 20 * (number // 20 + 1)


def test_translations_come_as_soon_as_they_are_there(stub):
    """The longest sentences are translated first, and what stands before all others
    need not wait for these.
    """
    texts = [*(["word " * 9] * 8), *(["word " * 5] * 8), *(["word"] * 8)]
    given = []
    for _ in random_translator().stream(texts):
        given.append(len(stub))
    assert given == [1] * 8 + [2] * 8 + [3] * 8


def test_batches_have_a_budget_of_tokens(stub):
    """Sentences that are long come in smaller batches, of few shapes; samples take
    the room of hypotheses.
    """
    texts = ["word " * count for count in (2, 5, 20, 30) for _ in range(20)]
    translator = random_translator(batch_size=16, tokens_per_batch=512, beam_size=4)
    assert len(list(translator.stream(texts))) == 80
    assert all(count <= rows and rows * width <= 512 for count, rows, width in stub)
    assert {rows for _, rows, _ in stub} >= {16, 8}
    stub.clear()
    list(
        random_translator(
            batch_size=16, tokens_per_batch=512, sample=True, beam_size=1
        ).stream(texts, n_best=8)
    )
    assert all(8 * rows * width <= 512 or rows == 1 for _, rows, width in stub)


def test_memory_does_not_grow(stub):
    """Peak memory of Python and numpy over thousands of sentences is that over the
    first thousand; nothing is kept.
    """
    translator = random_translator(batch_size=16)

    def peak(count: int) -> int:
        tracemalloc.start()
        for _ in translator.stream(
            (f"Open file {number}." for number in range(count)), window=128
        ):
            pass
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(400)
    few, more = peak(1000), peak(8000)
    assert more < 1.2 * few + 50_000
    kept = []
    for hypotheses in itertools.islice(
        translator.stream((f"{n}" for n in itertools.count()), window=8), 800
    ):
        kept.append(weakref.ref(hypotheses[0]))
    del hypotheses
    assert sum(reference() is not None for reference in kept) <= 8


def test_progress_counts_every_sentence(stub):
    """Blank ones and those in parts are one each."""
    told = []
    texts = ["", "One. Two. Three.", "word " * 40, "word", " "] * 5
    translator = random_translator(
        long_sources="split", max_source_length=24, batch_size=4
    )
    list(translator.stream(texts, paragraphs=True, window=10, progress=told.append))
    assert sum(told) == len(texts)
    assert len(told) > 6


def test_a_refused_line_ends_the_stream_at_its_window():
    """Its number is that of the stream, and what stands before its window was given."""
    texts = [*equally_long(), *equally_long(), "word " * 300, "word"]
    translator = random_translator(long_sources="refuse")
    stream = translator.stream(texts, window=5)
    found = []
    with pytest.raises(InputError, match="source sentence 13 has"):
        found.extend(stream)  # extend keeps what came before the error
    assert len(found) == 10
    with pytest.raises(InputError, match="source sentence 13 has"):
        translator.check(texts)
    assert translator.check(texts[:12]) == 12


def test_arguments_are_checked_at_once():
    """Before anything is read."""
    texts = iter(["a"])
    for given, rule in (
        ({"n_best": 9}, "n_best must be at least 1 and at most the beam of 4"),
        ({"window": 0}, "a window must have from 1 to 1,000,000,000 sentences, not 0"),
        ({"ban": [" "]}, "a banned word must not be blank"),
        ({"alignment_layer": 1}, "an alignment layer is for alignments"),
        (
            {"alignment": True, "alignment_layer": 2},
            "the decoder has layers 1 to 1, not 2",
        ),
    ):
        with pytest.raises(InputError, match=rule):
            random_translator().stream(texts, **given)
    assert list(texts) == ["a"]


def test_prefixes_are_read_beside_the_sentences():
    """One for each, over windows; too few end the stream."""
    texts, prefixes = equally_long(), ["Datei", "", "Die", "", "", "Datei"]
    found = random_translator().stream(iter(texts), prefixes=iter(prefixes), window=2)
    expected = random_translator().search(texts, prefixes=prefixes)
    assert [found_of(each) for each in found] == [found_of(each) for each in expected]
    with pytest.raises(InputError, match="there are 3 prefixes and more sentences"):
        list(random_translator().stream(iter(texts), prefixes=prefixes[:3], window=2))


# Odd lines among others

ODD = [
    "a\x01b\x07",
    "🙂🎉🙂",
    "你好，世界。Привет мир",
    "مرحبا بالعالم",
    "",
    "\ud800 alone",
    "one\x00two",
    "one\u2028two",
    "one\rtwo",
    "one\ntwo",
]
LONG = [
    "x" * 100_000,
    "word " * 20_000,
    "。" * 100_000,
    "🙂" * 100_000,
    " " * 99_999 + "a",
]


@pytest.mark.parametrize("paragraphs", [False, True])
def test_odd_lines_leave_their_neighbours_alone(paragraphs):
    """Each gives one line, and those around it what they give without it."""
    translator, plain = random_translator(), equally_long()
    expected = [found_of(each) for each in translator.search(plain, beam_size=1)]
    mixed = [
        text
        for pair in itertools.zip_longest(plain, ODD, fillvalue="x")
        for text in pair
    ]
    found = list(translator.stream(mixed, beam_size=1, window=7, paragraphs=paragraphs))
    assert len(found) == len(mixed)
    assert [found_of(each) for each in found[: 2 * len(plain) : 2]] == expected
    assert not any(set("\r\n") & set(each[0].text) for each in found)


@pytest.mark.parametrize("paragraphs", [False, True])
def test_lines_without_end(paragraphs, stub):
    """100,000 characters are refused in one line; split, they are one line, and no
    piece of them is lost.
    """
    plain = equally_long()[:3]
    # the others are one unknown token, or blank but for one letter
    for text in LONG[:2]:
        with pytest.raises(
            InputError, match=r"source sentence 2 has \d+ tokens and the model has 128 "
        ) as error:
            list(random_translator(long_sources="refuse").stream([plain[0], text]))
        assert len(str(error.value)) < 200
    translator = random_translator(long_sources="split")
    with pytest.warns(LongSourceWarning, match="more than 128 tokens"):
        found = list(translator.stream([*plain, *LONG, *plain], paragraphs=paragraphs))
    assert len(found) == 6 + len(LONG)
    assert [each[0].text for each in found[:3]] == [each[0].text for each in found[-3:]]
    for text, (best,) in zip(LONG, found[3:-3], strict=True):
        vocabulary = translator.vocabularies.source
        pieces = [piece for piece in best.tokens if piece != "</s>"]
        assert "".join(pieces).replace("▁", "") == "".join(
            vocabulary.pieces(vocabulary.encode(text))
        ).replace("▁", "")
        assert "\n" not in best.text
