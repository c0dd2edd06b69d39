"""One step at a time with a cache gives what the whole forward pass gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer.models import empty_cache, empty_coverage


@functools.partial(jax.jit, static_argnums=0)
def start(model, params, source):
    return model.apply({"params": params}, source, method="start")


@functools.partial(jax.jit, static_argnums=0)
def step(model, params, tokens, cache, memory):
    return model.apply({"params": params}, tokens, cache, memory, method="step")


@functools.partial(jax.jit, static_argnums=0)
def whole(model, params, source, target):
    return model.apply({"params": params}, source, target)


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, source, target):
    return model.apply({"params": params}, source, target, method="forward")[1]


SETTINGS = {
    "paper": {"num_decoder_layers": 2},
    "learned": {"positions": "learned", "num_encoder_layers": 2},
    "halves, untied": {
        "positions": "sinusoidal_halves",
        "tied_embeddings": "none",
        "norm_order": "pre",
    },
    "widths": {"num_heads": 3, "d_k": 5, "d_v": 2, "activation": "gelu"},
    "begins with padding": {
        "positions": "sinusoidal_concatenated",
        "bos_id": 0,
        "output_bias": True,
        "scale_embedding": False,
        "activation": "silu",
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_steps_equal_the_whole_forward_pass(make_model, make_sentences, settings):
    """Three padded sentences, two hypotheses each: equal logits at each step."""
    model, params = make_model(1, **settings)
    source = make_sentences(2, [5, 2, 4])
    hypotheses = make_sentences(3, [6] * 6)  # those of a sentence are adjacent
    expected = whole(model, params, jnp.repeat(source, 2, axis=0), hypotheses)
    memory, cache = start(model, params, source), empty_cache(model.config, 6, 8)
    tokens = np.concatenate(
        [np.full((6, 1), model.config.bos_id), np.asarray(hypotheses)], 1
    ).astype(np.int32)
    for t in range(6):
        assert int(cache.position) == t
        logits, cache = step(model, params, jnp.asarray(tokens[:, t]), cache, memory)
        assert logits.dtype == jnp.float32
        np.testing.assert_allclose(logits, expected[:, t], rtol=1e-5, atol=1e-5)


def test_coverage_adds_up_the_attention_of_the_last_layer(make_model, make_sentences):
    """After each step it is the attention of the forward pass, summed over positions
    and averaged over heads; 1 at padding.
    """
    model, params = make_model(2, num_decoder_layers=2, **SETTINGS["widths"])
    source, hypotheses = make_sentences(3, [5, 2, 4]), make_sentences(4, [6] * 6)
    repeated = jnp.repeat(source, 2, axis=0)
    weights = forward(model, params, repeated, hypotheses).cross[-1]
    expected = np.cumsum(np.asarray(weights, np.float64).mean(axis=1), axis=1)
    memory = start(model, params, source)
    cache = empty_cache(model.config, 6, 8)._replace(coverage=empty_coverage(memory, 6))
    padding = np.asarray(repeated) == model.config.pad_id
    assert padding.any()
    tokens = np.concatenate(
        [np.full((6, 1), model.config.bos_id), np.asarray(hypotheses)], 1
    ).astype(np.int32)
    for t in range(6):
        _, cache = step(model, params, jnp.asarray(tokens[:, t]), cache, memory)
        np.testing.assert_allclose(
            cache.coverage, np.where(padding, 1, expected[:, t]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("beam_size", [1, 3])
def test_hypotheses_may_change_places_between_steps(
    make_model, make_sentences, beam_size
):
    """What follows its hypotheses goes on as if they had stood there always: the
    ancestors alone where the hypotheses of a sentence share their store, else keys and
    values as well.
    """
    model, params = make_model(4)
    source, hypotheses = (
        make_sentences(5, [4, 2]),
        np.asarray(make_sentences(6, [4] * 6)),
    )
    memory, cache = (
        start(model, params, source),
        empty_cache(model.config, 6, 4, beam_size),
    )
    for t in range(2):
        tokens = np.full(6, 2) if t == 0 else hypotheses[:, t - 1]
        _, cache = step(model, params, jnp.asarray(tokens, jnp.int32), cache, memory)
    order = np.array([1, 1, 0, 5, 3, 4])  # within each sentence
    assert len(cache.spans[0][0].keys) == 6 // beam_size
    follow = jax.tree.map(
        lambda x: x[order] if x.ndim and len(x) == 6 else x, jax.device_get(cache)
    )
    cache = jax.tree.map(jnp.asarray, follow)
    hypotheses = hypotheses[order]
    expected = whole(
        model, params, jnp.repeat(source, 3, axis=0), jnp.asarray(hypotheses)
    )
    for t in range(2, 4):
        logits, cache = step(
            model, params, jnp.asarray(hypotheses[:, t - 1]), cache, memory
        )
        np.testing.assert_allclose(logits, expected[:, t], rtol=1e-5, atol=1e-5)


def test_room_behind_the_position_is_not_attended_to(make_model, make_sentences):
    """What the cache holds at positions to come, however large, changes not one bit."""
    model, params = make_model(7)
    source, tokens = make_sentences(8, [4]), jnp.array([2])
    memory, cache = start(model, params, source), empty_cache(model.config, 1, 5)
    dirty = cache._replace(
        spans=jax.tree.map(lambda x: jnp.full_like(x, 1e10), cache.spans)
    )
    expected, _ = step(model, params, tokens, cache, memory)
    found, grown = step(model, params, tokens, dirty, memory)
    np.testing.assert_array_equal(found, expected)
    assert all((span.keys[..., 1:] == 1e10).all() for (span,) in grown.spans)
    assert all((span.values[:, :, 1:] == 1e10).all() for (span,) in grown.spans)


def test_a_filler_sentence_decodes_to_finite_logits(make_model):
    """A source of padding alone has nothing to attend to, and gives finite logits
    all the same.
    """
    model, params = make_model(9)
    memory = start(model, params, jnp.zeros((2, 3), jnp.int32))
    logits, _ = step(
        model, params, jnp.array([2, 2]), empty_cache(model.config, 2, 4), memory
    )
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("backend", "kept"), [("cpu", jnp.float32), ("gpu", jnp.bfloat16)]
)
def test_caches_have_the_type_of_the_computation(
    make_model, make_sentences, monkeypatch, backend, kept
):
    """Under bfloat16, logits are float32, keys and values bfloat16, but float32 on a
    CPU; the tree keeps its types.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    model, params = make_model(10, dtype="bfloat16", d_k=5, d_v=2)
    source, tokens = make_sentences(11, [4]), jnp.array([2, 2, 2])
    memory = jax.eval_shape(
        lambda: model.apply({"params": params}, source, method="start")
    )
    cache = empty_cache(model.config, 3, 4, 3)
    logits, grown = jax.eval_shape(
        lambda memory: model.apply(
            {"params": params}, tokens, cache, memory, method="step"
        ),
        memory,
    )
    assert logits.dtype == jnp.float32
    assert jax.tree.map(lambda x: (x.shape, x.dtype), grown) == jax.tree.map(
        lambda x: (x.shape, x.dtype), cache
    )
    (span,) = cache.spans[0]
    assert span.keys.shape == (1, 2, 5, 12)
    assert span.values.shape == (1, 2, 12, 2)
    assert span.keys.dtype == memory.stores[0].keys.dtype == kept


@pytest.mark.parametrize(
    ("backend", "places"), [("cpu", [72, 216, 12]), ("gpu", [300])]
)
def test_a_cpu_keeps_positions_in_spans(make_model, monkeypatch, backend, places):
    """Spans of 24 and 72 positions and what is left, each with a place for every
    hypothesis; elsewhere one.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    model, _ = make_model(13, max_length=100)
    cache = empty_cache(model.config, 3, 100, 3)
    for spans in cache.spans:
        assert (
            [span.keys.shape[3] for span in spans]
            == [span.values.shape[2] for span in spans]
            == places
        )


def test_no_cache_is_longer_than_the_model(make_model):
    """Room for max_length positions is given, for one more refused with both
    numbers.
    """
    model, _ = make_model(12)
    empty_cache(model.config, 1, 16)
    with pytest.raises(
        InputError, match="decoding 17 positions needs more than the model's 16; lower"
    ):
        empty_cache(model.config, 1, 17)
