"""Batches that several threads search at the same time: what one after the other
gives, in few programs.
"""

from __future__ import annotations

import threading
from collections import Counter

import jax
import pytest
from translation.translators import (
    broken_for_last,
    many,
    random_translator,
    texts_and_tokens,
)

import runs
from jaxformer.errors import LineError
from jaxformer.translation import pairs, stream
from jaxformer.translation.compiled import in_order


@pytest.fixture(autouse=True)
def three_workers(monkeypatch):
    """The number of threads on any machine."""
    for module in (pairs, stream):
        monkeypatch.setattr(module, "count_workers", lambda _: 3)


def test_threads_change_no_bit(monkeypatch):
    """Translations, scores and alignments of lines of many lengths, in their order, and
    the scores of pairs, are those of the same programs one after the other.
    """
    texts = ["", *many(), *runs.sentences(9, longest=40), " "]
    given = [runs.Pair(text, "Datei") for text in many()]
    translator, options = random_translator(), {"n_best": 2, "alignment": True}

    def find():
        told = []
        found = translator.stream(texts, window=30, progress=told.append, **options)
        return list(found), told, translator.score(given)

    together, told, scores = find()
    for module in (pairs, stream):
        monkeypatch.setattr(module, "in_order", lambda run, items, _: map(run, items))
    alone, expected, others = find()
    assert together == alone
    assert (told, scores) == (expected, others)
    for own, other in zip(together, alone, strict=True):
        for one, two in zip(own, other, strict=True):
            assert one.to_json() == two.to_json()


def test_the_error_of_a_batch_comes_in_its_turn():
    """What batches before it have translated is given, and no thread stays."""
    texts = many()[:9]
    broken = broken_for_last(random_translator(batch_size=1), texts)
    order = sorted(texts, key=lambda text: -len(runs.vocabulary().encode(text)))
    before, told = threading.active_count(), []
    with pytest.raises(LineError, match=r"source sentence 9 .* not a number"):
        list(broken.stream(texts, progress=told.append))
    assert sum(told) == order.index(texts[-1])
    assert threading.active_count() == before


def test_stop_completes_what_has_begun():
    """Of the other sentences there is nothing."""
    asked = []
    translator = random_translator(batch_size=1)
    found = translator.search(
        many()[:9], stop=lambda: asked.append(None) or len(asked) > 5
    )
    assert Counter(map(len, found)) == {1: 5, 0: 4}
    complete = translator.search(many()[:9])
    for own, whole in zip(found, complete, strict=True):
        assert texts_and_tokens([own]) in ([[]], texts_and_tokens([whole]))


def test_no_more_than_one_item_waits():
    """Items are read as results are taken, which have their order."""
    read, gate = [], threading.Event()
    items = (read.append(number) or number for number in range(20))
    found = in_order(lambda number: gate.wait(60) and number, items, 3)
    gate.set()
    for number in found:
        assert len(read) <= number + 4
    assert read == list(range(20))


def test_programs_are_few():
    """Many lines of 2 to 60 tokens need two programs at most, a few one, and what a
    program holds none.
    """
    lengths = (60, 33), (30, 12), (12, 1)
    long, medium, short = (runs.sentences(15, *each) for each in lengths)
    translator, compiled = random_translator(d_model=24), []

    def note(event: str, duration_secs: float, **about: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append("_search" in str(about["fun_name"]))

    def programs(*batches: list[str]) -> int:
        before = sum(compiled)
        for batch in batches:
            translator.translate(batch)
        return sum(compiled) - before

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        assert 1 <= programs([*short, *long, *medium]) <= 2
        assert programs(medium + short, short + long, long[:9]) == 0
        assert programs(long[:3], long[:1], medium[:2], short[:4]) == 1
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
