"""Where dropout acts: on sub-layer outputs and on sums of embeddings and positions."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import KEY, make_model, make_sentences, same

from jaxformer import functional as F
from jaxformer.kernels import elementwise

S, T, D, WIDTH, HEADS = 5, 4, 8, 12, 2
SOURCE, TARGET = make_sentences(1, [S, 2]), make_sentences(2, [2, T])
# One sum of embeddings and positions a side, two sub-layers an encoder layer, three a
# decoder layer.
PLACES = {
    "dropout_rate": {(2, S, D): 1 + 2 * 2, (2, T, D): 1 + 3 * 1},
    "attention_dropout_rate": {
        (2, HEADS, S, S): 2,
        (2, HEADS, T, T): 1,
        (2, HEADS, T, S): 1,
    },
    "activation_dropout_rate": {(2, S, WIDTH): 2, (2, T, WIDTH): 1},
}


def predict(model, params, train=True, key=KEY):
    rngs = {} if key is None else {"dropout": key}
    pair = jnp.asarray(SOURCE), jnp.asarray(TARGET)
    return model.apply({"params": params}, *pair, train=train, rngs=rngs)


def trace(model, params, train, key):
    jax.eval_shape(lambda params: predict(model, params, train, key), params)


@pytest.mark.parametrize("order", ["post", "pre"])
def test_each_rate_drops_its_tensors_and_no_others(monkeypatch, order):
    """Training draws one mask for each place of the paper, by shape and number. At rate
    0 and without training nothing is drawn and no key needed.
    """
    drawn, bits = [], elementwise.random_bits

    def record(key, shape):
        drawn.append(shape)
        return bits(key, shape)

    monkeypatch.setattr(elementwise, "random_bits", record)
    places = PLACES if order == "post" else ["dropout_rate"]
    for names in [[], *([name] for name in places)]:
        rates = dict.fromkeys(names, 0.3)
        model, params = make_model(0, num_encoder_layers=2, norm_order=order, **rates)
        for train in (False, True):
            drawn.clear()
            key = KEY if names and train else None
            trace(model, params, train, key)
            expected = PLACES[names[0]] if names and train else {}
            assert collections.Counter(drawn) == expected
        if names:
            with pytest.raises(Exception, match="dropout"):
                trace(model, params, True, None)


def test_a_mask_that_drops_everything_leaves_the_norms(monkeypatch):
    """With everything dropped, LN(LN(LN(0))) of each decoder layer remains."""
    model, params = make_model(6, num_decoder_layers=2, dropout_rate=0.4)
    nothing = lambda key, shape: jnp.zeros(shape, jnp.uint32)  # noqa: E731
    monkeypatch.setattr(elementwise, "random_bits", nothing)
    logits = jax.jit(lambda params: predict(model, params))(params)
    x = jnp.zeros(D)
    for layer in ("layer_0", "layer_1"):
        for name in ("self_attention", "cross_attention", "feed_forward"):
            norm = params["decoder"][layer][f"{name}_residual"]["norm"]
            x = F.layer_norm(x, jnp.asarray(norm["scale"]), jnp.asarray(norm["bias"]))
    expected = params["embedding"]["table"] @ np.asarray(x)
    same(logits, np.broadcast_to(expected, logits.shape))
