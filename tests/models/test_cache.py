"""Steps with a cache give what the whole forward pass gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import LATER, make_model, make_sentences, same

from jaxformer import InputError
from jaxformer.models.cache import empty_cache, empty_coverage


@functools.partial(jax.jit, static_argnums=0)
def start(model, params, source):
    return model.apply({"params": params}, source, method="start")


@functools.partial(jax.jit, static_argnums=0)
def step(model, params, tokens, cache, memory):
    return model.apply({"params": params}, tokens, cache, memory, method="step")


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, source, target):
    return model.apply({"params": params}, source, target, method="forward")


SETTINGS = {
    "paper": {"num_decoder_layers": 2},
    "halves, pre, untied": {
        "positions": "sinusoidal_halves",
        "tied_embeddings": "none",
        "norm_order": "pre",
        "num_encoder_layers": 2,
    },
    "widths, learned, bos is pad": {
        "num_heads": 3,
        "d_k": 5,
        "d_v": 2,
        "activation": "gelu",
        "positions": "learned",
        "bos_id": 0,
        "output_bias": True,
        "scale_embedding": False,
    },
    "embedding norm, offset": {
        "positions": "learned",
        "position_offset": 2,
        "scale_positions": False,
        "embedding_norm": True,
    },
    **LATER,
}


@pytest.mark.parametrize(
    ("name", "beam_size"), [(name, 1 if name == "paper" else 3) for name in SETTINGS]
)
def test_steps_equal_the_whole_forward_pass(name, beam_size):
    """Logits at each step, and coverage: the attention of the last layer, summed over
    positions, averaged over heads, and 1 at padding.

    Hypotheses take the places of others of their sentence on the way. Where they share
    keys and values only their ancestors follow, else keys and values do. What the cache
    holds at positions to come changes no bit. A filler sentence has finite logits.
    """
    model, params = make_model(1, **SETTINGS[name])
    source, rows = make_sentences(2, [5, 0, 4]), 9
    hypotheses = make_sentences(3, [5] * rows)
    order = np.array([1, 1, 0, 5, 3, 4, 6, 8, 7])
    repeated = np.repeat(source, 3, axis=0)
    first, _ = forward(model, params, repeated, hypotheses)
    logits, weights = forward(model, params, repeated, hypotheses[order])
    assert np.isfinite(logits).all()
    covered = np.cumsum(np.asarray(weights.cross[-1], np.float64).mean(1), axis=1)
    memory = start(model, params, source)
    cache = empty_cache(model.config, rows, 8, beam_size)
    cache = cache._replace(coverage=empty_coverage(memory, rows))
    assert len(cache.spans[0][0].keys) == rows // beam_size
    dirty = jax.tree.map(lambda x: np.full_like(x, 1e10), cache.spans)
    inputs = np.pad(hypotheses, ((0, 0), (1, 0)), constant_values=model.config.bos_id)
    clean, _ = step(model, params, inputs[:, 0], cache, memory)
    cache = cache._replace(spans=dirty)
    for t in range(5):
        assert int(cache.position) == t
        if t == 2:
            cache = jax.tree.map(
                lambda x: x[order] if x.ndim and len(x) == rows else x,
                jax.device_get(cache),
            )
            inputs = inputs[order]
        found, cache = step(model, params, inputs[:, t], cache, memory)
        assert found.dtype == jnp.float32
        if t == 0:
            np.testing.assert_array_equal(found, clean)
        same(found, (first if t < 2 else logits)[:, t])
        if t >= 2:
            expected = np.where(repeated == 0, 1, covered[:, t])
            np.testing.assert_allclose(cache.coverage, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "kept"), [("cpu", jnp.float32), ("gpu", jnp.bfloat16)]
)
def test_types_and_spans_of_a_cache(monkeypatch, backend, kept):
    """In bfloat16 logits are float32, and keys and values bfloat16, but float32 on a
    CPU, which keeps positions in spans of 24, 72 and the rest. A step keeps types and
    shapes.
    """
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    model, params = make_model(10, dtype="bfloat16", d_k=5, d_v=2, max_length=100)
    source, tokens = make_sentences(11, [4]), np.array([2, 2, 2])
    cache = empty_cache(model.config, 3, 100, 3)

    def run(params, source, tokens):
        memory = model.apply({"params": params}, source, method="start")
        given = {"params": params}, tokens, cache, memory
        return memory, *model.apply(*given, method="step")

    memory, logits, grown = jax.eval_shape(run, params, source, tokens)
    assert logits.dtype == jnp.float32
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), x) for x in (grown, cache)]
    assert kinds[0] == kinds[1]
    places = [72, 216, 12] if backend == "cpu" else [300]
    (spans,) = cache.spans
    assert [span.keys.shape for span in spans] == [(1, 2, 5, n) for n in places]
    assert [span.values.shape for span in spans] == [(1, 2, n, 2) for n in places]
    assert spans[0].keys.dtype == memory.stores[0].keys.dtype == kept
    with pytest.raises(
        InputError, match="101 positions needs more than the model's 100"
    ):
        empty_cache(model.config, 1, 101)
