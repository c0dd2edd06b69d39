"""Streams of any length: what a list gives, in bounded memory, as soon as it exists;
and sources that are cut. Most searches are replaced by one that copies the source.
"""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
import weakref

import numpy as np
import pytest
from translation.translators import (
    LENGTH,
    equally_long,
    many,
    random_translator,
    texts_and_tokens,
)

import runs
from jaxformer.errors import InputError, LongSourceWarning
from jaxformer.search.rules import SearchResult
from jaxformer.translation import batch as batch_search
from jaxformer.translation.models import Models
from jaxformer.translation.paragraphs import split
from jaxformer.translation.results import Hypothesis, LongSources
from jaxformer.translation.translator import Translator


@pytest.fixture
def stub(monkeypatch):
    """Replace the search by one that returns each source; collect the shapes of its
    batches.
    """
    shapes = []

    def search_batch(models, sentences, decoding, *, n_best, shape, **_):
        lengths = np.array([[len(each.ids)] * n_best for each in sentences])
        width = lengths.max()
        shapes.append((len(sentences), shape.rows, shape.width))
        tokens = np.zeros((len(sentences), n_best, width), np.int32)
        for row, each in zip(tokens, sentences, strict=True):
            row[:, : len(each.ids)] = each.ids
        scores, each = np.zeros(lengths.shape), np.zeros(tokens.shape, np.float32)
        return SearchResult(tokens, scores, scores, lengths, lengths > 0, each, 0)

    monkeypatch.setattr(batch_search, "search_batch", search_batch)
    monkeypatch.setattr(Models, "devices", 1)
    return shapes


@pytest.mark.parametrize("window", [None, 1, 5])
def test_a_stream_gives_what_a_list_gives(stub, window):
    """With any window, each sentence has its translation, in order."""
    translator, texts = random_translator(), ["", *many(), " "]
    expected = texts_and_tokens(translator.search(texts, n_best=4))
    assert [own[0][0] for own in expected[1:-1]] == many()
    found = list(translator.stream(iter(texts), n_best=4, window=window))
    assert texts_and_tokens(found) == expected


