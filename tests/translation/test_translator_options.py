"""The options of a search as a translator takes them: lengths, what may not come, what
must, samples, and wrong arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from translation.translators import (
    PADDED,
    assert_scores_are_the_models,
    equally_long,
    random_translator,
    texts_and_tokens,
)

import runs
from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.translation import compiled as compiled_search
from jaxformer.translation.batch import least_tokens, most_tokens
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator

SAMPLING = {"sample": True, "seed": 3, "top_k": 390, "top_p": 0.99}
SAMPLING |= {"min_p": 1e-4, "epsilon": 1e-6}
WAYS = {"greedy": {"beam_size": 1}, "beam": {"beam_size": 4}, "sample": SAMPLING}
PREFIXES = ["Datei", "", ["Die", "öffnen"], ["", "Datei"], [], "Die"]


@functools.cache
def padded() -> Translator:
    """Make a translator with output columns beyond the vocabulary."""
    return random_translator(vocabulary_size=PADDED)


def search(translator: Translator, more=None, **changes) -> list[Hypothesis]:
    decoding = dataclasses.replace(translator.decoding, **changes)
    found = translator.search(equally_long(), decoding=decoding, **(more or {}))
    return [best for best, *_ in found]


def spelled(phrase: str) -> tuple[str, ...]:
    return tuple(runs.vocabulary().pieces(runs.vocabulary().encode(phrase)))


def ngrams(best: Hypothesis, n: int) -> list[tuple[str, ...]]:
    return [tuple(best.tokens[at : at + n]) for at in range(len(best.tokens) - n + 1)]


def holds(best: Hypothesis, phrase: str) -> bool:
    return spelled(phrase) in ngrams(best, len(spelled(phrase)))


def test_without_options_everything_may_come():
    """What the options of the other tests forbid occurs without them, also pieces for
    columns beyond the vocabulary, which are unknown tokens.
    """
    found = search(padded(), **WAYS["greedy"])
    assert any("<unk>" in best.tokens and "⁇" in best.text for best in found)
    assert any(len(set(ngrams(best, 2))) < len(ngrams(best, 2)) for best in found)
    assert max(len(best.tokens) for best in found) > 13
    assert not all(best.text.startswith("Die") for best in found)


@pytest.mark.parametrize("way", WAYS)
def test_options(way):
    """Lengths, prefixes, bans and penalties hold together, log-probabilities stay those
    of the model, and other values compile nothing.
    """
    translator = padded()

    def ask(number: int, banned: list[str]) -> list[Hypothesis]:
        changes = {
            "min_length": number,
            "min_length_ratio": 0.1 * number,
            "max_target_length": 2 * number,
            "max_length_ratio": number / 5,
            "no_repeat_ngram": 2,
            "no_unknown": True,
            "alpha": number / 10,
            "repetition_penalty": 1 + number / 10,
            **WAYS[way],
        }
        more = {"prefixes": PREFIXES, "ban": banned}
        return search(translator, more, **changes)

    free = ask(6, ["Tabelle"])
    banned = [
        piece[1:] for best in free for piece in best.tokens[3:] if piece[0] == "▁"
    ]
    banned = [word for word in dict.fromkeys(banned) if word not in ("", "Die")][:1]
    phrase = next(
        text
        for best in free
        for pair in ngrams(best, 2)[3:]
        if len(spelled(text := "".join(pair).replace("▁", " ").strip())) == 2
        and spelled(text) == pair
    )
    compiled = cast(Any, compiled_search._search)._cache_size
    before, found = compiled(), ask(6, [*banned, phrase])
    for best, prefixes in zip(found, PREFIXES, strict=True):
        assert 6 <= len(best.tokens) <= 12
        assert best.finished or len(best.tokens) == 12
        assert "<unk>" not in best.tokens
        assert len(set(ngrams(best, 2))) == len(ngrams(best, 2))
        assert not any(holds(best, word) for word in [*banned, phrase])
        choices = prefixes if isinstance(prefixes, list) else [prefixes]
        begin = [spelled(prefix) for prefix in choices or [""]]
        assert any(tuple(best.tokens[: len(each)]) == each for each in begin)
        score = best.log_probability / ((5 + len(best.tokens)) / 6) ** 0.6
        again = len(set(best.tokens)) < len(best.tokens)
        assert best.score == pytest.approx(score, rel=1e-5) or again
        assert best.score <= score + 1e-5
    assert_scores_are_the_models(translator, equally_long(), found)
    assert texts_and_tokens([found]) != texts_and_tokens([free])
    assert max(len(best.tokens) for best in ask(7, ["Tabelle"])) <= 14
    assert compiled() == before


def test_ratios_of_lengths_are_decimal_numbers():
    """The least and the most tokens are those of the exact product."""
    for ratio in [each / 100 for each in range(1, 300)]:
        decoding = DecodingConfig(
            min_length_ratio=ratio, max_length_ratio=ratio, max_extra_length=1000
        )
        for words in range(1, 130):
            exact = Fraction(str(ratio)) * words
            limits = least_tokens(decoding, words), most_tokens(decoding, words, 1000)
            assert limits == (math.ceil(exact), max(1, math.floor(exact)))


@pytest.mark.parametrize("word", ["the", "open"])
def test_banned_words_in_all_their_forms(word):
    """With a small or a capital letter, after a quote, a bracket or a hyphen; not in a
    longer word, and a capitalised word only as it is.
    """
    codec, vocabulary = random_translator().codec, runs.vocabulary()
    small, capital = codec.banned([word]), codec.banned([word.capitalize()])

    def is_banned(text, phrases):
        ids = vocabulary.encode(text)
        parts = [ids[i:j] for j in range(len(ids) + 1) for i in range(j)]
        return any(phrase in parts for phrase in phrases)

    marks = [x for x in "\"('" if vocabulary.unk_id not in vocabulary.encode(x)]
    assert marks
    for form in (word, word.capitalize()):
        quoted = [f"a {mark}{form}" for mark in marks]
        for text in (form, f"a {form} b", f"x-{form}", *quoted):
            assert is_banned(text, small), text
            assert is_banned(text, capital) == (form != word), text
    assert not is_banned(f"a{word}", small)
    assert vocabulary.encode("x") not in small
    assert all(small)


def test_the_first_part_of_a_split_sentence_has_the_prefix():
    """What is translated in parts begins with its prefix once, and has the tokens'
    log-probabilities of all parts.
    """
    long = " ".join(runs.sentences(6, longest=9, shortest=9))
    translator = random_translator()
    changes = {"long_sources": "split", "max_source_length": 12, "beam_size": 1}
    decoding = dataclasses.replace(translator.decoding, **changes)
    ((best,),) = translator.search([long], decoding=decoding, prefixes=["Datei"])
    assert best.text.startswith("Datei")
    assert best.text.count("Datei") == 1
    assert len(best.token_log_probabilities) == len(best.tokens) > 12
    total = math.fsum(best.token_log_probabilities)
    assert total == pytest.approx(best.log_probability, rel=1e-5)


def test_groups_give_translations_that_differ_more():
    """Translations of different groups share fewer tokens; none comes twice."""

    def overlap(**changes) -> float:
        decoding = dataclasses.replace(random_translator().decoding, **changes)
        found = random_translator().search(equally_long(), n_best=4, decoding=decoding)
        pairs = [
            (set(x.tokens), set(y.tokens)) for own in found for x in own for y in own
        ]
        assert len({(*x.tokens,) for own in found for x in own}) == 4 * len(found)
        return float(np.mean([len(x & y) / len(x | y) for x, y in pairs]))

    assert overlap(diversity_groups=4, diversity_strength=3.0) < overlap() - 0.1


def test_required_phrases_are_written():
    """Each sentence has its own or none; where there is no room, the translation does
    not end.
    """
    required = [
        ["Datei", "die Tabelle"],
        [],
        [""],
        ["Datei"],
        ["öffnen"] * 2,
        [],
        ["x"],
    ]
    texts = [*equally_long(), ""]

    def ask(most: int) -> list[Hypothesis]:
        decoding = dataclasses.replace(
            random_translator().decoding, max_target_length=most
        )
        found = random_translator().search(texts, decoding=decoding, required=required)
        return [best for best, *_ in found]

    for best, phrases in zip(ask(20)[:-1], required, strict=False):
        assert all(holds(best, phrase) for phrase in phrases if phrase)
        assert len(best.tokens) <= 20
    narrow = ask(6)
    assert not narrow[0].finished
    assert len(narrow[0].tokens) == 6
    assert narrow[-1].text == ""


def test_samples_depend_on_seed_and_place():
    """Other batches, and windows of a stream, give the same samples, with the model's
    log-probability; another seed gives others.
    """
    translator, texts = random_translator(), equally_long()
    chosen = dataclasses.replace(translator.decoding, **SAMPLING, temperature=0.9)

    def ask(**changes) -> list[list[Hypothesis]]:
        decoding = dataclasses.replace(chosen, beam_size=1, **changes)
        return translator.search(texts, n_best=3, decoding=decoding)

    found = ask()
    expected = texts_and_tokens(found)
    stream = translator.stream(texts, n_best=3, decoding=chosen, window=3)
    assert texts_and_tokens(list(stream)) == expected
    assert texts_and_tokens(ask(seed=8)) != expected
    assert len({str(sample) for own in expected for sample in own}) > 12
    for samples in zip(*found, strict=True):
        assert_scores_are_the_models(translator, texts, list(samples))
    greedy = texts_and_tokens(translator.search(texts, beam_size=1))
    assert texts_and_tokens(ask(temperature=0.0)) == [own * 3 for own in greedy]


SAMPLES = DecodingConfig(sample=True)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            {"n_best": 3, "beam_size": 2},
            "n_best must be from 1 to 2, the beam, not 3: widen beam_size",
        ),
        (
            {"n_best": 0, "decoding": SAMPLES},
            "n_best must be from 1 to 10,000, the most samples, not 0",
        ),
        ({"beam_size": 0}, "decoding.beam_size must be at least 1, not 0"),
        ({"alignment_layer": 1}, "an alignment layer is for alignments"),
        ({"prefixes": "ab"}, "prefixes must be a list, not one string"),
        ({"ban": "ab"}, "ban must be a list, not one string"),
        ({"ban": ["a", " "]}, "a banned word must not be blank"),
        ({"required": [], "beam_size": 1}, "a beam_size of at least 2, not 1"),
        (
            {"required": [], "decoding": SAMPLES},
            "a beam_size of at least 2, not samples",
        ),
    ],
)
def test_wrong_arguments(given, rule):
    """They are refused in one line before any text is read."""
    texts = iter(["open", "close"])
    with pytest.raises(InputError, match=rule) as error:
        random_translator().stream(texts, **given)
    assert "\n" not in str(error.value)
    assert len(list(texts)) == 2


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"prefixes": ["a"]}, r"prefixes\[1\] is missing: give one for each sentence"),
        ({"texts": ["a", 3]}, r"texts\[1\] must be a string, not int"),
        ({"prefixes": ["", None]}, r"prefixes\[1\] .* list of strings, not NoneType"),
        ({"required": [["日本"], []]}, "1 has the .* '日本', which the vocabulary"),
        ({"prefixes": [["a", "日本"], ""]}, "1 has the prefix '日本', which the vocab"),
        ({"prefixes": ["a", "a " * 99]}, r"2 has a prefix of \d+ tokens, .* at most"),
    ],
)
def test_wrong_lines(given, rule):
    """One line names the argument and the place in it."""
    given = {"texts": ["open", "close"], **given}
    with pytest.raises(InputError, match=rule) as error:
        random_translator().search(**given)
    assert "\n" not in str(error.value)


def test_a_text_is_no_list_of_texts():
    with pytest.raises(InputError, match="texts must be a list, not one string"):
        random_translator().translate("Open the file.")


def test_what_is_written_into_a_translation_stays_there():
    """No two translations share their lists, not even those of blank lines."""
    for (best,) in random_translator().search(["", ""], alignment=True):
        assert not best.tokens
        best.tokens.append("x")
