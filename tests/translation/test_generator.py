"""Texts that are continued: against the whole pass, alone and together, in parts, and
up to stop strings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizer_folders

from jaxformer import InputError, TransformerConfig, Translator
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.search.config import DecodingConfig
from jaxformer.translation import generator as generator_module
from jaxformer.translation.added_text import AddedText, cut
from jaxformer.translation.generator import Generator

LINES = ["the cat sat on the mat", "a dog ran in the park", "hello world again"]
PROMPTS = ["the cat", "", "a dog ran in the", "hello"]
FIRST_WORDS = ["a dog", "he", "in", "ma"]


def make(encoder_layers=0, *, spread=1.0, surplus=0, **changes):
    vocabulary = Vocabulary.train(LINES, size=44)
    config = TransformerConfig(
        vocabulary_size=vocabulary.size + surplus,
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=encoder_layers,
        num_decoder_layers=2,
        max_length=24,
        tied_embeddings="none",  # a tied table would repeat itself
        positions="learned",
        pad_id=vocabulary.pad_id,
        bos_id=vocabulary.bos_id,
        **changes,
    )
    rng = np.random.default_rng(3)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32),
        abstract_parameters(config),
    )
    params["output"] *= spread
    translator = Translator(
        config,
        params,
        *_search(vocabulary),
    )
    return translator, vocabulary, params


def _search(vocabulary):
    return Vocabularies(vocabulary, vocabulary), DecodingConfig(beam_size=1)


@pytest.fixture(scope="module")
def made():
    translator, vocabulary, params = make()
    return Generator(translator), vocabulary, params


def by_hand(made, prompt, most):
    """Continue a text by the most probable token of a whole pass each time."""
    generator, vocabulary, params = made
    model = make_model(generator._config)

    @jax.jit
    def read(row):
        return model.apply({"params": params}, row[None], method="read")[0]

    ids, found = [vocabulary.bos_id, *vocabulary.encode(prompt)], []
    while len(found) < most:
        row = np.full(24, vocabulary.pad_id, np.int32)
        whole = [*ids, *found]
        row[: len(whole)] = whole  # one shape: what follows cannot be seen
        logits = np.array(read(row)[len(whole) - 1])
        logits[[vocabulary.pad_id, vocabulary.bos_id]] = -np.inf
        found.append(int(logits.argmax()))
        if found[-1] == vocabulary.eos_id:
            break
    before = vocabulary.decode(ids, lines=True)
    return vocabulary.decode(ids + found, lines=True).removeprefix(before)


def test_prompts_of_different_lengths_share_a_batch(made):
    """Each is continued as it is by itself, token by token over the whole text."""
    together = made[0].generate(PROMPTS, most=6)
    expected = [by_hand(made, prompt, 6) for prompt in PROMPTS]
    assert [own.text for (own,) in together] == expected
    assert len(set(expected)) > 1
    alone = [made[0].generate([prompt], most=6)[0] for prompt in PROMPTS]
    for (one,), (other,) in zip(together, alone, strict=True):
        assert one.text == other.text
        np.testing.assert_allclose(
            one.log_probability, other.log_probability, rtol=1e-4
        )


REPETITIVE = [*PROMPTS, "the cat the cat the", "a a a"]


@pytest.mark.parametrize(
    "settings",
    [
        {"min_length": 9},
        {"no_repeat_ngram": 2},
        {"repetition_penalty": 3.0},
        {"no_unknown": True, "renormalize": True, "min_length": 5},
        {"sample": True, "seed": 5, "min_length": 9, "no_repeat_ngram": 1},
    ],
)
def test_every_option_of_a_search_holds_for_a_stream_too(settings):
    """A stream has the tokens of the continuation that is generated at once, and those
    that an option changes.
    """
    translator, vocabulary, params = make(spread=0.2, output_bias=True)
    bias = params["logits"]["bias"].at[vocabulary.eos_id].set(4.0)  # ends early
    params = params | {"logits": {"bias": bias}}
    generator = Generator(
        Translator(translator.model.config, params, *_search(vocabulary))
    )
    rules = {"beam_size": 1, **settings}
    plain = {key: rules[key] for key in rules.keys() & {"beam_size", "sample", "seed"}}

    def generate(prompts, settings):
        decoding = DecodingConfig(**settings)
        found = generator.generate(prompts, most=9, decoding=decoding)
        return [own.text for (own,) in found]

    # Draws depend on the number of the prompt.
    whole = [generate([prompt], rules)[0] for prompt in REPETITIVE]
    decoding = DecodingConfig(**rules)
    assert whole == [
        "".join(generator.stream(prompt, most=9, decoding=decoding))
        for prompt in REPETITIVE
    ]
    assert whole != [generate([prompt], plain)[0] for prompt in REPETITIVE]


@pytest.mark.parametrize(("beam_size", "size"), [(1, 2), (3, 1), (3, 3)])
def test_no_ngram_of_prompt_and_continuation_occurs_twice(
    made, monkeypatch, beam_size, size
):
    """Apart from those that the prompt has twice by itself; without the option some
    do.
    """
    searched = []
    search_batch = generator_module.search_batch

    def keep(models, sentences, *rest, **options):
        found = search_batch(models, sentences, *rest, **options)
        tokens = found.tokens[:, 0, :].tolist()
        lengths = found.lengths[:, 0].tolist()
        searched.extend(
            (each.ids, own[:length])
            for each, own, length in zip(sentences, tokens, lengths, strict=False)
        )
        return found

    def repeated(tokens):
        ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
        return len(ngrams) - len(set(ngrams))

    monkeypatch.setattr(generator_module, "search_batch", keep)
    for ngram in (0, size):
        searched.clear()
        decoding = DecodingConfig(beam_size=beam_size, no_repeat_ngram=ngram)
        made[0].generate(REPETITIVE, most=9, decoding=decoding)
        more = [repeated(ids + own) > repeated(ids) for ids, own in searched]
        assert len(more) == len(REPETITIVE)
        assert any(more) == (not ngram)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    lines = tokenizer_folders.sentences()[:300]
    found = {
        "pieces": Vocabulary.train(lines, size=400, byte_fallback=True),
        "bytes": Vocabulary.train(lines, size=400, model="bytes"),
    }
    for name, make in (
        ("gpt2", tokenizer_folders.gpt2),
        ("openai-gpt", tokenizer_folders.gpt),
        ("bert", tokenizer_folders.bert),
    ):
        make(folder := tmp_path_factory.mktemp(name))
        found[name] = read_vocabularies(folder, {"model_type": name}).source
    return found


@pytest.mark.parametrize("name", ["pieces", "bytes", "gpt2", "openai-gpt", "bert"])
def test_text_is_decoded_by_its_last_tokens(vocabularies, name, monkeypatch):
    """Together the parts are what all tokens read as after the prompt: with blanks at
    the beginning of pieces or after words, and with the bytes of a character in several
    tokens, drawn ones too, which are no character. Not all tokens are read each time.
    """
    vocabulary, rng = vocabularies[name], np.random.default_rng(5)
    lines, read = tokenizer_folders.sentences(), []
    decode = type(vocabulary).decode

    def count(self, ids, **options):
        read.append(len(ids))
        return decode(self, ids, **options)

    for number in range(40):
        prompt = vocabulary.encode(lines[number][: number % 9])
        tokens = vocabulary.encode(
            f"  {lines[-number]} do not é世🙂  . {lines[number]}"
        )
        tokens += rng.integers(vocabulary.size, size=20).tolist()
        tokens += vocabulary.encode(lines[number])
        tokens = [token for token in tokens if token != vocabulary.eos_id]
        before, whole = (
            vocabulary.decode(ids, lines=True) for ids in (prompt, prompt + tokens)
        )
        read.clear()
        with monkeypatch.context() as patch:
            patch.setattr(type(vocabulary), "decode", count)
            added = AddedText(vocabulary, [vocabulary.bos_id, *prompt])
            parts = [added.add(token) for token in tokens]
            parts.append(added.rest())
        assert before + "".join(parts) == whole
        assert sum(map(bool, parts)) > len(tokens) / 4
        assert sum(read) < 10 * len(tokens)


def test_rows_of_the_table_without_a_piece_are_never_generated(made):
    """Not even where they are the most probable: as if the table did not have them."""
    translator, vocabulary, params = make(surplus=3)
    params["output"] = params["output"].at[-3:].multiply(100.0)
    own = Generator(Translator(translator.model.config, params, *_search(vocabulary)))
    table = params["embedding"]["table"][:-3]
    fewer = params | {"embedding": {"table": table}, "output": params["output"][:-3]}
    other = Generator(Translator(made[0]._config, fewer, *_search(vocabulary)))
    texts, expected = (
        [found.text for (found,) in each.generate(PROMPTS, most=6)]
        for each in (own, other)
    )
    assert texts == expected
    assert "".join(own.stream(PROMPTS[0], most=6)) == texts[0]


def test_a_beam_of_all_tokens_finds_the_most_probable_continuation():
    """Of all with two tokens at most, where greedy search finds a less probable one of
    some prompts.
    """
    translator, vocabulary, params = make(spread=0.5)
    generator = Generator(translator)
    model, ends = make_model(generator._config), vocabulary.eos_id
    never = [vocabulary.pad_id, vocabulary.bos_id]

    @jax.jit
    def read(rows, last):
        return model.apply({"params": params}, rows, method="read")[:, last]

    def after(rows):
        last = len(rows[0]) - 1
        padded = np.full((vocabulary.size, 12), vocabulary.pad_id)
        padded[: len(rows), : last + 1] = rows
        logits = np.array(read(padded, last)[: len(rows)], np.float64)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        logits[:, never] = -np.inf
        return logits

    found = []
    for beam in (1, vocabulary.size):
        how = {"beam_size": beam, "length_penalty": "none", "rank_unfinished": True}
        given = {"most": 2, "decoding": DecodingConfig(**how)}
        results = generator.generate(FIRST_WORDS, **given)
        found.append([own.log_probability for (own,) in results])
    best = []
    for prompt in FIRST_WORDS:
        ids = [vocabulary.bos_id, *vocabulary.encode(prompt)]
        (first,) = after([ids])
        both = first[:, None] + after([[*ids, x] for x in range(vocabulary.size)])
        both[never], both[ends] = -np.inf, -np.inf
        best.append(max(both.max(), first[ends]))
    np.testing.assert_allclose(found[1], best, rtol=0, atol=1e-4)
    assert (np.array(found[0]) < np.array(best) - 0.01).any()


def test_a_stop_string_ends_a_continuation_and_is_no_part_of_it(made):
    ((whole,),) = made[0].generate(["the cat"], most=9)
    stop = whole.text[3:5]
    expected = whole.text[: whole.text.index(stop)]
    ((found,),) = made[0].generate(["the cat"], most=9, stop=[stop])
    assert (found.text, found.finished) == (expected, True)
    assert "".join(made[0].stream("the cat", most=9, stop=[stop])) == expected
    assert cut("a b", ["x"]) == ("a b", False)


@pytest.mark.parametrize("settings", [{}, {"sample": True, "seed": 3}])
def test_a_batch_is_cut_where_each_row_has_its_stop_string(made, settings):
    """Its texts are those of the whole search, cut, and its tokens and probabilities
    those up to the stop string.
    """
    decoding = DecodingConfig(**{"beam_size": 1} | settings)
    samples = 2 if settings else 1
    options = {"most": 12, "decoding": decoding, "n_best": samples}

    def flat(**more):
        found = made[0].generate(PROMPTS, **{**options, **more})
        return [own for each in found for own in each]

    whole = flat()
    stop = sorted({own.text[2:4] for own in whole if len(own.text) > 3})
    found = flat(stop=stop)
    last = max(own.tokens for own in found)
    for own, cut_off, all_ in zip(found, flat(most=last), whole, strict=True):
        text, stopped = cut(all_.text, stop)
        assert (own.text, own.finished) == (text, stopped or all_.finished)
        assert own.tokens < all_.tokens or not stopped
        if own.tokens == last:
            for name in ("log_probability", "score"):
                expected = getattr(cut_off, name)
                assert getattr(own, name) == pytest.approx(expected, rel=1e-4)


def test_the_stop_string_that_is_complete_first_ends_a_continuation():
    """So a stream, which cannot know what follows, ends where the whole text does."""
    stop = ["abcd", "bc", "abc"]
    assert cut("xabcd", stop) == cut("xabc", stop) == ("x", True)
    assert cut("xbcd", stop) == ("x", True)
    assert cut("aabcd", ["abcd", "bc"]) == ("aa", True)


def test_a_continuation_ends_with_the_positions(made):
    """The last token is predicted at the last position; a longer prompt is refused."""
    prompt = "the cat sat on the mat a d"
    length = 1 + len(made[1].encode(prompt))
    ((found,),) = made[0].generate([prompt], most=100)
    assert (found.tokens, found.finished) == (24 - length + 1, False)
    with pytest.raises(InputError, match="the model has 24 positions: shorten it"):
        made[0].generate([prompt * 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"most": 0}, "at least 1 token"),
        ({"stop": "x"}, "stop must be a list"),
        ({"stop": [""]}, "not empty"),
        ({"n_best": 2}, "n_best must be from 1 to 1"),
        ({"decoding": DecodingConfig(coverage_penalty=0.5)}, "a language model has no"),
    ],
)
def test_wrong_options_are_refused(made, options, message):
    with pytest.raises(InputError, match=message):
        made[0].generate(["the"], **options)


def test_lengths_of_sources_are_those_of_no_prompt(made):
    """A run may have them, such as one that began as a translation model."""
    decoding = DecodingConfig(
        beam_size=1, max_target_length=1, max_length_ratio=1e-3, min_length_ratio=9
    )
    prompts = {"prompts": PROMPTS, "most": 5}
    assert made[0].generate(**prompts, decoding=decoding) == made[0].generate(**prompts)


def test_a_stream_has_no_beam_and_a_translator_no_continuations(made):
    with pytest.raises(InputError, match="a beam of 3 has no text before it ends"):
        next(made[0].stream("the", decoding=DecodingConfig(beam_size=3)))
    with pytest.raises(InputError, match="this has an encoder"):
        Generator(make(encoder_layers=1)[0])
