"""Tables of tokens and positions as modules."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.nn import Embedding, Positions


def test_embedded_tokens_begin_with_deviation_one():
    """At initialisation the embedded input has mean 0 and deviation 1: scaled once,
    not twice.
    """
    tokens = jnp.arange(400).reshape(4, 100)
    module = Embedding(400, 64)
    variables = module.init(jax.random.key(0), tokens)
    embedded = np.asarray(module.apply(variables, tokens))
    assert embedded.std() == pytest.approx(1.0, rel=0.02)
    assert abs(embedded.mean()) < 0.03
    np.testing.assert_allclose(
        embedded[2, 5], 8.0 * np.asarray(variables["params"]["table"])[205], rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["sinusoidal_concatenated", "learned"])
def test_without_scale_the_rows_are_the_vectors(kind):
    """Without scaling, vectors of tokens and of learned positions are rows of their
    tables.
    """
    tokens = jnp.array([[3, 0, 10]])
    module = Embedding(11, 16, scale=False)
    variables = module.init(jax.random.key(6), tokens)
    np.testing.assert_array_equal(
        module.apply(variables, tokens), variables["params"]["table"][tokens]
    )
    module = Positions(kind, 16, 5, scale=False)
    place = jnp.arange(5)
    variables = module.init(jax.random.key(7), place)
    expected = (
        variables["params"]["table"]
        if kind == "learned"
        else F.sinusoidal(place, 16, layout="concatenated")
    )
    np.testing.assert_array_equal(module.apply(variables, place), expected)


def test_logits_use_the_same_table_without_scale():
    """One table, at most once scaled: logits are x E^T."""
    module = Embedding(11, 16)
    variables = module.init(jax.random.key(1), jnp.zeros((1, 1), jnp.int32))
    assert jax.tree.map(jnp.shape, variables) == {"params": {"table": (11, 16)}}
    x = jnp.asarray(np.random.default_rng(2).normal(size=(2, 3, 16)).astype(np.float32))
    logits = module.apply(variables, x, method="logits")
    np.testing.assert_allclose(
        logits,
        np.asarray(x) @ np.asarray(variables["params"]["table"]).T,
        rtol=1e-5,
        atol=1e-5,
    )


def test_bfloat16_vectors_come_from_a_float32_table():
    """The table stays float32; vectors have the type of the computation, logits are
    float32.
    """
    module = Embedding(11, 16, jnp.dtype("bfloat16"))
    variables = module.init(jax.random.key(3), jnp.zeros((1, 1), jnp.int32))
    assert variables["params"]["table"].dtype == jnp.float32
    x = module.apply(variables, jnp.array([[3, 4]]))
    assert x.dtype == jnp.bfloat16
    assert module.apply(variables, x, method="logits").dtype == jnp.float32


@pytest.mark.parametrize(
    "kind", ["sinusoidal", "sinusoidal_halves", "sinusoidal_concatenated", "learned"]
)
def test_positions_of_each_kind(kind):
    """Sinusoidal kinds are the functions and have no parameters; learned ones begin
    with deviation 1.
    """
    module = Positions(kind, 64, 128)
    place = jnp.arange(128)
    variables = module.init(jax.random.key(4), place)
    encoding = module.apply(variables, place)
    assert encoding.shape == (128, 64)
    assert encoding.dtype == jnp.float32
    if kind == "learned":
        assert jax.tree.map(jnp.shape, variables) == {"params": {"table": (128, 64)}}
        assert np.asarray(encoding).std() == pytest.approx(1.0, rel=0.05)
    else:
        assert not variables
        layouts = {"sinusoidal": "interleaved", "sinusoidal_halves": "halves"}
        layout = layouts.get(kind, "concatenated")
        np.testing.assert_array_equal(encoding, F.sinusoidal(place, 64, layout=layout))
    # a lone position, as at a decoding step, has the encoding that it has in the row
    np.testing.assert_allclose(
        module.apply(variables, jnp.array([77]))[0], encoding[77], rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    "kind", ["sinusoidal", "sinusoidal_halves", "sinusoidal_concatenated", "learned"]
)
def test_more_positions_than_the_model_has_are_refused(kind):
    """One more than max_length raises with both numbers, inside jit too; max_length
    itself is fine.
    """
    module = Positions(kind, 8, 5)
    variables = module.init(jax.random.key(5), jnp.arange(5))
    with pytest.raises(
        InputError, match=r"6 tokens is longer than the model's 5 positions; shorten it"
    ):
        module.apply(variables, jnp.arange(6))
    with pytest.raises(InputError, match="5 positions"):
        jax.jit(module.apply)(variables, jnp.arange(6))


def test_an_unknown_kind_of_positions_is_named():
    """With those that there are."""
    with pytest.raises(
        InputError, match=r"one of sinusoidal, .*, learned, not 'rotary'"
    ):
        Positions("rotary", 8, 5).apply({}, jnp.arange(3))
