"""A server's searches: the translator's answers in any batch, by programs that were
compiled before.

All engines but one share the programs of a little model of 16 positions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serving.little_engine import (
    EXTRA,
    POSITIONS,
    assert_same,
    search,
    texts,
    translator,
)
from translation.translators import broken_for_last

import runs
from jaxformer.data.records import Pair
from jaxformer.errors import LineError, LongSourceWarning
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.errors import ServingError
from jaxformer.serving.programs import PLAIN, RICH, TERMS
from jaxformer.translation import models
from jaxformer.translation.stream import LineSearch

ALL_DEVICES = models.mesh_of_devices

pytestmark = pytest.mark.usefixtures("one_device")


def warm(engine: TranslationEngine) -> TranslationEngine:
    while engine.warm():
        pass
    return engine


@pytest.fixture(scope="module")
def engine(one_device) -> TranslationEngine:
    return warm(TranslationEngine(translator(), "little", rows=4))


def test_it_writes_what_both_vocabularies_give_back(engine):
    (text,) = texts(1)
    assert engine.writes(text.split()[0])
    for symbols in ("🎉", "❤️", "①", "™"):
        assert not engine.writes(symbols)


def test_answers_are_the_translators(engine):
    """Of all kinds, with what each may ask for."""
    sources = texts(9)
    assert_same(search(engine, PLAIN, sources), engine.translator.search(sources))
    prefixes = ["Die" if place % 2 else "" for place in range(9)]
    rich = {"n_best": 2, "alignment": True, "prefixes": prefixes}
    linked = {"aligned": [None] * 9}
    expected = engine.translator.search(sources, **rich)
    found = search(engine, RICH, sources, prefix=prefixes, **linked)
    assert_same(found, expected)
    required = [["Datei"] if place % 3 else [] for place in range(9)]
    more = engine.translator.search(sources, required=required, **rich)
    linked["required"] = required
    found += search(engine, TERMS, sources, prefix=prefixes, **linked)
    assert_same(found, expected := [*expected, *more])
    for own, others in zip(found, expected, strict=True):
        for each, other in zip(own, others, strict=True):
            weights = each.alignment.weights, other.alignment.weights
            np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-5)


def test_samples_of_a_request_do_not_depend_on_neighbours():
    """They depend on the sentence's place in its own request."""
    engine = TranslationEngine(translator(sample=True, seed=4), rows=4)
    ((own, other), (second,)) = (
        [engine.encode(text, place=place)[0] for place, text in asked]
        for asked in (enumerate(texts(2)), [(1, texts(1)[0])])
    )
    warm(engine)
    ((alone,),) = engine.search(PLAIN, [own])[0]
    among = engine.search(PLAIN, [second, other, own])[0]
    assert among[2][0].text == alone.text
    assert among[0][0].text != alone.text


def test_nothing_compiles_after_warm(engine, compiled):
    """Batches of any size and width, prefixes and phrases of any length, alternatives,
    attention and scores.
    """
    sources = texts(9)
    for count in range(1, 10):
        search(engine, PLAIN, sources[:count])
    for prefix in ("", "Die", "Die Datei"):
        search(engine, RICH, sources[:3], prefix=[prefix] * 3)
        engine.alternatives(sources[0], prefix, 8)
    search(engine, TERMS, sources[:2], required=[["Datei", "die"], []])
    own = search(engine, PLAIN, sources[:1])[0][0].text
    for target in (own, "", "Die Datei"):
        engine.attend(sources[0], target, k=3)
    for count in (1, 5):
        [engine.score(Pair(source, "Datei")) for source in sources[:count]]
    assert not +compiled


def test_what_reads_the_programs_is_not_disturbed_by_one_that_is_compiled(engine):
    before = engine.programs.done
    engine.programs.done = frozenset(engine.programs.all[:2])
    reading = iter(engine.programs.done)
    assert next(reading) in before
    engine.warm()
    assert len([*reading]) == 1
    assert len(engine.programs.done) == 3
    engine.programs.done = before


def test_a_sentence_longer_than_the_positions_is_split_or_refused_never_cut(
    engine, monkeypatch
):
    long = " ".join(texts(6))
    parts = engine.encode(long)
    assert max(each.width for each in parts) <= POSITIONS
    ids = [token for each in parts for token in each.sentence.ids[:-1]]
    assert ids == runs.vocabulary().encode(long)
    found, _ = engine.search(PLAIN, parts)
    with monkeypatch.context() as patch:
        patch.setattr(LineSearch, "prepare", None)  # it is encoded once
        (best,) = engine.join(parts, found)
    with pytest.warns(LongSourceWarning):
        assert [best.text] == engine.translator.translate([long])
    refusing = TranslationEngine(translator(long_sources="refuse"))
    with pytest.raises(ServingError, match="the model has 16 positions") as error:
        refusing.encode(long)
    assert (error.value.status, error.value.code) == (422, "sentence_too_long")


def test_a_bad_prefix_fails_alone(engine):
    """It is refused before it is in a batch, with its field."""
    sources, bad = texts(3), "🙂"
    encoded = [engine.encode(text, prefix="Die") for text in sources]
    with pytest.raises(ServingError, match="cannot write") as error:
        engine.encode(sources[0], prefix=bad)
    assert (error.value.code, error.value.field) == ("cannot_write", "prefix")
    with pytest.raises(ServingError, match="shorten it") as error:
        engine.encode(sources[0], prefix="Datei " * 9)
    assert error.value.field == "prefix"
    found, _ = engine.search(RICH, [each for own in encoded for each in own])
    assert all(best.text.startswith("Die") for best, *_ in found)


