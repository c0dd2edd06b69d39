"""What translations must hold and what they may begin with, as text."""

from __future__ import annotations

import pytest
from translation.translators import equally_long, random_translator

import runs
from jaxformer.errors import InputError


def spelled(phrase: str) -> list[str]:
    return runs.vocabulary().pieces(runs.vocabulary().encode(phrase))


def test_required_phrases_are_written():
    """Each sentence has its own, or none; a stream gives the same."""
    texts = [*equally_long()[:3], ""]
    required = [["Datei", "die Tabelle"], [], [""], ["Datei"]]
    found = random_translator().search(texts, required=required)
    for text, phrases, (best,) in zip(texts, required, found, strict=True):
        for phrase in filter(None, phrases if text else []):
            pieces = spelled(phrase)
            assert any(
                best.tokens[i : i + len(pieces)] == pieces
                for i in range(len(best.tokens))
            )
    streamed = random_translator().stream(texts, required=required, window=2)
    assert [best.tokens for (best,) in streamed] == [best.tokens for (best,) in found]
    with pytest.raises(
        InputError, match="there are 1 lists of required phrases and more sentences"
    ):
        random_translator().search(texts, required=[["a"]])


@pytest.mark.parametrize(
    "asked",
    [
        {"required": [["日本"]]},
        {"prefixes": ["日本"]},
        {"prefixes": [["Haus", "日本"]]},
    ],
)
def test_what_the_vocabulary_cannot_write_is_refused(asked):
    """The unknown token is no way to meet a phrase or to begin with a prefix; the
    phrase and its sentence are named.
    """
    with pytest.raises(
        InputError,
        match=r"sentence 1 has the .*'日本', which the vocabulary cannot write: leave",
    ):
        runs.translator().search(["Open the file."], beam_size=2, **asked)


def test_a_beam_is_missed_before_anything_is_translated():
    """Greedy search and samples with required phrases are refused at once, not at
    the first sentence that has some.
    """
    with pytest.raises(
        InputError, match="required phrases need a beam_size of at least 2, not 1"
    ):
        runs.translator().stream(iter(()), beam_size=1, required=iter(()))


def test_a_blank_alternative_asks_for_nothing():
    """Among prefixes that leaves the sentence free."""
    translator = runs.translator()
    found = translator.search(["Open the file."], prefixes=[["", "Das"]])
    assert [one.tokens for one in found[0]] == [
        one.tokens for one in translator.search(["Open the file."])[0]
    ]
