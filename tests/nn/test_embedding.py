"""Tables of tokens and positions as modules."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import Embedding, Positions

TABLE = np.random.default_rng(2).normal(size=(11, 16)).astype(np.float32)
PARAMS = {"params": {"table": TABLE}}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_table_for_input_and_logits(dtype):
    """Vectors are rows times the root of d_model, in the compute dtype; logits are x
    E^T in float32, without the scale.
    """
    tokens = jnp.array([[3, 0, 10]])
    module = Embedding(11, 16, jnp.dtype(dtype))
    shapes = jax.eval_shape(module.init, jax.random.key(0), tokens)
    assert jax.tree.map(jnp.shape, shapes) == {"params": {"table": (11, 16)}}
    assert shapes["params"]["table"].dtype == jnp.float32
    vectors = jax.jit(module.apply)(PARAMS, tokens)
    np.testing.assert_array_equal(vectors, (4 * TABLE[np.array(tokens)]).astype(dtype))
    plain = jax.jit(Embedding(11, 16, scale=False).apply)(PARAMS, tokens)
    np.testing.assert_array_equal(plain, TABLE[np.array(tokens)])
    logits = jax.jit(lambda *x: module.apply(*x, method="logits"))(PARAMS, vectors)
    assert logits.dtype == jnp.float32
    if dtype == "float32":
        expected = np.asarray(vectors) @ TABLE.T
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "kind", ["sinusoidal", "sinusoidal_halves", "sinusoidal_concatenated", "learned"]
)
def test_positions_of_each_kind(kind):
    """Sinusoidal kinds are the functions, without parameters; learned positions are
    rows, scaled as embeddings are. A lone position has its encoding in the row. More
    positions than the model has are refused, inside jit too.
    """
    module, place = Positions(kind, 16, 11), jnp.arange(11)
    learned = kind == "learned"
    shapes = jax.eval_shape(module.init, jax.random.key(4), place)
    expected = {"params": {"table": (11, 16)}} if learned else {}
    assert jax.tree.map(jnp.shape, shapes) == expected
    params = PARAMS if learned else {}
    encode = jax.jit(module.apply)
    encoding = encode(params, place)
    if learned:
        np.testing.assert_array_equal(encoding, 4 * TABLE)
        plain = jax.jit(Positions(kind, 16, 11, scale=False).apply)(params, place)
        np.testing.assert_array_equal(plain, TABLE)
    else:
        layouts = {"sinusoidal": "interleaved", "sinusoidal_halves": "halves"}
        layout = layouts.get(kind, "concatenated")
        whole = jax.jit(lambda place: F.sinusoidal(place, 16, layout=layout))(place)
        np.testing.assert_array_equal(encoding, whole)
    alone = encode(params, jnp.array([7]))
    np.testing.assert_allclose(alone[0], encoding[7], rtol=1e-5, atol=1e-5)
    line = "12 tokens is longer than the model's 11 positions; shorten it"
    with pytest.raises(InputError, match=line):
        encode(params, jnp.arange(12))


def test_an_offset_counts_positions_from_another_number():
    """Sines and cosines are those of later positions; a learned table has rows before
    the first position, and a sequence may be as long as without an offset.
    """
    place = jnp.arange(9)
    waves = Positions("sinusoidal_halves", 16, offset=2).apply({}, place)
    expected = F.sinusoidal(place + 2, 16, layout="halves")
    np.testing.assert_allclose(waves, expected, rtol=0, atol=1e-6)
    learned = Positions("learned", 16, 9, scale=False, offset=2)
    shapes = jax.eval_shape(learned.init, jax.random.key(4), place)
    assert jax.tree.map(jnp.shape, shapes) == {"params": {"table": (11, 16)}}
    np.testing.assert_array_equal(jax.jit(learned.apply)(PARAMS, place), TABLE[2:])
    with pytest.raises(InputError, match="longer than the model's 9 positions"):
        jax.jit(learned.apply)(PARAMS, jnp.arange(10))


@pytest.mark.parametrize("kind", ["rotary", "none"])
def test_positions_in_attention_are_not_added(kind):
    """They keep the longest length, but of packed rows, and have no encodings."""
    positions = Positions(kind, 16, 9)
    encode = functools.partial(positions.apply, {}, method="encode")
    assert encode(jnp.arange(9)) is None
    assert encode(jnp.ones((2, 10), int)) is None
    with pytest.raises(InputError, match="longer than the model's 9 positions"):
        encode(jnp.arange(10))
    with pytest.raises(InputError, match=f"{kind} positions have no encodings to add"):
        positions.apply({}, jnp.arange(9))


def test_an_unknown_kind_of_positions_is_refused():
    line = r"one of sinusoidal, .*, learned, rotary, none, not 'spiral'"
    with pytest.raises(InputError, match=line):
        Positions("spiral", 8).apply({}, jnp.arange(3))
    with pytest.raises(InputError, match="learned positions need max_length"):
        Positions("learned", 8).init(jax.random.key(0), jnp.arange(3))