def test_a_stream_has_no_end(stub):
    """It is read a window at a time, and a window is given before the next is read."""
    read, vocabulary = [], runs.vocabulary()
    texts = (read.append(number) or f"word {number}" for number in itertools.count())
    stream = random_translator().stream(texts, window=20)
    assert read == []
    for number, (best,) in zip(range(50), stream, strict=False):
        assert best.text == vocabulary.decode(vocabulary.encode(f"word {number}"))
        assert len(read) == 20 * (number // 20 + 1)


def test_translations_come_as_soon_as_they_exist(stub):
    """The longest sentences are translated first; the first ones in the order of the
    texts do not wait for others.
    """
    texts = [f"{'word ' * count}" for count in (9, 5, 1) for _ in range(8)]
    given = [len(stub) for _ in random_translator().stream(texts)]
    assert given == [1] * 8 + [2] * 8 + [3] * 8


def test_batches_have_a_budget_of_tokens(stub):
    """Long sentences come in smaller batches, of few shapes; samples take the room of
    hypotheses.
    """
    texts = ["word " * count for count in (2, 5, 20, 30) for _ in range(20)]
    changes = {"batch_size": 16, "tokens_per_batch": 512}
    assert len(list(random_translator(**changes).stream(texts))) == 80
    assert all(count <= rows and rows * width <= 512 for count, rows, width in stub)
    assert {rows for _, rows, _ in stub} >= {16, 8}
    stub.clear()
    sampling = random_translator(**changes, sample=True, beam_size=1)
    list(sampling.stream(texts, n_best=8))
    assert all(8 * rows * width <= 512 or rows == 1 for _, rows, width in stub)


def test_memory_does_not_grow(stub):
    """The peak memory of Python and numpy does not depend on the number of windows, and
    no translation is kept.
    """
    translator = random_translator(batch_size=16)

    def peak(count: int) -> int:
        texts = (f"Open file {number}." for number in range(count))
        tracemalloc.start()
        for _ in translator.stream(texts, window=64):
            pass
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(800)  # fills the free lists of Python
    assert peak(800) < 1.2 * peak(160) + 50_000
    stream = translator.stream(map(str, range(200)), window=8)
    kept = [weakref.ref(own[0]) for own in itertools.islice(stream, 160)]
    assert sum(reference() is not None for reference in kept) <= 8


def test_progress_counts_every_sentence(stub):
    """Blank ones and those in parts are one each."""
    told, texts = [], ["", "One. Two. Three.", "word " * 40, "word", " "] * 5
    changes = {"long_sources": "split", "max_source_length": 24, "batch_size": 4}
    stream = random_translator(**changes).stream
    list(stream(texts, paragraphs=True, window=10, progress=told.append))
    assert sum(told) == len(texts)
    assert len(told) > 6


# Long sources

LONG = ["x" * 100_000, "word " * 20_000, "。" * 100_000, " " * 99_999 + "a"]


@pytest.mark.parametrize("paragraphs", [False, True])
def test_lines_without_end(paragraphs, stub):
    """100,000 characters become one line, and no piece of them is lost."""
    plain, vocabulary = equally_long()[:3], runs.vocabulary()
    stream = random_translator().stream([*plain, *LONG, *plain], paragraphs=paragraphs)
    with pytest.warns(LongSourceWarning, match="more than 128 tokens"):
        found = [best for (best,) in stream]
    assert [best.text for best in (*found[:3], *found[-3:])] == plain * 2
    for text, best in zip(LONG, found[3:-3], strict=True):
        pieces = "".join(piece for piece in best.tokens if piece != "</s>")
        whole = "".join(vocabulary.pieces(vocabulary.encode(text)))
        assert pieces.replace("▁", "") == whole.replace("▁", "")


@pytest.mark.parametrize("limit", [None, 12])
def test_long_sentences_are_split_if_asked(limit, stub):
    """What is too long is translated in parts, which are joined; what is not stays as
    it was.
    """
    plain, vocabulary = random_translator(max_length=24), runs.vocabulary()
    short = runs.sentences(2, longest=8, shortest=8)
    long = " ".join(runs.sentences(6, longest=9, shortest=9))
    ids, room = vocabulary.encode(long), (limit or 24) - 1
    cuts = split(vocabulary.pieces(ids), room)
    parts = [vocabulary.decode(ids[start:stop]) for start, stop in cuts]
    splitting = {"long_sources": "split", "max_source_length": limit}
    decoding = dataclasses.replace(plain.decoding, **splitting)
    texts, rule = (
        [short[0], long, short[1], ""],
        "of more than 24 tokens.* 1 translated",
    )
    with pytest.warns(LongSourceWarning, match=f"{rule} in parts"):
        found = plain.search(texts, n_best=2, decoding=decoding)
    separately = plain.search([*short, *parts], n_best=2)
    assert [found[0], found[2]] == separately[:2]
    for rank, best in enumerate(found[1]):
        own = [part[rank] for part in separately[2:]]
        assert best.text == " ".join(part.text for part in own)
        assert best.tokens == [token for part in own for token in part.tokens]
    refusing = dataclasses.replace(decoding, long_sources="refuse")
    rule = "max_source_length is 12" if limit else "the model has 24 positions"
    rule = rf"source sentence 2 has \d+ tokens and .*{rule}; translate it in parts"
    with pytest.raises(InputError, match=rule):
        plain.translate(texts, decoding=refusing)


def trained_to(length: int, *, source_eos: bool = True, **changes) -> Translator:
    """Return the random translator as if training had seen sources of so many tokens
    at most.
    """
    plain = random_translator(source_eos=source_eos, **changes)
    parts = plain.model.config, plain.params, plain.vocabularies, plain.decoding
    return Translator(*parts, source_eos=source_eos, trained_length=length)


def found_by(
    translator: Translator, texts: list[str], **options
) -> tuple[list[list[Hypothesis]], list[LongSources]]:
    told = []
    return translator.search(texts, notice=told.append, **options), told


@pytest.mark.parametrize("paragraphs", [False, True])
def test_sources_longer_than_training_saw_are_cut_at_every_sentence_end(
    paragraphs, stub
):
    """Each sentence is translated as if it were given separately, nothing is left out,
    and the caller is told.
    """
    translator = trained_to(LENGTH + 2)
    sentences = [f"{text}." for text in equally_long()[:4]]
    texts = [" ".join(sentences), sentences[0]]
    (best, *_), told = found_by(translator, texts, paragraphs=paragraphs)
    alone, none = found_by(translator, sentences)
    assert best[0].text == " ".join(each[0].text for each in alone)
    assert best[0].tokens == [token for each in alone for token in each[0].tokens]
    assert told == ([] if paragraphs else [LongSources(LENGTH + 2, cut=1)])
    assert none == []


@pytest.mark.parametrize("source_eos", [True, False])
def test_a_source_as_long_as_training_saw_is_whole(source_eos, stub):
    """The limit counts the end of sentence as training does: one more token is cut."""
    text, tokens = equally_long()[0], LENGTH - 1 + source_eos
    found, told = found_by(trained_to(tokens, source_eos=source_eos), [text])
    assert (found[0][0].text, told) == (text, [])
    _, told = found_by(trained_to(tokens - 1, source_eos=source_eos), [text])
    assert told == [LongSources(tokens - 1, cut=1)]
    assert len(stub) == 2


def test_refusing_translates_whole_what_the_model_has_positions_for(stub):
    """Runs that store ``refuse`` translate sources longer than in training whole, with
    a warning.
    """
    text = " ".join(f"{text}." for text in equally_long()[:3])
    translator = trained_to(16, long_sources="refuse")
    rule = r"of more than 16 tokens.* 1 translated whole.* --split_long"
    with pytest.warns(LongSourceWarning, match=rule):
        assert translator.search([text])[0][0].text == text
    changes = {"long_sources": "split", "max_source_length": 100}
    split = dataclasses.replace(translator.decoding, **changes)
    found, told = found_by(translator, [text, "word " * 200], decoding=split)
    assert (found[0][0].text, told) == (text, [LongSources(16, whole=2)])
    rule = "and the model has 128 positions; translate it in parts"
    with pytest.raises(InputError, match=rule):
        translator.translate(["word " * 200])


def test_an_ensemble_takes_the_least_limit_of_its_models():
    plain = random_translator()
    for models, longest in (
        ([trained_to(30), trained_to(20)], 20),
        ([plain, trained_to(20)], 20),
        ([plain, plain], 128),
    ):
        assert Translator.ensemble(models).codec.longest == longest
