"""The options of a search as a translator takes them: lengths, what may not come,
what must, and samples.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import numpy as np
import pytest
from translation.translators import (
    PADDED,
    equally_long,
    many,
    random_translator,
    rescore,
    token_ids,
)

import runs
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.constraints import Constraints
from jaxformer.translation import compiled as compiled_search
from jaxformer.translation import translator as translator_module
from jaxformer.translation.results import Hypothesis, nothing

WAYS = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4},
    "sample": {"sample": True, "seed": 3},
}


def settings(**changes) -> DecodingConfig:
    return dataclasses.replace(random_translator().decoding, **changes)


def search(texts: list[str], changes: dict, **more) -> list[Hypothesis]:
    return [
        best[0]
        for best in random_translator().search(
            texts, decoding=settings(**changes), **more
        )
    ]


def source_tokens(text: str) -> int:
    return len(runs.vocabulary().encode(text))


def ngrams(tokens: list[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]


# Lengths


@pytest.mark.parametrize("way", WAYS)
def test_least_and_most_lengths(way):
    """Lengths, absolute and in parts of the source's, hold for each sentence, its
    end of sentence counted.
    """
    texts = many()
    changes = {
        "min_length": 8,
        "min_length_ratio": 0.5,
        "max_target_length": 14,
        "max_length_ratio": 1.5,
    }
    plain = [len(best.tokens) for best in search(texts, WAYS[way])]
    found = search(texts, {**WAYS[way], **changes})
    for text, best in zip(texts, found, strict=True):
        words = source_tokens(text)
        most = min(words + 20, 14, max(1, int(1.5 * words)))
        least = min(most, max(8, math.ceil(0.5 * words)))
        assert least <= len(best.tokens) <= most
        assert best.finished or len(best.tokens) == most
    assert min(plain) < 8
    assert max(plain) > 14


@pytest.mark.parametrize(
    ("name", "beam_size"), [("gnmt", 4), ("average", 1), ("none", 4)]
)
def test_length_penalty_by_name(name, beam_size):
    """The score of every hypothesis is that of the penalty that was named."""
    changes = {"length_penalty": name, "alpha": 0.8, "beam_size": beam_size}
    for (best,) in random_translator().search(
        equally_long(), decoding=settings(**changes)
    ):
        size = len(best.tokens)
        penalty = {"gnmt": ((5 + size) / 6) ** 0.8, "average": size**0.8, "none": 1.0}[
            name
        ]
        assert best.score == pytest.approx(best.log_probability / penalty, rel=1e-5)


# What may not come, and what must


@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_repeated(way):
    """No two tokens come twice in the same order; without the option, some do."""
    texts = many()
    plain = [ngrams(best.tokens, 2) for best in search(texts, WAYS[way])]
    assert any(len(set(pairs)) < len(pairs) for pairs in plain)
    for best in search(texts, {**WAYS[way], "no_repeat_ngram": 2}):
        pairs = ngrams(best.tokens, 2)
        assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("way", ["greedy", "beam"])
def test_repetition_penalty_changes_scores_alone(way):
    """Tokens come less often again; the log-probability stays that of a forward
    pass.
    """
    plain = search(equally_long(), WAYS[way])
    found = search(equally_long(), {**WAYS[way], "repetition_penalty": 4.0})

    def repeated(hypotheses):
        return sum(len(best.tokens) - len(set(best.tokens)) for best in hypotheses)

    assert repeated(found) < repeated(plain) / 2
    np.testing.assert_allclose(
        [best.log_probability for best in found],
        rescore(random_translator(), equally_long(), found),
        rtol=1e-4,
        atol=1e-4,
    )
    for best in found:
        plain_score = best.log_probability / ((5 + len(best.tokens)) / 6) ** 0.6
        again = len(set(best.tokens)) < len(best.tokens)
        assert (
            best.score < plain_score - 0.1
            if again
            else best.score == pytest.approx(plain_score, rel=1e-5)
        )


@pytest.mark.parametrize("way", WAYS)
def test_banned_words_are_not_written(way):
    """What is banned is in no translation, whether it is one piece or several, and
    what is not may come.
    """
    texts = many()
    vocabulary = runs.vocabulary()
    plain = search(texts, WAYS[way])
    pieces = {piece for best in plain for piece in best.tokens}
    words = [
        piece.removeprefix("▁")
        for piece in sorted(pieces)
        if piece.startswith("▁") and len(piece) > 2
    ][:4]
    assert len(words) > 1
    # Two tokens that follow each other somewhere, as a text that is spelled by these
    # very tokens.
    spelled = sorted(
        {
            "".join(pair)
            for best in plain
            for pair in ngrams(best.tokens, 2)
            if pair[0].startswith("▁")
        }
    )
    phrase = next(
        text.replace("▁", " ").strip()
        for text in spelled
        if text.count("▁") == 1
        and len(vocabulary.encode(text.replace("▁", " ").strip())) == 2
    )
    banned = [*words, phrase]
    found = search(texts, WAYS[way], ban=banned)
    for best in found:
        for word in banned:
            spelling = tuple(vocabulary.pieces(vocabulary.encode(word)))
            assert spelling not in ngrams(best.tokens, len(spelling))
    same = [one.tokens == other.tokens for one, other in zip(found, plain, strict=True)]
    assert not all(same)
    assert any(same)


@pytest.mark.parametrize("word", ["the", "file", "open"])
def test_banned_words_in_all_their_forms(word):
    """Small, with a capital, behind a quote, a bracket or a hyphen; neither within a
    longer word nor the other way.
    """
    codec, vocabulary = random_translator().codec, runs.vocabulary()
    small, capital = codec.banned([word]), codec.banned([word.capitalize()])

    def is_banned(text, phrases):
        ids = vocabulary.encode(text)
        return any(
            ids[i : i + len(phrase)] == phrase
            for phrase in phrases
            for i in range(len(ids))
        )

    known = [
        mark for mark in "\"('" if vocabulary.unk_id not in vocabulary.encode(mark)
    ]
    assert known
    for form in (word, word.capitalize()):
        for text in (
            form,
            f"a {form} b",
            f"x-{form}",
            *(f"a {mark}{form}" for mark in known),
        ):
            assert is_banned(text, small), text
            assert is_banned(text, capital) == (form != word), text
    assert not is_banned(f"a{word}", small)
    assert vocabulary.encode("x") not in small
    assert all(small)


@pytest.mark.parametrize("way", WAYS)
def test_unknown_is_not_written(way):
    """Neither the unknown token nor a column beyond the vocabulary comes, though the
    model likes them.
    """
    translator = random_translator(vocabulary_size=PADDED)
    for no_unknown in (False, True):
        decoding = dataclasses.replace(
            translator.decoding, no_unknown=no_unknown, **WAYS[way]
        )
        found = [best[0] for best in translator.search(many(), decoding=decoding)]
        assert any("<unk>" in best.tokens for best in found) != no_unknown
        assert any("⁇" in best.text for best in found) != no_unknown


@pytest.mark.parametrize("way", WAYS)
def test_translations_begin_with_their_prefixes(way):
    """Each sentence has its own prefix or none, which a ban does not touch, and the
    score is the model's.
    """
    texts = [*equally_long(), "", equally_long()[0]]
    prefixes = ["Datei öffnen", "", "Die", "Die Datei öffnen", "", "öffnen", "Die", ""]
    found = search(texts, WAYS[way], prefixes=prefixes, ban=["öffnen"])
    for prefix, best in zip(prefixes, found, strict=True):
        forced = runs.vocabulary().pieces(runs.vocabulary().encode(prefix))
        if best.tokens:
            assert best.tokens[: len(forced)] == forced
            assert best.text.startswith(prefix)
            assert len(best.tokens) > len(forced)
    assert found[6] == Hypothesis("", 0.0, 0.0, [], True, [])
    count = len(equally_long())
    np.testing.assert_allclose(
        [best.log_probability for best in found[:count]],
        rescore(random_translator(), equally_long(), found[:count]),
        rtol=1e-4,
        atol=1e-4,
    )


def test_the_first_part_of_a_split_sentence_has_the_prefix():
    """What is translated in parts begins with its prefix once."""
    long = " ".join(runs.sentences(6, longest=9, shortest=9))
    decoding = settings(long_sources="split", max_source_length=12)
    (best,) = random_translator().search([long], decoding=decoding, prefixes=["Datei"])[
        0
    ]
    parts = random_translator().search([long], decoding=decoding)[0][0].text
    assert best.text.startswith("Datei")
    assert not parts.startswith("Datei")


@pytest.mark.parametrize("way", WAYS)
def test_where_nothing_may_come_there_is_no_translation(way, monkeypatch):
    """A dead end is an empty text that says so by its score, for every sentence that
    is not blank.
    """
    columns = random_translator().model.config.vocabulary_size
    nothing = Constraints(banned_tokens=np.ones(columns, bool))
    monkeypatch.setattr(translator_module, "ban_tokens", lambda *_: nothing)
    texts = [*equally_long(), ""]
    found = search(texts, WAYS[way])
    assert found[:-1] == [Hypothesis("", -math.inf, -math.inf, [], False, [])] * len(
        equally_long()
    )
    assert found[-1].finished


# Samples


def test_samples_depend_on_seed_and_place_alone():
    """Batches of 1, 8 and 30, more samples and other neighbours behind give the same
    samples.
    """
    texts = many()
    chosen = settings(
        sample=True,
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        epsilon=0.001,
        seed=7,
    )

    def tokens(count=None, n_best=2, **changes):
        decoding = dataclasses.replace(chosen, **changes)
        found = random_translator().search(
            texts[:count], n_best=n_best, decoding=decoding
        )
        return [[sample.tokens for sample in samples] for samples in found]

    expected = tokens()
    for batch_size in (1, 30):
        assert tokens(batch_size=batch_size) == expected
    assert [samples[:2] for samples in tokens(n_best=5)] == expected
    assert tokens(count=9) == expected[:9]
    assert tokens(seed=8) != expected
    assert sum(one != other for one, other in expected) > 10


def test_cold_samples_are_the_greedy_translation():
    """Temperature 0 leaves the most probable token alone."""
    greedy = search(many(), WAYS["greedy"])
    samples = random_translator().search(
        many(), n_best=2, decoding=settings(sample=True, temperature=0.0)
    )
    for best, drawn in zip(greedy, samples, strict=True):
        assert [sample.tokens for sample in drawn] == [best.tokens] * 2
        assert drawn[0].log_probability == pytest.approx(best.log_probability, rel=1e-5)


def test_samples_have_the_models_log_probability():
    """Whatever was cut off to draw them."""
    decoding = settings(sample=True, temperature=0.5, top_k=5, top_p=0.9)
    found = [
        best[0]
        for best in random_translator().search(equally_long(), decoding=decoding)
    ]
    expected = rescore(random_translator(), equally_long(), found)
    np.testing.assert_allclose(
        [best.log_probability for best in found], expected, rtol=1e-4, atol=1e-4
    )
    assert all(token_ids(random_translator(), best) for best in found)


# Faults, and compilations


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            {"prefixes": ["a"]},
            "there are 1 prefixes and more sentences: give one for each",
        ),
        ({"prefixes": "ab"}, "prefixes must be a list, not one string"),
        ({"ban": "ab"}, "ban must be a list, not one string"),
        ({"ban": ["a", " "]}, "a banned word must not be blank"),
        (
            {"prefixes": ["a", "a " * 100]},
            (
                r"sentence 2 has a prefix of \d+ tokens, and its .* at most \d+ with its"
                r" end: shorten"
            ),
        ),
        (
            {"n_best": 0, "decoding": DecodingConfig(sample=True)},
            "n_best must be at least 1, not 0",
        ),
    ],
)
def test_options_out_of_range(given, rule):
    with pytest.raises(InputError, match=rule) as error:
        random_translator().search(["open", "close"], **given)
    assert "\n" not in str(error.value)


CALLS = {
    "translate": lambda translator, texts, **options: translator.translate(
        texts, **options
    ),
    "search": lambda translator, texts, **options: translator.search(texts, **options),
    "stream": lambda translator, texts, **options: list(
        translator.stream(iter(texts), **options)
    ),
    "check": lambda translator, texts, **options: translator.check(
        iter(texts), **options
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_unknown_option_is_named(call):
    """As Python does for a signature; before any text is read, and where a method
    has fewer options than others too.
    """
    unknown = (
        {"beamsize": 4},
        {"prefix": ["a"]},
        *([{"n_best": 2}, {"alignment": True}] if call == "translate" else []),
    )
    for options in unknown:
        with pytest.raises(
            TypeError,
            match=rf"got an unexpected keyword argument '{next(iter(options))}'",
        ):
            CALLS[call](random_translator(), ["open"], **options)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("texts", "options", "rule"),
    [
        (["a", 3], {}, r"texts\[1\] must be a string, not int"),
        (["a", None], {}, r"texts\[1\] must be a string, not NoneType"),
        (b"ab", {}, r"texts\[0\] must be a string, not int"),
        (["a"], {"ban": ["b", 3]}, r"ban\[1\] must be a string, not int"),
        (
            ["a", "b"],
            {"prefixes": ["", None]},
            r"prefixes\[1\] must be a string or a list of strings, not NoneType",
        ),
        (
            ["a", "b"],
            {"prefixes": ["", ["c", 3.0]]},
            r"prefixes\[1\]\[1\] must be a string, not float",
        ),
        (
            ["a", "b"],
            {"required": [[], b"c"]},
            r"required\[1\] must be a string or a list of strings, not bytes",
        ),
        (["a"], {"required": [[{}]]}, r"required\[0\]\[0\] must be a string, not dict"),
    ],
)
def test_what_is_no_string_is_refused(call, texts, options, rule):
    """One line names the argument, the place in it, and the type."""
    with pytest.raises(InputError, match=rule) as error:
        CALLS[call](random_translator(), texts, **options)
    assert "\n" not in str(error.value)


def test_pairs_that_are_no_strings_are_refused():
    """In scores and in the attention too."""
    translator = random_translator()
    for pair, rule in (
        (Pair("a", cast(str, 3)), r"pairs\[1\].target"),
        (Pair(cast(str, None), "a"), r"pairs\[1\].source"),
    ):
        with pytest.raises(InputError, match=f"{rule} must be a string, not"):
            translator.score([Pair("a", "b"), pair])
    with pytest.raises(InputError, match="source must be a string, not int"):
        translator.attention(cast(str, 3))
    with pytest.raises(InputError, match="target must be a string, not list"):
        translator.attention("a", cast(str, ["b"]))


def test_what_is_written_into_a_translation_stays_there():
    """No two of them share their lists, those of blank lines and of no translation
    at all included.
    """
    translator = random_translator()
    for found in (translator.search(["", ""]), translator.search([""], alignment=True)):
        for (best,) in found:
            best.tokens.append("x")
            best.token_log_probabilities.append(1.0)
    assert (
        translator.search(["", " "], n_best=2)
        == [[Hypothesis("", 0.0, 0.0, [], True, [])]] * 2
    )
    one, other = nothing(), nothing()
    assert one == other
    assert one.tokens is not other.tokens


def test_more_samples_than_the_beam():
    """The beam is no limit to what is drawn."""
    (samples,) = random_translator().search(
        ["open"], beam_size=1, n_best=9, decoding=settings(sample=True)
    )
    assert len(samples) == 9


def test_values_are_no_recompilation():
    """Strengths, limits, words, prefixes and seeds are arguments of the compiled
    search.
    """
    texts = equally_long()[:5]
    compiled = cast(Any, compiled_search._search)._cache_size
    counts = []
    for number in (2, 3, 5):
        changes = {
            "alpha": number / 10,
            "min_length": number,
            "max_target_length": 10 * number,
            "no_repeat_ngram": number,
            "repetition_penalty": 1 + number / 10,
            "temperature": number / 5,
            "top_k": 10 * number,
            "top_p": number / 6,
            "min_p": number / 100,
            "epsilon": number / 1000,
            "seed": number,
        }
        chosen = {"no_unknown": True, **changes}
        for way in WAYS:
            words = ["Datei", "die", "und"][: number - 1]
            prefixes = ["", "Die", "", "Datei", ""] if number > 2 else ["Datei"] * 5
            random_translator().search(
                texts,
                decoding=settings(**{**chosen, **WAYS[way], "seed": number}),
                ban=words,
                prefixes=prefixes,
            )
            counts.append(compiled())
    assert counts[2:] == counts[2:3] * (len(counts) - 2)
