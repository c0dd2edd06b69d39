"""Searches within a shortlist, against searches of everything by models that hold
the rest impossible.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import many, source_ids, token_ids

import runs
from jaxformer.errors import InputError
from jaxformer.search.constraints import Constraints
from jaxformer.translation.batch import Sentence
from jaxformer.translation.shortlist import Shortlist, Side
from jaxformer.translation.translator import Hypothesis, Translator

WAYS = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 3},
    "sample": {"sample": True, "seed": 3},
}


def draw_shortlist(
    seed: int, columns: int = 400, best: int = 12, first: int = 30
) -> Shortlist:
    generator = np.random.default_rng(seed)
    table = generator.integers(4, 400, (400, best)).astype(np.int32)
    table[generator.random(table.shape) < 0.2] = -1
    frequent = np.union1d(generator.choice(400, first, replace=False), range(4)).astype(
        np.int32
    )
    return Shortlist(frequent, table, "hash")


def short(translator: Translator, shortlist: Shortlist) -> Translator:
    found = copy.copy(translator)
    found.shortlist = shortlist
    return found


def tokens_by_hand(
    shortlist: Shortlist, ids: list[int], needed: Sequence[int] = ()
) -> set[int]:
    found = {0, 1, 2, 3, *shortlist.first.tolist(), *needed}
    for token in ids:
        found |= {word for word in shortlist.best[token].tolist() if word >= 0}
    return found


def forbid_others(translator: Translator, allowed: set[int]) -> Translator:
    """Return the same model with a bias that makes all other tokens impossible."""
    found = copy.copy(translator)
    bias = np.full(translator.model.config.vocabulary_size, -np.inf, np.float32)
    bias[list(allowed)] = 0
    logits = {"bias": translator.params["logits"]["bias"] + jnp.asarray(bias)}
    found.models = found.models._replace(
        params=({**translator.params, "logits": logits},)
    )
    return found


def biased(**changes) -> Translator:
    """Make a translator with an output bias, of columns beyond the vocabulary."""
    found = runs.translator(output_bias=True, **changes)
    bias = (
        np.random.default_rng(1)
        .normal(size=found.model.config.vocabulary_size)
        .astype(np.float32)
    )
    found.models = found.models._replace(
        params=({**found.params, "logits": {"bias": jnp.asarray(bias)}},)
    )
    return found


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert [each.finished for each in found] == [each.finished for each in expected]
    for name in ("score", "log_probability"):
        values = [[getattr(each, name) for each in side] for side in (found, expected)]
        np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-4)


# The list of a sentence


def test_list_of_a_sentence():
    """It is the union of the frequent tokens, the special ones, the translations of
    its tokens and what is needed.
    """
    shortlist, generator = draw_shortlist(1), np.random.default_rng(2)
    for _ in range(20):
        ids = generator.integers(0, 400, generator.integers(1, 30)).tolist()
        needed = generator.integers(0, 400, generator.integers(0, 4)).tolist()
        found = shortlist.tokens_of(ids, needed).tolist()
        assert found == sorted(tokens_by_hand(shortlist, ids, needed))
        assert found[:4] == [0, 1, 2, 3]


def batch(texts: list[list[int]]) -> list[Sentence]:
    return [Sentence(ids, len(ids), [], (n, 0)) for n, ids in enumerate(texts)]


def test_lists_of_a_batch():
    """Each sentence may have the tokens of its own list, in sizes that are few; none
    comes twice in a row's list.
    """
    shortlist, generator = draw_shortlist(3, best=20), np.random.default_rng(4)
    sizes = set()
    for columns in (400, 448, 4000):
        for count in (1, 3, 8):
            texts = [generator.integers(0, 400, 6).tolist() for _ in range(count)]
            lists = [shortlist.tokens_of(ids) for ids in texts]
            part = shortlist.within(batch(texts), 8, columns)
            tokens, allowed = np.asarray(part.tokens), np.asarray(part.allowed)
            assert tokens[:4].tolist() == [0, 1, 2, 3]
            assert (np.diff(tokens) >= 0).all()
            for row, own in enumerate(lists):
                assert tokens[allowed[row]].tolist() == own.tolist()
            assert allowed[count:].all()
            sizes.add((columns, len(tokens)))
    assert sizes <= {
        (columns, min(size, columns))
        for columns in (400, 448, 4000)
        for size in (256, 512)
    }


def test_constraints_move_into_the_list():
    """Banned tokens, phrases and prefixes name the same tokens by their new numbers,
    by a dictionary and loops.
    """
    generator = np.random.default_rng(5)
    shortlist = draw_shortlist(6, best=20)
    texts = [generator.integers(0, 400, 6).tolist() for _ in range(3)]
    lists = [shortlist.tokens_of(ids) for ids in texts]
    part = shortlist.within(batch(texts), 4, 4000)
    place = {}
    for number, token in enumerate(np.asarray(part.tokens).tolist()):
        place.setdefault(token, number)
    banned = generator.random(4000) < 0.3
    inside = sorted(place)
    phrases = np.full((16, 4), -1, np.int32)
    for row in phrases[:12]:
        length = generator.integers(1, 5)
        row[-length:] = generator.choice(
            inside if generator.random() < 0.5 else 4000, length
        )
    prefixes = np.full((4, 8), -1, np.int32)
    prefixes[0, :3] = generator.choice(lists[0], 3)
    found = part.constraints(
        Constraints(banned_tokens=banned, banned_phrases=phrases, prefixes=prefixes)
    )
    assert np.asarray(found.banned_tokens).tolist() == [
        bool(banned[token]) for token in np.asarray(part.tokens)
    ]
    for row, own in zip(
        phrases.tolist(), np.asarray(found.banned_phrases).tolist(), strict=True
    ):
        known = all(token in place for token in row if token >= 0)
        assert own == ([place.get(token, -1) for token in row] if known else [-1] * 4)
    assert np.asarray(found.prefixes)[0].tolist() == [
        place.get(token, -1) for token in prefixes[0].tolist()
    ]
    assert part.constraints(Constraints()) == Constraints()


# Searches


@pytest.mark.parametrize(
    ("way", "tied"),
    [
        ("greedy", "none"),
        ("beam", "none"),
        ("beam", "target"),
        ("beam", "all"),
        ("sample", "none"),
    ],
)
def test_search_within_a_list(way, tied):
    """It is the search of all by a model that holds the rest impossible, sentence by
    sentence.
    """
    translator = biased() if tied == "none" else tied_translator(tied)
    decoding = dataclasses.replace(translator.decoding, **WAYS[way])
    shortlist, texts = draw_shortlist(6), many()[:7]
    found = short(translator, shortlist).search(
        texts, decoding=decoding, n_best=2 if way != "greedy" else 1
    )
    differ = 0
    for number, text in enumerate(texts):
        ids = source_ids(translator, text)
        allowed = tokens_by_hand(shortlist, ids)
        for each in found[number]:
            assert set(token_ids(translator, each)) <= allowed
        if way == "sample" and number:
            continue  # what is drawn depends on the number of the sentence
        (expected,) = forbid_others(translator, allowed).search(
            [text], decoding=decoding, n_best=len(found[number])
        )
        assert_same(found[number], expected)
        differ += (
            translator.search([text], decoding=decoding)[0][0].tokens
            != expected[0].tokens
        )
    assert differ > (0 if way == "sample" else 2)


def tied_translator(tied: str) -> Translator:
    """Make a translator whose table is for several ends."""
    translator = biased()
    config = dataclasses.replace(translator.model.config, tied_embeddings=tied)
    params = dict(translator.params)
    table = params.pop("output")
    if tied == "all":
        params = {
            name: value
            for name, value in params.items()
            if not name.endswith("embedding")
        }
    params["embedding" if tied == "all" else "target_embedding"] = {"table": table}
    return Translator(config, params, translator.vocabularies, translator.decoding)


def test_neighbours_do_not_lengthen_the_list():
    """A sentence has the translation that it has alone, beside any others."""
    translator, texts = short(biased(), draw_shortlist(7)), many()[:8]
    together = [best[0] for best in translator.search(texts, beam_size=3)]
    alone = [translator.search([text], beam_size=3)[0][0] for text in texts]
    assert_same(together, alone)
    sampling = dataclasses.replace(translator.decoding, sample=True, seed=5)
    (first, *_) = translator.search(texts, decoding=sampling, n_best=3)
    assert_same(translator.search(texts[:1], decoding=sampling, n_best=3)[0], first)


def test_what_the_list_holds_is_found_as_before():
    """Where everything that greedy search writes is on the list, and more, it writes
    the same, more probably.
    """
    translator, texts = biased(), many()[:8]
    plain = [best[0] for best in translator.search(texts, beam_size=1)]
    needed = {token for each in plain for token in token_ids(translator, each)}
    extra = np.random.default_rng(8).choice(400, 60, replace=False).tolist()
    first = np.array(sorted({0, 1, 2, 3, *needed, *extra}), np.int32)
    assert len(first) < 380
    shortlist = Shortlist(first, np.full((400, 1), -1, np.int32), "hash")
    found = [
        best[0] for best in short(translator, shortlist).search(texts, beam_size=1)
    ]
    assert [each.text for each in found] == [each.text for each in plain]
    assert all(
        short.log_probability > full.log_probability
        for short, full in zip(found, plain, strict=True)
    )


def test_options_hold_within_a_list():
    """Prefixes of tokens that are not on the list come nevertheless; bans and
    repetitions keep their meaning.
    """
    translator, shortlist, texts = biased(), draw_shortlist(9), many()[:6]
    asked = short(translator, shortlist)
    prefixes = [pair.target.split()[0] for pair in runs.pairs()[20:26]]
    encoded = [runs.vocabulary().encode(prefix) for prefix in prefixes]
    banned = [
        runs.vocabulary().pieces([token])[0].strip("▁")
        for token in shortlist.first[4:8].tolist()
    ]
    banned = [word for word in banned if word]
    decoding = dataclasses.replace(
        translator.decoding,
        beam_size=3,
        no_repeat_ngram=2,
        no_unknown=True,
        min_length=4,
    )
    found = asked.search(texts, decoding=decoding, prefixes=prefixes, ban=banned)
    outside = 0
    for text, prefix, ids, (best,) in zip(texts, prefixes, encoded, found, strict=True):
        allowed = tokens_by_hand(shortlist, source_ids(translator, text), ids)
        outside += not set(ids) <= tokens_by_hand(
            shortlist, source_ids(translator, text)
        )
        plain = forbid_others(translator, allowed)
        (expected,) = plain.search(
            [text], decoding=decoding, prefixes=[prefix], ban=banned
        )
        assert token_ids(translator, best)[: len(ids)] == ids
        assert_same([best], expected)
    assert outside


def test_ensembles_keep_to_the_list():
    """Models of an ensemble hold what is not on the list impossible, each by itself."""
    first, second = biased(), biased(eos=1.0)
    shortlist, texts = draw_shortlist(10), many()[:4]
    found = short(Translator.ensemble([first, second]), shortlist).search(
        texts, beam_size=2
    )
    for text, best in zip(texts, found, strict=True):
        allowed = tokens_by_hand(shortlist, source_ids(first, text))
        expected = Translator.ensemble(
            [forbid_others(model, allowed) for model in (first, second)]
        )
        assert_same(best, expected.search([text], beam_size=2)[0])


# The file


def test_learn_save_load(tmp_path):
    """The most frequent tokens and the special ones, and the translations; a file
    gives back what was saved.
    """
    generator = np.random.default_rng(11)
    dictionary = generator.permutation(np.arange(4, 60))
    sources = [generator.choice(56, 6).tolist() for _ in range(300)]
    targets = [[*dictionary[ids].tolist(), 5, 6, 5] for ids in sources]
    sides = [
        Side(
            np.array([token for ids in text for token in ids], np.int32),
            np.concatenate([[0], np.cumsum([len(ids) for ids in text])]),
            60,
        )
        for text in (sources, targets)
    ]
    found = Shortlist.learn(*sides, "abc", first=2, best=3)
    assert found.first.tolist() == [0, 1, 2, 3, 5, 6]
    assert all(dictionary[token] in found.best[token] for token in range(56))
    assert found.best.shape == (60, 3)
    assert (found.best[56:] == -1).all()
    found.save(tmp_path / "shortlist.npz")
    back = Shortlist.load(str(tmp_path / "shortlist.npz"), "abc")
    np.testing.assert_array_equal(back.first, found.first)
    np.testing.assert_array_equal(back.best, found.best)
    assert [path.name for path in tmp_path.iterdir()] == ["shortlist.npz"]
    with pytest.raises(
        InputError, match=r"at least 1 and at most 10,000 .*: first is 0"
    ):
        Shortlist.learn(*sides, "abc", first=0)


def test_files_that_do_not_fit_are_refused(tmp_path):
    """One that is missing, damaged, or of another vocabulary says how to make a
    right one.
    """
    path = tmp_path / "shortlist.npz"
    with pytest.raises(
        InputError, match="no shortlist yet; make one: jaxformer shortlist --workdir="
    ):
        Shortlist.load(path, "abc")
    draw_shortlist(1).save(path)
    with pytest.raises(
        InputError, match=r"another vocabulary \(hash hash\) than the run's \(abc\)"
    ):
        Shortlist.load(path, "abc")
    good = draw_shortlist(1)
    rows = len(good.best)
    assert Shortlist.load(path, "hash", (rows, 1_000)).best.shape == good.best.shape
    for changes, sizes in (
        ({"first": good.first[None]}, None),
        ({"first": good.first[4:]}, None),
        ({"first": good.first.astype(float)}, None),
        ({"best": good.best[0]}, None),
        ({"best": good.best[0, 0]}, None),
        ({"best": np.full_like(good.best, -2)}, None),
        ({}, (rows + 1, 1_000)),
        ({}, (rows, 4)),
    ):
        good._replace(**changes).save(path)
        with pytest.raises(
            InputError, match=r"is damaged: its tables have other shapes .*; make one"
        ):
            Shortlist.load(path, "hash", sizes)
    good.save(path)
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:100], whole[:-200]):
        path.write_bytes(content)
        with pytest.raises(InputError, match="is damaged; make one"):
            Shortlist.load(path, "hash")
