"""Models of one stack: published sizes, causality, padding, packed rows, and the cache
of a text that is continued.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import LITTLE

from jaxformer import InputError, TransformerConfig
from jaxformer.models import logical_axes
from jaxformer.models.families import PRESETS, preset
from jaxformer.models.make import (
    abstract_parameters,
    count_parameters,
    make_model,
)

DECODER = {"num_encoder_layers": 0, "num_decoder_layers": 2}
ENCODER = {"num_encoder_layers": 2, "num_decoder_layers": 0, "head": "words"}


@functools.cache
def make(**settings):
    config = TransformerConfig(**LITTLE | settings)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        drawn = 0.3 * rng.normal(size=leaf.shape).astype(np.float32)
        return jnp.asarray(drawn + np.float32(path[-1].key == "scale"))

    params = jax.tree_util.tree_map_with_path(draw, abstract_parameters(config))
    return make_model(config), params


@functools.partial(jax.jit, static_argnums=0, static_argnames="method")
def program(model, params, *given, method=None, **more):
    return model.apply({"params": params}, *given, method=method, **more)


def read(model, params, tokens, **more):
    return program(model, params, np.array(tokens), **more)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("bert-base-uncased", 110_106_428),
        ("bert-tiny", 4_433_468),
        ("roberta-base", 124_697_433),
        ("distilbert-base-uncased", 66_985_530),
        ("openai-gpt", 116_534_784),
        ("gpt2", 124_439_808),
    ],
)
def test_a_preset_has_the_parameters_of_the_published_model(name, published):
    """As transformers counts them, with a tied table once."""
    assert count_parameters(abstract_parameters(preset(name))) == published


@pytest.mark.parametrize("name", PRESETS)
def test_every_axis_has_a_name(name):
    """Of one layer and of two: the others are as these."""
    for depth in (1, 2):
        depths = {
            side: min(depth, getattr(preset(name), side))
            for side in ("num_encoder_layers", "num_decoder_layers")
        }
        config = dataclasses.replace(preset(name), **depths)
        params = abstract_parameters(config)
        axes = logical_axes(params)
        names = jax.tree.leaves(axes, is_leaf=lambda x: type(x) is tuple)
        shapes = jax.tree.leaves(params)
        assert [len(axes) for axes in names] == [leaf.ndim for leaf in shapes]


def test_no_logit_depends_on_its_token_or_a_later_one():
    model, params = make(**DECODER)
    tokens = np.random.default_rng(1).integers(3, 13, (2, 9))
    whole = read(model, params, tokens)
    for place in range(9):
        changed = tokens.copy()
        changed[:, place:] = 3 + (changed[:, place:] + 4) % 10
        found = read(model, params, changed)
        assert (found[:, : place + 1] == whole[:, : place + 1]).all()
        if place < 8:
            assert (found[:, place + 1] != whole[:, place + 1]).any()


@pytest.mark.parametrize("stack", [DECODER, ENCODER], ids=["decoder", "encoder"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_padding_and_neighbours_change_nothing(stack, positions):
    """A text alone, padded, and packed with another gives the same output."""
    model, params = make(**stack, positions=positions)
    texts = [[4, 5, 6, 7, 8], [9, 10, 11]]
    alone = [read(model, params, [text])[0] for text in texts]
    padded = read(model, params, [texts[0], [*texts[1], 0, 0]])
    packed = read(
        model,
        params,
        [[*texts[0], *texts[1], 0]],
        segments=jnp.array([[1] * 5 + [2] * 3 + [0]]),
    )[0]
    for own, other in zip(alone, (padded[0], padded[1, :3]), strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=2e-5)
    np.testing.assert_allclose(alone[0], packed[:5], rtol=0, atol=2e-5)
    np.testing.assert_allclose(alone[1], packed[5:8], rtol=0, atol=2e-5)


@pytest.mark.parametrize(("width", "shared"), [(1, 1), (2, 2), (2, 1)])
@pytest.mark.parametrize(
    "settings",
    [
        {"positions": "learned"},
        {"positions": "rotary", "norm": "rms", "num_key_value_heads": 1},
        {"positions": "none", "position_bias": "alibi", "attention_window": 4},
        {"positions": "none", "position_bias": "relative"},
    ],
    ids=["learned", "rotary", "alibi", "relative"],
)
def test_steps_from_a_cache_give_what_the_whole_text_gives(settings, width, shared):
    """After prompts of different lengths, for hypotheses that share rows or do not."""
    model, params = make(**DECODER, norm_order="pre", **settings)
    prompts = [[2, 5, 6, 7], [2], [2, 4, 5, 6, 7, 8, 9]]
    padded = np.zeros((3, 7), int)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    drawn = np.random.default_rng(2).integers(3, 13, (3 * width, 6))
    memory = read(model, params, padded, method="start")
    cache = model.empty_cache(memory, 3 * width, 6, shared)
    tokens, found = np.full(3 * width, 2), []
    for place in range(6):
        logits, cache = program(model, params, tokens, cache, memory, method="step")
        found.append(logits)
        tokens = drawn[:, place]
    texts = np.zeros((6, 12), int)  # one shape for all: what follows cannot be seen
    for row, own in enumerate(drawn):
        prompt = prompts[row // width]
        texts[row, : len(prompt) + 5] = [*prompt, *own[:5]]
    whole = read(model, params, texts, method="read")
    for row in range(len(drawn)):
        first = len(prompts[row // width]) - 1
        own = [logits[row] for logits in found]
        expected = whole[row, first : first + 6]
        np.testing.assert_allclose(own, expected, rtol=0, atol=1e-5)


def test_a_vocabulary_without_padding_pads_beyond_itself():
    """The id after the last one is padding, and no row of the table."""
    model, params = make(**DECODER, pad_id=13)
    whole = read(model, params, [[0, 4, 0, 5]])
    padded = read(model, params, [[0, 4, 0, 5, 13, 13]])
    np.testing.assert_allclose(whole, padded[:, :4], rtol=0, atol=2e-5)
    with pytest.raises(InputError, match="token id 14 is not in 0 to 13"):
        model.apply({"params": params}, jnp.array([[14]]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_encoder_layers": 0, "num_decoder_layers": 0}, "are both 0"),
        ({"head": "words"}, "model.head=words is of encoder-only models"),
        (DECODER | {"pad_id": 14}, "model.pad_id must be in the vocabulary, below 14"),
        (DECODER | {"bos_id": 13}, "model.bos_id must be in the vocabulary, below 13"),
    ],
)
def test_a_model_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        TransformerConfig(**LITTLE | settings)


def test_an_unknown_preset_is_refused():
    with pytest.raises(InputError, match="the presets are bert-tiny"):
        preset("gpt5")


def test_the_second_text_of_a_pair_is_of_the_second_kind():
    """From the first end of a text on, that one excluded."""
    model, params = make(**ENCODER, segment_types=2, eos_id=1)
    pair = [[2, 5, 6, 1, 7, 8, 1]]
    types = jnp.array([[0, 0, 0, 0, 1, 1, 1]])
    found, given = (read(model, params, pair, types=each) for each in (None, types))
    assert (found == given).all()
    assert (found != read(model, params, pair, types=0 * types)).any()


@pytest.mark.parametrize(("kinds", "least"), [(0, 1), (1, 1), (2, 2), (2, -1)])
def test_a_kind_of_segment_that_a_model_lacks_is_refused(kinds, least):
    """By name: a gather would give NaN, or the embedding of another kind."""
    model, params = make(**ENCODER, segment_types=kinds)
    types = jnp.array([[0, 0, least]])
    message = f"a token has segment {least}, and this model has model.segment_types="
    run = functools.partial(model.apply, {"params": params}, jnp.array([[4, 5, 6]]))
    with pytest.raises(InputError, match=f"{message}{kinds}: give 0 to"):
        run(types=types)
    run(types=0 * types)
