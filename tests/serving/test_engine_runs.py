"""A server's engine reads its run and uses its shortlist."""

import os

import jax
import numpy as np
import pytest
from serving.little_engine import search, texts, translator

from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.programs import PLAIN
from jaxformer.translation.shortlist import Shortlist

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.parametrize(("cores", "searches"), [(1, 1), (2, 2), (8, 2)])
def test_a_cpu_of_two_cores_searches_two_batches(cores, searches, monkeypatch):
    own = translator()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    monkeypatch.setattr(jax.config, "read", lambda _: False)  # as the command sets it
    assert TranslationEngine(own).searches == searches


def with_shortlist(seed: int):
    """Return the little translator with the lists of random tokens."""
    best = np.random.default_rng(seed).integers(4, 400, (400, 3))
    listed = translator()
    listed.shortlist = Shortlist(np.arange(12, dtype=np.int32), best.astype("i4"), "")
    return listed


def test_a_shortlist_compiles_nothing_in_a_request(compiled):
    """Each shape has room for the lists of any sentences."""
    engine = TranslationEngine(with_shortlist(3), rows=4)
    while engine.warm():
        pass
    sources = texts(6)
    compiled.clear()
    found = search(engine, PLAIN, sources)
    assert not +compiled
    expected = engine.translator.translate(sources)
    assert [own[0].text for own in found] == expected
    assert expected != with_shortlist(5).translate(sources)