def test_required_phrases_are_few_and_need_a_beam(engine):
    for phrases in (["Datei"] * 9, ["die Datei und das Haus"]):
        with pytest.raises(LineError, match="8 required phrases of 8"):
            engine.encode(texts(9)[-1], required=phrases)
    greedy = TranslationEngine(translator(beam_size=1))
    with pytest.raises(LineError, match="2 hypotheses or more"):
        greedy.encode("Open", required=["Datei"])


def test_a_fault_of_a_sentence_is_its_own_value(engine):
    """A token whose embedding is NaN affects only the sentence that has it."""
    sources = texts(4)
    broken = TranslationEngine(broken_for_last(translator(), sources), rows=4)
    encoded = [broken.encode(text)[0] for text in sources]
    *good, bad = warm(broken).search(PLAIN, encoded)[0]
    assert_same(good, search(engine, PLAIN, sources[:-1]))
    assert isinstance(bad, Exception)
    assert "not a number" in str(bad)


def test_alternatives_are_the_most_probable_words(engine):
    """Each text begins with the prefix and the word, whose probability is that of the
    model after the prefix: of its tokens and of one after them that ends the word.
    """
    (source,), prefix = texts(1), "Die"
    found = engine.alternatives(source, prefix, 4)
    assert 1 < len(found) <= 4
    assert len({each.word for each in found}) == len(found)
    values = [each.probability for each in found]
    assert values == sorted(values, reverse=True)
    assert sum(values) <= 1
    encode, pad_id = runs.vocabulary().encode, runs.vocabulary().pad_id
    begin, (ids,) = encode(prefix), engine.translator.codec.encode_sources([source])
    words = [encode(f"{prefix} {each.word}") for each in found]
    rows = [(own + [pad_id] * POSITIONS)[:POSITIONS] for own in words]
    logits = jax.jit(engine.translator.model.apply)(
        {"params": engine.translator.params},
        jnp.array([ids] * len(rows), jnp.int32),
        jnp.array(rows, jnp.int32),
    )
    values = np.array(jax.nn.log_softmax(logits), np.float64)
    for each, own, row in zip(found, words, values, strict=True):
        assert " " not in each.word
        assert each.text == prefix or each.text.startswith(f"{prefix} {each.word}")
        places = range(len(begin), len(own))
        value = sum(row[place, own[place]] for place in places)
        likely = np.argsort(-row[len(own)])[:64].tolist()
        ends = [token for token in likely if engine.words.ends(token)]
        ending = np.exp(row[len(own), ends]).sum()
        assert each.probability == pytest.approx(np.exp(value) * ending, rel=1e-3)


def test_alternatives_keep_placeholders(engine):
    """Each translation has all of them; where they cannot be required there is none."""
    found = engine.alternatives("Open {name}", "Die {name}", 4)
    assert found
    for each in found:
        assert each.text.startswith("Die {name}")
        assert each.text.count("{name}") == 1
    greedy = TranslationEngine(translator(beam_size=1))
    assert greedy.alternatives("Open {name}", "", 4) == []


def test_there_is_no_alternative_where_there_is_no_room(engine):
    assert engine.alternatives("  ", "", 4) == []
    words = runs.vocabulary().encode("Open")
    room = len(words) + EXTRA - 1
    prefix = runs.vocabulary().decode(runs.vocabulary().encode("Datei " * 9)[:room])
    assert engine.alternatives("Open", prefix, 4) == []
    with pytest.raises(ServingError, match="at most 16 tokens here"):
        engine.alternatives(" ".join(texts(6)), "", 4)


def test_attention(engine):
    """The translator's, of given pairs and of its own translation, with what else was
    probable.
    """
    (source,) = texts(1)
    for target in ("Die Datei", engine.translator.translate([source])[0]):
        found, candidates = engine.attend(source, target, k=3)
        expected = engine.translator.attention(source, target)
        for kind in ("encoder", "decoder", "cross"):
            sides = getattr(found, kind), getattr(expected, kind)
            np.testing.assert_allclose(*sides, rtol=1e-5, atol=1e-6)
        assert found.target_tokens == expected.target_tokens
        assert [len(own) for own in candidates] == [3] * len(found.target_tokens)
        values = [[-value for _, value in own] for own in candidates]
        assert values == [sorted(own) for own in values]
    with pytest.raises(ServingError, match="at most 16 tokens here, not 2") as error:
        engine.attend(source, "Datei " * 9, k=1)
    assert (error.value.code, error.value.limit) == ("too_many_tokens", 16)


def test_scores(engine):
    given = [Pair(source, "Datei") for source in texts(6)]
    expected = engine.translator.score(given)
    for pair, other in zip(given, expected, strict=True):
        own = engine.score(pair)
        assert own.tokens == other.tokens
        assert own.log_probability == pytest.approx(other.log_probability, rel=1e-5)
    with pytest.raises(ServingError, match="at most 16 tokens here, not 51"):
        engine.score(Pair("a", " ".join(texts(6))))


def test_devices_share_a_batch(monkeypatch):
    """Each has as many rows."""
    monkeypatch.setattr(models, "mesh_of_devices", ALL_DEVICES)
    engine = warm(TranslationEngine(translator(beam_size=1), rows=1))
    assert engine.programs.rows(PLAIN) == jax.local_device_count() > 1
    sources = texts(3)
    assert_same(search(engine, PLAIN, sources), engine.translator.search(sources))
