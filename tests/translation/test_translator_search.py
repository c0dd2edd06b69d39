"""Coverage, groups, required phrases, alternatives and log-probabilities of tokens,
with a model.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import jax
import numpy as np
import pytest
from translation.translators import (
    equally_long,
    many,
    random_translator,
    rescore,
    source_ids,
    teacher_forced,
    token_ids,
)

import runs
from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig
from jaxformer.search.rules import SearchResult
from jaxformer.translation import batch as batch_search
from jaxformer.translation import compiled as compiled_search
from jaxformer.translation.batch import Sentence
from jaxformer.translation.translator import Hypothesis

WAYS = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 4},
    "sample": {"sample": True, "seed": 3},
}


def settings(**changes) -> DecodingConfig:
    return dataclasses.replace(random_translator().decoding, **changes)


def search_batch(
    sentences: list[Sentence], *, forced: bool = False, **changes
) -> SearchResult:
    translator = random_translator()
    return batch_search.search_batch(
        translator.models,
        sentences,
        settings(**changes),
        eos_id=translator.vocabularies.target.eos_id,
        n_best=1,
        forced=forced or any(sentence.prefixes for sentence in sentences),
    )


def sentence(text: str, number: int = 0, **more) -> Sentence:
    ids = source_ids(random_translator(), text)
    return Sentence(
        ids,
        len(ids) - 1,
        more.get("prefixes", []),
        (number, 0),
        more.get("required", ()),
    )


def rows(result: SearchResult, place: int = 0) -> list[list[int]]:
    both = zip(
        result.tokens[:, place].tolist(), result.lengths[:, place].tolist(), strict=True
    )
    return [tokens[:length] for tokens, length in both]


def holds(tokens: list[int], phrase: list[int]) -> bool:
    return any(
        tokens[start : start + len(phrase)] == phrase for start in range(len(tokens))
    )


@pytest.mark.parametrize("way", WAYS)
def test_coverage_is_that_of_the_models_attention(way):
    """The score is the normalised log-probability and beta times what the last
    layer's attention has left out.
    """
    translator, texts = random_translator(), equally_long()
    beta = 0.4
    found = [
        best[0]
        for best in translator.search(
            texts,
            decoding=settings(coverage_penalty=beta, max_target_length=6, **WAYS[way]),
        )
    ]
    for text, best in zip(texts, found, strict=True):
        source, target = (
            np.array([ids], np.int32)
            for ids in (source_ids(translator, text), token_ids(translator, best))
        )
        forward = jax.jit(
            lambda *pair: translator.model.apply(
                {"params": translator.params}, *pair, method="forward"
            )
        )
        weights = np.asarray(
            cast(Any, forward(source, target))[1].cross[-1], np.float64
        )
        seen = weights[0].mean(axis=0).sum(axis=0)
        coverage = np.log(np.minimum(seen, 1)).sum()
        expected = (
            best.log_probability / ((5 + len(best.tokens)) / 6) ** 0.6 + beta * coverage
        )
        assert best.score == pytest.approx(expected, rel=1e-4)
        assert coverage < -0.1


def test_coverage_does_not_see_padding():
    """A sentence beside longer ones gets the score that it gets alone."""
    texts = many()[:6]
    decoding = settings(coverage_penalty=1.0, max_target_length=6)
    together = random_translator().search(texts, decoding=decoding)
    for text, expected in zip(texts, together, strict=True):
        (alone,) = random_translator().search([text], decoding=decoding)
        assert alone[0].tokens == expected[0].tokens
        assert alone[0].score == pytest.approx(expected[0].score, rel=1e-4)


def test_groups_give_translations_that_differ_more():
    """Of four translations, those of groups share fewer tokens, none comes twice,
    and scores are the model's.
    """
    texts = equally_long()

    def overlap(**changes) -> float:
        shares = []
        for text, best in zip(
            texts,
            random_translator().search(texts, n_best=4, decoding=settings(**changes)),
            strict=True,
        ):
            pieces = [tuple(each.tokens) for each in best]
            assert len(set(pieces)) == len(pieces)
            expected = rescore(random_translator(), [text] * len(best), best)
            np.testing.assert_allclose(
                [each.log_probability for each in best], expected, rtol=1e-4, atol=1e-4
            )
            shares += [
                len(set(one) & set(two)) / len(set(one) | set(two))
                for one in pieces
                for two in pieces
                if one != two
            ]
        return float(np.mean(shares))

    assert overlap(diversity_groups=4, diversity_strength=3.0) < overlap() - 0.1


@pytest.mark.parametrize("groups", [1, 2])
def test_required_phrases_are_written(groups):
    """Each sentence has its own, which come in every translation that ends; limits
    hold, and what asks for nothing is as it is.
    """
    texts = equally_long()[:4]
    required = [[[17, 30]], [[40], [50, 51, 52]], [], [[60]] * 2]
    asked = [
        sentence(text, row, required=phrases)
        for row, (text, phrases) in enumerate(zip(texts, required, strict=True))
    ]
    changes = {"beam_size": 4, "diversity_groups": groups, "max_target_length": 12}
    result = search_batch(asked, **changes)
    assert result.finished[[0, 1, 3]].all()
    for tokens, phrases in zip(rows(result), required, strict=True):
        assert len(tokens) <= 12
        assert all(holds(tokens, phrase) for phrase in phrases)
    plain = search_batch([each._replace(required=()) for each in asked], **changes)
    assert rows(plain)[2] == rows(result)[2]
    assert not holds(rows(plain)[0], [17, 30])
    narrow = search_batch(asked, **{**changes, "max_target_length": 3})
    assert narrow.finished[:, 0].tolist()[1] is False
    assert narrow.lengths[1, 0] == 3


@pytest.mark.parametrize("way", WAYS)
def test_a_translation_begins_with_one_of_several_prefixes(way):
    """The more probable one of them, whichever it is; a place left free is the
    search's.
    """
    texts = equally_long()[:4]
    prefixes = [
        [[17, 30], [18], [19, 20, 21]],
        [[17, -1, 18]],
        [],
        [[50, 51], [50, 52]],
    ]
    asked = [
        sentence(text, row, prefixes=each)
        for row, (text, each) in enumerate(zip(texts, prefixes, strict=True))
    ]
    found = rows(search_batch(asked, **WAYS[way]))
    for tokens, choices in zip(found, prefixes, strict=True):
        assert not choices or any(
            all(
                want in (-1, token) for want, token in zip(choice, tokens, strict=False)
            )
            for choice in choices
        )
    if way == "greedy":
        table = teacher_forced(random_translator(), texts[:1], [found[0]])
        assert found[0][0] == max((17, 18, 19), key=lambda token: table[0, 0, token])


def test_a_batch_without_prefixes_in_a_call_that_has_them():
    """The compiled search is that of the call, and what asks for nothing begins as
    it will.
    """
    texts = equally_long()[:4]
    asked = [
        sentence(text, row, prefixes=[[17]] if row == 3 else [])
        for row, text in enumerate(texts)
    ]
    plain, free = search_batch(asked[:3]), search_batch(asked)
    assert rows(free)[:3] == rows(plain)[:3]
    assert rows(free)[3][0] == 17
    nothing = search_batch(asked[:3], forced=True)
    assert rows(nothing) == rows(plain)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"beam_size": 1}, "required phrases need a beam_size of at least 2, not 1"),
        (
            {"beam_size": 4, "diversity_groups": 4},
            "required phrases need a beam_size of at least 8, not 4",
        ),
        ({"sample": True}, "required phrases need a beam search, not samples"),
    ],
)
def test_required_phrases_need_a_beam(changes, rule):
    with pytest.raises(InputError, match=rule) as error:
        search_batch([sentence("open", required=[[17]])], **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("way", WAYS)
def test_each_token_has_its_log_probability(way):
    """Those of a forward pass, whatever the options, and their sum is the
    translation's.
    """
    translator, texts = random_translator(), equally_long()
    found = [
        best[0]
        for best in translator.search(
            texts, decoding=settings(repetition_penalty=2.0, **WAYS[way])
        )
    ]
    ids = [token_ids(translator, best) for best in found]
    table = teacher_forced(translator, texts, ids)
    for row, (best, tokens) in enumerate(zip(found, ids, strict=True)):
        assert isinstance(best.token_log_probabilities[0], float)
        assert len(best.token_log_probabilities) == len(best.tokens)
        np.testing.assert_allclose(
            best.token_log_probabilities,
            table[row, np.arange(len(tokens)), tokens],
            rtol=1e-4,
            atol=1e-4,
        )
        assert math.fsum(best.token_log_probabilities) == pytest.approx(
            best.log_probability, rel=1e-5
        )


def test_the_parts_of_a_sentence_have_their_log_probabilities_behind_each_other():
    long = " ".join(runs.sentences(6, longest=9, shortest=9))
    (best,) = random_translator().search(
        [long], decoding=settings(long_sources="split", max_source_length=12)
    )[0]
    assert len(best.token_log_probabilities) == len(best.tokens)
    assert math.fsum(best.token_log_probabilities) == pytest.approx(
        best.log_probability, rel=1e-5
    )
    assert random_translator().search([""])[0] == [
        Hypothesis("", 0.0, 0.0, [], True, [])
    ]


def test_values_are_no_recompilation():
    """Strengths, phrases and prefixes are arguments of the compiled search."""
    compiled = cast(Any, compiled_search._search)._cache_size
    counts = []
    for number in (2, 3, 4):
        asked = [
            sentence(
                text,
                row,
                required=[[20 + number]] * number,
                prefixes=[[30 + number + row]],
            )
            for row, text in enumerate(equally_long()[:3])
        ]
        search_batch(
            asked,
            beam_size=4,
            diversity_groups=2,
            diversity_strength=number / 3,
            coverage_penalty=number / 5,
        )
        counts.append(compiled())
    assert counts == counts[:1] * 3
