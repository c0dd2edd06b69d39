"""The precisions in which a model is decoded: what they store, how near they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import LATER
from translation.translators import equally_long, noisy_params, random_translator

import runs
from jaxformer.errors import InputError
from jaxformer.kernels.int8 import TwoWayTable, quantize, take_rows
from jaxformer.models import Transformer
from jaxformer.translation import models
from jaxformer.translation.models import prepare
from jaxformer.translation.translator import Translator

TIED = {
    "all": {},
    "target": {"source_vocabulary_size": 23, "positions": "learned"},
    "none": {"output_bias": True, "norm_order": "pre"},
}


def make(seed, tied="all", **settings):
    changes = {**TIED[tied], **settings, "tied_embeddings": tied}
    config = runs.model_config(vocabulary_size=29, max_length=16, **changes)
    return config, noisy_params(config, seed)


def logits(config, params):
    rng = np.random.default_rng(7)
    pair = (rng.integers(4, 23, (3, n), np.int32) for n in (8, 6))
    return np.asarray(jax.jit(Transformer(config).apply)({"params": params}, *pair))


@pytest.mark.parametrize(
    ("tied", "precision", "bound"),
    [
        *[("none", "model", 1e-6), ("none", "bfloat16", 0.02), ("none", "int8", 0.05)],
        *[("target", "int8", 0.05), ("all", "int8", 0.05)],
    ],
)
def test_logits_stay_near(tied, precision, bound):
    """Logits differ by the order of sums in float32 and stay near in fewer bits."""
    config, params = make(1, tied)
    exact, found = logits(config, params), logits(*prepare(config, params, precision))
    error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
    assert error <= bound
    assert (error > 1e-4) == (precision != "model")


@pytest.mark.parametrize("blocks", LATER)
def test_logits_of_later_blocks_stay_near(blocks):
    """In 8 bits, with gates, shared keys and without biases; norms and the bias of
    positions stay float32.
    """
    config, params = make(1, "none", **LATER[blocks])
    prepared_config, prepared = prepare(config, params, "int8")
    exact, found = logits(config, params), logits(prepared_config, prepared)
    error = np.sqrt(np.square(found - exact).mean() / np.square(exact).mean())
    assert 1e-4 < error <= 0.06
    gates = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(prepared)
        if "gate" in jax.tree_util.keystr(path) and "kernel" in str(path)
    ]
    assert (len(gates) > 0) == ("glu" in config.activation)
    assert not gates or gates[0].dtype == np.int8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_large_table_has_one_layout(dtype, monkeypatch):
    """Its logits differ from those of two layouts only by the order of sums."""
    config, params = make(3)
    found = logits(*prepare(config, params, dtype))
    monkeypatch.setattr(models, "_LARGE", 0)
    large = prepare(config, params, dtype)
    assert large[1]["embedding"]["table"].outputs is None
    np.testing.assert_allclose(logits(*large), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_run_is_loaded_in_a_precision(precision):
    """It has no weights in float32, translates as one that is converted later, and not
    in another precision.
    """
    run, texts = runs.random_run(), equally_long()[:2]
    whole, small = Translator.load(run), Translator.load(run, precision=precision)
    decoding = dataclasses.replace(whole.decoding, precision=precision)
    pairs = [each.search(texts, decoding=decoding) for each in (whole, small)]
    assert pairs[0] == pairs[1]
    size, less = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(each.params["encoder"]))
        for each in (whole, small)
    )
    assert less < 0.6 * size
    with pytest.raises(InputError, match=f"loaded only for precision={precision}, not"):
        small.translate(texts)
    with pytest.raises(InputError, match="weights only of precision"):
        Translator.ensemble([whole, small])


def test_a_part_of_a_table_is_that_part_of_what_it_stands_for():
    """Rows keep their values, of a plain table, in both layouts and in 8 bits."""
    table = jnp.asarray(np.random.default_rng(3).normal(size=(9, 4)), jnp.float32)
    tokens = jnp.asarray([0, 7, 2, 2])
    np.testing.assert_array_equal(take_rows(table, tokens), table[tokens])
    both = take_rows(TwoWayTable(table, table.T), tokens)
    np.testing.assert_array_equal(both.rows, table[tokens])
    np.testing.assert_array_equal(both.outputs, table[tokens].T)
    small = quantize(table, (1,))
    part = take_rows(TwoWayTable(table, small), tokens).outputs
    for name in ("values", "scales", "sums"):
        whole = np.asarray(getattr(small, name))
        np.testing.assert_array_equal(getattr(part, name), whole[[0, 7, 2, 2]])


def test_a_run_of_another_machine_s_kernel_is_translated_here():
    """Its configuration names a kernel that this machine does not have."""
    fused, plain = (
        random_translator(attention_backend=backend) for backend in ("pallas", "plain")
    )
    assert fused.translate(equally_long()) == plain.translate(equally_long())
