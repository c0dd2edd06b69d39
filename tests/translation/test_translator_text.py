"""Text in, text out: tokens, odd lines, long sentences, attention, and where a
translator comes from.
"""

from __future__ import annotations

import dataclasses
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    LENGTH,
    PADDED,
    equally_long,
    many,
    random_translator,
    rescore,
    source_ids,
)

import jaxformer as jf
import runs
from jaxformer.data.sources import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError, LongSourceWarning
from jaxformer.translation.paragraphs import split
from jaxformer.translation.results import Hypothesis, LongSources
from jaxformer.translation.translator import Translator

# Tokens and text


def test_text_is_the_decoded_tokens():
    """A finished text leaves its one end of sentence out; an unfinished one is
    whole.
    """
    translator = random_translator()
    vocabulary = translator.vocabularies.target
    hypotheses = [best[0] for best in translator.search(many(), beam_size=4)]
    for hypothesis in hypotheses:
        body = hypothesis.tokens[:-1] if hypothesis.finished else hypothesis.tokens
        assert (hypothesis.tokens[-1] == "</s>") == hypothesis.finished
        assert not {"<pad>", "<s>", "</s>"} & set(body)
        assert hypothesis.text == "".join(body).replace("<unk>", " ⁇ ").replace(
            "▁", " "
        ).removeprefix(" ")
        assert vocabulary.decode(vocabulary.encode(hypothesis.text)) == hypothesis.text
    assert any(
        not hypothesis.finished and len(hypothesis.text) > 20
        for hypothesis in hypotheses
    )


def test_padding_and_beginning_are_never_written():
    """pad and bos are no output, however much a model wants them."""
    vocabulary = runs.vocabulary()
    wanted = 50 * np.random.default_rng(0).normal(size=32).astype(np.float32)
    # A state that does not want the one wants the other.
    translator = runs.translator(
        output={vocabulary.pad_id: wanted, vocabulary.bos_id: -wanted}
    )
    for (best,) in translator.search(many(), beam_size=4):
        assert not {"<pad>", "<s>"} & set(best.tokens)
        assert best.tokens
        assert np.isfinite(best.score)


def test_output_beyond_the_vocabulary():
    """A model with more columns than pieces writes unknown tokens there, and nothing
    crashes.
    """
    translator = random_translator(vocabulary_size=PADDED)
    found = [best[0] for best in translator.search(many(), beam_size=4)]
    assert any("⁇" in hypothesis.text for hypothesis in found)
    assert any("<unk>" in hypothesis.tokens for hypothesis in found)


def test_line_breaks_are_not_written():
    r"""A model that writes ``\n`` and ``\r`` in bytes still gives one line for each."""
    vocabulary = Vocabulary.train(
        [text for pair in runs.pairs() for text in pair], PADDED, byte_fallback=True
    )
    pieces = vocabulary.pieces(range(vocabulary.size))
    wanted = 50 * np.random.default_rng(0).normal(size=32).astype(np.float32)
    rows = {pieces.index("<0x0A>"): wanted, pieces.index("<0x0D>"): -wanted}
    base = runs.translator(vocabulary_size=vocabulary.size, output=rows)
    both = Vocabularies(vocabulary, vocabulary)
    found = Translator(base.model.config, base.params, both, base.decoding).search(
        equally_long(), beam_size=1
    )
    assert any("<0x0A>" in best.tokens for (best,) in found)
    assert not any({"\n", "\r"} & set(best.text) for (best,) in found)


def test_special_names_are_text():
    """``</s>`` in a sentence is text: it neither ends the source nor changes what
    stands behind it.
    """
    translator = random_translator()
    assert (
        source_ids(translator, "a </s> b").count(translator.vocabularies.source.eos_id)
        == 1
    )
    ended, text, longer = (
        h[0] for h in translator.search(["a", "a </s> b", "a </s> c"], beam_size=1)
    )
    assert (
        len({ended.log_probability, text.log_probability, longer.log_probability}) == 3
    )
    (only,) = translator.translate(["</s>"])
    assert "\n" not in only


