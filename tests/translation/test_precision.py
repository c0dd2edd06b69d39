"""The forms in which a model is decoded: what they hold, and how near they come."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runs
from jaxformer.errors import InputError
from jaxformer.functional.int8 import Int8Weights, Table, quantize, take_rows
from jaxformer.models import Transformer, TransformerConfig
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.batch import Sentence, search_batch
from jaxformer.translation.models import prepare

SETTINGS = {
    "tied": {},
    "target tied": {"tied_embeddings": "target", "source_vocabulary_size": 23},
    "none tied": {"tied_embeddings": "none", "output_bias": True},
    "learned": {"positions": "learned", "norm_order": "pre"},
}


def make(seed, **settings):
    config = TransformerConfig.tiny(vocabulary_size=29)
    config = dataclasses.replace(
        config, d_model=32, num_heads=4, d_ff=64, max_length=16, **settings
    )
    model, token = Transformer(config), jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), token, token)["params"]
    rng = np.random.default_rng(seed)

    def draw(path, x):
        noise = 0.2 * rng.standard_normal(x.shape).astype(np.float32)
        return (path[-1].key == "scale") + noise

    return config, jax.tree.map(
        jnp.asarray, jax.tree_util.tree_map_with_path(draw, shapes)
    )


def logits(config, params):
    rng = np.random.default_rng(7)
    source, target = (jnp.asarray(rng.integers(4, 23, size=(3, n))) for n in (8, 6))
    return np.asarray(
        jax.jit(Transformer(config).apply)({"params": params}, source, target)
    )


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    ("precision", "bound"),
    [("model", 1e-6), ("float32", 1e-6), ("bfloat16", 0.02), ("int8", 0.05)],
)
def test_logits_stay_near(settings, precision, bound):
    """Of every kind of model: equal but for the order of sums in float32, near in
    bfloat16 and in 8 bits.
    """
    config, params = make(1, **settings)
    exact, found = logits(config, params), logits(*prepare(config, params, precision))
    error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
    assert error <= bound
    # it is another precision
    assert (error > 1e-4) == (precision in {"bfloat16", "int8"})


@pytest.mark.parametrize("tied", ["all", "target", "none"])
def test_what_is_converted_and_what_is_not(tied):
    """Kernels and what gives logits are in 8 bits; look-ups, biases, norms and
    positions stay as they were.
    """
    config, params = make(2, positions="learned", tied_embeddings=tied)
    prepared_config, prepared = prepare(config, params, "int8")
    assert prepared_config.dtype == "float32"
    leaves = jax.tree_util.tree_leaves_with_path(
        prepared, is_leaf=lambda x: isinstance(x, Int8Weights)
    )
    converted = {
        jax.tree_util.keystr(path)
        for path, leaf in leaves
        if isinstance(leaf, Int8Weights)
    }
    plain = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    logits = {
        "all": "['embedding']['table'].outputs",
        "target": "['target_embedding']['table'].outputs",
    }
    assert converted == {name for name in plain if "kernel" in name} | {
        logits.get(tied, "['output']")
    }
    for path, leaf in leaves:
        if not isinstance(leaf, Int8Weights):
            np.testing.assert_array_equal(
                leaf, plain[jax.tree_util.keystr(path).removesuffix(".rows")]
            )
    kernel = prepared["decoder"]["layer_0"]["self_attention"]["output"]["kernel"]
    assert kernel.scales.shape == (config.d_model,)


def test_a_model_of_half_precision_keeps_halves():
    """Weights of a bfloat16 model are converted once and not at each step; a table
    lies in both layouts on a CPU.
    """
    config, params = make(3, dtype="bfloat16")
    config, prepared = prepare(config, params, "model")
    assert config.dtype == "bfloat16"
    assert (
        prepared["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"].dtype
        == jnp.bfloat16
    )
    table = prepared["embedding"]["table"]
    assert isinstance(table, Table)
    assert table.outputs.shape == (32, 29)
    np.testing.assert_array_equal(table.outputs.T, table.rows)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_table_that_gives_no_logits_lies_once(precision):
    """Nothing is multiplied with the tables beside an output of its own, nor with
    that of another source vocabulary.
    """
    config, params = make(4, tied_embeddings="none")
    prepared = prepare(config, params, precision)[1]
    dtype = jnp.bfloat16 if precision == "bfloat16" else jnp.float32
    for name in ("source_embedding", "target_embedding"):
        table = prepared[name]["table"]
        assert not isinstance(table, Table)
        np.testing.assert_array_equal(table, params[name]["table"].astype(dtype))
    assert isinstance(prepared["output"], Int8Weights if precision == "int8" else Table)


def test_an_unknown_precision_is_refused():
    """The names are given."""
    with pytest.raises(
        InputError,
        match=(
            r"decoding\.precision must be one of model, float32, bfloat16, int8, not"
            r" 'half'"
        ),
    ):
        DecodingConfig(precision="half")


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_search_is_in_the_precision_that_is_asked_for(precision):
    """A translator finds what its models find when they are prepared so, which is
    near what the plain ones find.
    """
    translator = runs.translator()
    decoding = dataclasses.replace(
        translator.decoding, precision=precision, beam_size=3
    )
    text, eos_id = "Open the file.", translator.vocabularies.target.eos_id
    ((found,),) = translator.search([text], decoding=decoding)
    ((plain,),) = translator.search([text], beam_size=3)
    (ids,) = translator.codec.encode_sources([text])
    sentences = [Sentence(ids, len(ids) - 1, [], (0, 0))]
    for models, expected in (
        (translator.models.prepare(precision), found),
        (translator.models.prepare("model"), plain),
    ):
        result = search_batch(models, sentences, decoding, eos_id=eos_id, n_best=1)
        assert result.scores[0, 0] == pytest.approx(expected.score, abs=1e-6)
    assert found.score != plain.score
    # Of the same tokens: the sum of the logarithms is off by what the weights are off.
    if found.tokens == plain.tokens:
        assert found.score == pytest.approx(plain.score, abs=0.2)


def test_a_part_of_a_table_is_that_part_of_what_it_stands_for():
    """Rows taken from a plain table, one in both layouts and one in 8 bits give the
    same numbers as before.
    """
    rng = np.random.default_rng(3)
    table, tokens = (
        jnp.asarray(rng.normal(size=(9, 4)), jnp.float32),
        jnp.asarray([0, 7, 2, 2]),
    )
    np.testing.assert_array_equal(take_rows(table, tokens), table[tokens])
    both = take_rows(Table(table, table.T), tokens)
    np.testing.assert_array_equal(both.rows, table[tokens])
    np.testing.assert_array_equal(both.outputs, table[tokens].T)
    small = quantize(table, (1,))
    part = take_rows(small, tokens)
    np.testing.assert_array_equal(
        part.values, np.asarray(small.values)[np.asarray(tokens)]
    )
    np.testing.assert_array_equal(
        part.scales, np.asarray(small.scales)[np.asarray(tokens)]
    )
    np.testing.assert_array_equal(part.sums, np.asarray(small.sums)[np.asarray(tokens)])
    of_both = take_rows(Table(table, small), tokens)
    np.testing.assert_array_equal(of_both.rows, table[tokens])
    jax.tree.map(np.testing.assert_array_equal, of_both.outputs, part)
