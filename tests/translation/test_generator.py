"""Texts that are continued: against the whole pass, alone and together, in parts, and
up to stop strings.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError, TransformerConfig, Translator
from jaxformer.data import Vocabulary
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.models.seq2seq import abstract_parameters, make_model
from jaxformer.search.config import DecodingConfig
from jaxformer.translation import generator as generator_module
from jaxformer.translation.generator import Generator, cut

LINES = ["the cat sat on the mat", "a dog ran in the park", "hello world again"]
PROMPTS = ["the cat", "", "a dog ran in the", "hello"]


def make(encoder_layers=0, **changes):
    vocabulary = Vocabulary.train(LINES, size=44)
    config = TransformerConfig(
        vocabulary_size=vocabulary.size,
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
    translator = Translator(
        config,
        params,
        Vocabularies(vocabulary, vocabulary),
        DecodingConfig(beam_size=1),
    )
    return translator, vocabulary, params


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


@pytest.mark.parametrize(
    "settings", [{}, {"sample": True, "seed": 3}, {"precision": "int8"}]
)
def test_the_parts_of_a_stream_are_the_continuation(made, settings):
    decoding = DecodingConfig(**{"beam_size": 1} | settings)
    ((whole,),) = made[0].generate(["the cat"], most=9, decoding=decoding)
    parts = [*made[0].stream("the cat", most=9, decoding=decoding)]
    assert "".join(parts) == whole.text
    assert len(parts) > 1


def test_streams_of_prompts_near_the_last_position_share_a_program(made):
    """However many tokens there is room for after each."""
    prompts = ["the cat sat on", "the cat sat on t", "the cat sat on th"]
    [*made[0].stream(prompts[0], most=20)]
    compiled = generator_module._advance._cache_size()
    for prompt in prompts[1:]:
        [*made[0].stream(prompt, most=20)]
    assert generator_module._advance._cache_size() == compiled


def test_a_beam_finds_what_is_at_least_as_probable(made):
    scores = []
    for beam in (1, 4):
        decoding = DecodingConfig(beam_size=beam, alpha=0.0, length_penalty="none")
        found = made[0].generate(["a dog"], most=5, decoding=decoding)
        scores.append(found[0][0].log_probability)
    assert scores[1] >= scores[0] - 1e-5


def test_a_stop_string_ends_a_continuation_and_is_no_part_of_it(made):
    ((whole,),) = made[0].generate(["the cat"], most=9)
    stop = whole.text[3:5]
    expected = whole.text[: whole.text.index(stop)]
    ((found,),) = made[0].generate(["the cat"], most=9, stop=[stop])
    assert (found.text, found.finished) == (expected, True)
    assert "".join(made[0].stream("the cat", most=9, stop=[stop])) == expected
    assert cut("a b", ["x"]) == ("a b", False)


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