def test_sentences_are_normalised():
    """Width, ligatures and runs of spaces do not matter: text is normalised before
    it is split.
    """
    plain = ["Open file 2 of 10.", "The first official site"]
    odd = ["  Open  file ２ of １０. ", "The ﬁrst  oﬃcial\u3000site"]
    assert [
        " ".join(unicodedata.normalize("NFKC", text).split()) for text in odd
    ] == plain
    translator = random_translator()
    assert translator.translate(odd) == translator.translate(plain)


# Lines of all kinds

BLANK = ["", " ", "    ", "\t", "\u3000", " \u200b ", "\r", " " * 100_000]
ODD = [
    "x",
    "🙂🎉🙂",
    "\x00\x01\x07a\x1b[31m",
    "one\u2028two\u2029three",
    "one\x85two\x0bthree\x1cfour",
    "</s>",
    "<pad> <s> <unk>",
    "⁇",
    "▁",
    "\ud800",
    "one\ntwo",
    "🙂" * 100_000,
    "e" + "\u0301" * 50,
    "مرحبا بالعالم",
]


@pytest.mark.parametrize(("beam_size", "source_eos"), [(1, False), (4, True)])
def test_odd_lines(beam_size, source_eos):
    """Blank lines stay empty, in their places; every other line gives one line."""
    translator = random_translator(source_eos=source_eos)
    mixed = [*BLANK, *ODD, *BLANK]
    found = translator.translate(mixed, beam_size=beam_size)
    assert len(found) == len(mixed)
    assert found[: len(BLANK)] == found[-len(BLANK) :] == [""] * len(BLANK)
    assert not any("\n" in line or "\r" in line for line in found)
    assert found[len(BLANK) : len(BLANK) + len(ODD)] == translator.translate(
        ODD, beam_size=beam_size
    )


def test_blank_lines_alone():
    """Nothing to translate is no error."""
    translator = random_translator()
    assert translator.translate([]) == []
    assert translator.search(BLANK, n_best=2) == [
        [Hypothesis("", 0.0, 0.0, [], True, [])]
    ] * len(BLANK)
    assert translator.score([]) == []


def test_single_token():
    """A source of one token translates as any other does."""
    translator = random_translator(source_eos=False)
    text = next(
        piece.removeprefix("▁")
        for piece in runs.vocabulary().pieces(range(4, 400))
        if piece.startswith("▁") and len(piece) > 1
    )
    assert len(translator.vocabularies.source.encode(text)) == 1
    (best,) = translator.search([text], beam_size=4)[0]
    assert 1 <= len(best.tokens) <= 21


def test_one_string_is_no_list():
    with pytest.raises(InputError, match="texts must be a list, not one string"):
        random_translator().translate("Open the file.")


@pytest.mark.parametrize("text", ["ab " * 80, "ab" * 50_000, "1 " * 50_000])
def test_sentence_beyond_the_positions(text):
    """A sentence longer than the model's positions is refused in one line, with its
    number.
    """
    translator = random_translator(long_sources="refuse")
    count = len(source_ids(translator, text))
    assert count > 128
    with pytest.raises(
        InputError,
        match=rf"source sentence 3 has {count} tokens and the model has 128 ",
    ) as error:
        translator.translate(["a", "", text, "b"])
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200
    with pytest.raises(InputError, match="source sentence 2 has"):
        translator.score([Pair("a", "b"), Pair(text, "b")])
    with pytest.raises(InputError, match="target sentence 1 has"):
        translator.score([Pair("a", text)])
    with pytest.raises(InputError, match="source sentence 1 has"):
        translator.attention(text)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_learned_positions_end_with_their_table(beam_size):
    """Decoding stops where the positions end; none is used twice in silence."""
    longest = runs.sentences(2, longest=24, shortest=24)
    for eos in (0.0, 2.2):
        translator = random_translator(positions="learned", max_length=24, eos=eos)
        found = [
            best[0]
            for best in translator.search(
                [*equally_long(), *longest], beam_size=beam_size
            )
        ]
        for hypothesis in found:
            assert len(hypothesis.tokens) <= 24
            assert hypothesis.finished or len(hypothesis.tokens) == 24
        rescored = rescore(translator, equally_long(), found[: len(equally_long())])
        log_probabilities = [
            hypothesis.log_probability for hypothesis in found[: len(equally_long())]
        ]
        np.testing.assert_allclose(log_probabilities, rescored, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", [None, 12])
def test_long_sentences_are_split_if_asked(limit):
    """What is too long is translated in parts, which are put together; what is not
    stays as it was.
    """
    plain = random_translator(max_length=24)
    short, long = (
        runs.sentences(2, longest=8, shortest=8),
        " ".join(runs.sentences(6, longest=9, shortest=9)),
    )
    settings = dataclasses.replace(
        plain.decoding,
        long_sources="split",
        max_source_length=limit,
        max_extra_length=3,
    )
    translator = Translator(
        plain.model.config, plain.params, plain.vocabularies, settings
    )
    vocabulary = plain.vocabularies.source
    ids = vocabulary.encode(long)
    room = (limit or 24) - 1
    assert len(ids) > 2 * room
    parts = [
        vocabulary.decode(ids[start:stop])
        for start, stop in split(vocabulary.pieces(ids), room)
    ]
    assert [token for part in parts for token in vocabulary.encode(part)] == ids
    with pytest.warns(
        LongSourceWarning, match="of more than 24 tokens.* 1 translated in parts"
    ):
        found = translator.search([short[0], long, short[1], ""], n_best=2)
    separately = translator.search([*short, *parts], n_best=2)
    assert [found[0], found[2]] == separately[:2]
    for rank, hypothesis in enumerate(found[1]):
        own = [part[rank] for part in separately[2:]]
        assert hypothesis.text == " ".join(part.text for part in own)
        assert hypothesis.log_probability == pytest.approx(
            sum(part.log_probability for part in own), rel=1e-5
        )
        assert hypothesis.finished == all(part.finished for part in own)
    assert found[3][0].text == ""
    refusing = dataclasses.replace(settings, long_sources="refuse")
    strict = Translator(plain.model.config, plain.params, plain.vocabularies, refusing)
    rule = "max_source_length is 12" if limit else "the model has 24 positions"
    with pytest.raises(
        InputError,
        match=rf"source sentence 2 has \d+ tokens and .*{rule}; translate it in parts",
    ):
        strict.translate([short[0], long])


def trained_to(length: int, *, source_eos: bool = True, **changes) -> Translator:
    """Return the random translator as if training had seen sources of so many tokens
    at most.
    """
    plain = random_translator(source_eos=source_eos, max_length=128, **changes)
    parts = plain.model.config, plain.params, plain.vocabularies, plain.decoding
    return Translator(*parts, source_eos=source_eos, trained_length=length)


def found_by(
    translator: Translator, texts: list[str], **options
) -> tuple[list[list[Hypothesis]], list[LongSources]]:
    told: list[LongSources] = []
    return translator.search(texts, notice=told.append, **options), told


@pytest.mark.parametrize("paragraphs", [False, True])
def test_sources_longer_than_training_saw_are_cut_at_every_sentence_end(paragraphs):
    """Each sentence is translated as if it were given alone, nothing is left out,
    and the caller is told.
    """
    translator = trained_to(LENGTH + 2)
    sentences = [f"{text}." for text in equally_long()[:4]]
    (best, *_), told = found_by(
        translator, [" ".join(sentences), sentences[0]], paragraphs=paragraphs
    )
    alone, none = found_by(translator, sentences)
    assert best[0].text == " ".join(each[0].text for each in alone)
    assert best[0].tokens == [token for each in alone for token in each[0].tokens]
    assert told == ([] if paragraphs else [LongSources(LENGTH + 2, cut=1)])
    assert none == []


@pytest.mark.parametrize("source_eos", [True, False])
def test_a_source_as_long_as_training_saw_is_whole(source_eos):
    """The limit counts the end of sentence as training does: a token more is cut,
    and no token less.
    """
    text = runs.sentences(1, longest=12, shortest=12)[0]
    tokens = 11 + source_eos
    whole = random_translator(source_eos=source_eos).search([text])
    found, told = found_by(trained_to(tokens, source_eos=source_eos), [text])
    assert (found, told) == (whole, [])
    _, told = found_by(trained_to(tokens - 1, source_eos=source_eos), [text])
    assert told == [LongSources(tokens - 1, cut=1)]


def test_refusing_translates_whole_what_the_model_has_positions_for():
    """Runs that store ``refuse`` translate what they translated before, and say what
    is longer than training saw.
    """
    text = " ".join(f"{text}." for text in equally_long()[:3])
    plain = random_translator().search([text])
    translator = trained_to(16, long_sources="refuse")
    with pytest.warns(
        LongSourceWarning,
        match=r"of more than 16 tokens.* 1 translated whole.* --split_long",
    ):
        assert translator.search([text]) == plain
    split = dataclasses.replace(
        translator.decoding, long_sources="split", max_source_length=100
    )
    found, told = found_by(translator, [text, "word " * 200], decoding=split)
    assert (found[0][0].text, told) == (plain[0][0].text, [LongSources(16, whole=2)])
    with pytest.raises(
        InputError, match="and the model has 128 positions; translate it in parts"
    ):
        translator.translate(["word " * 200])


def test_an_ensemble_takes_the_least_limit_of_its_models():
    assert Translator.ensemble([trained_to(30), trained_to(20)]).codec.longest == 20
    assert (
        Translator.ensemble([random_translator(), trained_to(20)]).codec.longest == 20
    )
    assert (
        Translator.ensemble([random_translator(), random_translator()]).codec.longest
        == 128
    )
    assert Translator.load(runs.random_run()).codec.longest == 64


def test_streams_tell_once_of_long_sources():
    """One notice for all windows, at the end; by default it is a warning."""
    texts, told = [" ".join(equally_long()), "a"] * 3, []
    translator = trained_to(16)
    found = list(translator.stream(texts, window=2, notice=told.append))
    assert told == [LongSources(16, cut=3)]

    with pytest.warns(LongSourceWarning, match="3 translated in parts"):
        assert list(translator.stream(texts, window=2)) == found


# Weights that are not numbers


WAYS = {
    "beam": {},
    "greedy": {"beam_size": 1},
    "sample": {"sample": True, "top_k": 3},
    "groups": {"diversity_groups": 2},
    "none but one token may come": {"no_repeat_ngram": 1, "repetition_penalty": 1.5},
}


@pytest.mark.parametrize(
    ("way", "value"), [(way, np.nan) for way in WAYS] + [("beam", np.inf)]
)
def test_weights_that_are_not_numbers_end_the_search_with_a_line(way, value):
    """The first sentence is named, however the search chooses; blank lines before it
    are no fault.
    """
    translator = runs.translator(
        output={runs.vocabulary().encode("a")[0]: np.float32(value)}
    )
    decoding = dataclasses.replace(translator.decoding, **WAYS[way])
    texts = ["", *equally_long()[:2]]
    with pytest.raises(
        InputError,
        match=r"source sentence 2 has probabilities that are not a number \(NaN\)",
    ) as error:
        translator.search(texts, decoding=decoding)
    assert "\n" not in str(error.value)
    with pytest.raises(
        InputError, match="source sentence 2 has probabilities that are not a number"
    ):
        translator.search(texts, decoding=decoding, prefixes=[["Die"]] * 3)
    if way == "beam":
        with pytest.raises(
            InputError,
            match="source sentence 2 has probabilities that are not a number",
        ):
            translator.search(texts, required=[["Die"]] * 3)
        with pytest.raises(
            InputError,
            match="source sentence 1 has probabilities that are not a number",
        ):
            translator.score([Pair("a", "b")] * 3)


@pytest.mark.parametrize("way", ["beam", "greedy", "groups"])
def test_one_sentence_that_is_not_a_number_is_named_among_others(way):
    """A token's embedding that is NaN spoils the sentences that have it, and no
    others.
    """
    plain = random_translator()
    texts = many()[:6]
    before = {token for text in texts[:4] for token in source_ids(plain, text)}
    token = next(token for token in source_ids(plain, texts[4]) if token not in before)
    spoiled = jax.tree.map(
        lambda table: table.at[token].set(jnp.nan), plain.params["source_embedding"]
    )
    params = {**plain.params, "source_embedding": spoiled}
    broken = Translator(plain.model.config, params, plain.vocabularies, plain.decoding)
    decoding = dataclasses.replace(plain.decoding, **WAYS[way])
    assert broken.search(texts[:4], decoding=decoding) == plain.search(
        texts[:4], decoding=decoding
    )
    with pytest.raises(
        InputError, match="source sentence 5 has probabilities that are not a number"
    ):
        broken.search(texts, decoding=decoding)
    with pytest.raises(
        InputError, match="source sentence 5 has probabilities that are not a number"
    ):
        broken.score([Pair(text, "a") for text in texts])


def test_no_room_for_more_than_the_source():
    """``max_extra_length`` of 0 gives one token for each of the source's, and a
    score.
    """
    translator = random_translator(max_extra_length=0, eos=0.0)
    for (best,) in translator.search(equally_long(), beam_size=1):
        assert len(best.tokens) == LENGTH - 1
        assert not best.finished


def test_stop_between_batches():
    """What is not translated when it stops has no hypotheses, and what is translated
    is whole.
    """
    texts = many()[:4]
    answers = iter([False, False, True])
    translator = random_translator(batch_size=1)
    found = translator.search(texts, beam_size=1, stop=lambda: next(answers))
    assert sorted(map(len, found)) == [0, 0, 1, 1]
    expected = translator.search(texts, beam_size=1)
    assert all(
        hypotheses in ([], whole)
        for hypotheses, whole in zip(found, expected, strict=True)
    )


# Attention, and where a translator comes from


@pytest.mark.parametrize("target", [None, "Datei öffnen", ""])
def test_attention(target):
    """Rows are distributions over what may be seen, each named by its token."""
    translator = random_translator()
    found = translator.attention("Open the file.", target)
    rows, columns = len(found.target_tokens), len(found.source_tokens)
    assert found.encoder.shape == (1, 4, columns, columns)
    assert found.decoder.shape == (1, 4, rows, rows)
    assert found.cross.shape == (1, 4, rows, columns)
    assert found.source_tokens[-1] == found.target_tokens[-1] == "</s>"
    assert found.read_tokens == ["<s>", *found.target_tokens[:-1]]
    for weights in (found.encoder, found.decoder, found.cross):
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
    assert not np.triu(found.decoder, 1).any()
    if target == "Datei öffnen":
        assert "".join(found.target_tokens[:-1]) == "▁Datei▁öffnen"


def test_attention_of_nothing():
    with pytest.raises(InputError, match="not blank"):
        random_translator().attention("  ")


@pytest.mark.parametrize(
    ("which", "step"), [("best", 10), ("latest", 20), ("10", 10), ("20", 20)]
)
def test_load(which, step):
    """A directory gives back the configuration, the vocabulary and the parameters
    that it was made of.
    """
    translator = jf.Translator.load(str(runs.random_run()), which)
    assert translator.checkpoint == step
    expected = runs.random_params(runs.model_config(), seed={10: 2, 20: 3}[step])
    jax.tree.map(np.testing.assert_array_equal, translator.params, expected)
    assert translator.model.config == runs.model_config()
    assert translator.decoding.max_extra_length == 20


def test_loaded_translates_as_its_parts_do():
    """What is saved is what translates."""
    texts = many()
    assert Translator.load(runs.random_run()).translate(
        texts
    ) == random_translator().translate(texts)
