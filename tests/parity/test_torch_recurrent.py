"""The recurrent encoders give what PyTorch's GRU and LSTM give with the same weights,
on padded rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.nn.recurrent import BahdanauEncoder, LuongEncoder

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs the extra `parity`")

WIDTH, LENGTHS = 6, (7, 3, 1)
GATES = {"gru": "rzn", "lstm": "ifgo"}  # in PyTorch's order


def run(module):
    """Return the input, the parameters and what the encoder gives."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 7, WIDTH)).astype(np.float32)
    given = jnp.asarray(x), jnp.array(LENGTHS)
    init = functools.partial(module.init, train=False)
    shapes = jax.eval_shape(init, jax.random.key(0), *given)
    params = jax.tree.map(
        lambda leaf: jnp.float32(0.5 * rng.normal(size=leaf.shape)), shapes["params"]
    )
    return x, params, module.apply({"params": params}, *given, train=False)


def fill(theirs, cell, layer, suffix=""):
    """Copy a cell; a bias that it has not is 0 in PyTorch's."""
    kind = "gru" if isinstance(theirs, torch.nn.GRU) else "lstm"
    for side, letter in (("ih", "i"), ("hh", "h")):
        gates = [cell[f"{letter}{gate}"] for gate in GATES[kind]]
        weight = np.concatenate([np.asarray(gate["kernel"]).T for gate in gates])
        biases = [np.asarray(gate.get("bias", np.zeros(WIDTH))) for gate in gates]
        for name, value in (("weight", weight), ("bias", np.concatenate(biases))):
            parameter = getattr(theirs, f"{name}_{side}_l{layer}{suffix}")
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(np.float64(value)))


def run_theirs(theirs, x):
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.from_numpy(np.float64(x)), LENGTHS, batch_first=True
    )
    with torch.no_grad():
        outputs, last = theirs(packed)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    return padded.numpy(), last


def check_real(found, expected):
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(found[row, :length], expected[row, :length], 0, 2e-6)


def test_the_gru_in_both_directions():
    """The decoder begins with the backward state of the first word."""
    x, params, (memory, first) = run(BahdanauEncoder(WIDTH, jnp.dtype("float32")))
    settings = {"batch_first": True, "bidirectional": True, "dtype": torch.float64}
    theirs = torch.nn.GRU(WIDTH, WIDTH, **settings)
    fill(theirs, params["both"]["forward_rnn"]["cell"], 0)
    fill(theirs, params["both"]["backward_rnn"]["cell"], 0, "_reverse")
    outputs, last = run_theirs(theirs, x)
    check_real(memory, outputs)
    np.testing.assert_allclose(first, last[1].numpy(), 0, 2e-6)


def test_the_lstms():
    """The decoder begins with the states after the last real word of each row."""
    module = LuongEncoder(WIDTH, 2, 0.0, jnp.dtype("float32"))
    x, params, (memory, last) = run(module)
    settings = {"batch_first": True, "num_layers": 2, "dtype": torch.float64}
    theirs = torch.nn.LSTM(WIDTH, WIDTH, **settings)
    for layer in range(2):
        fill(theirs, params[f"stack_{layer}"]["cell"], layer)
    outputs, (states, cells) = run_theirs(theirs, x)
    check_real(memory, outputs)
    for layer, (cell, state) in enumerate(last):
        np.testing.assert_allclose(cell, cells[layer].numpy(), 0, 2e-6)
        np.testing.assert_allclose(state, states[layer].numpy(), 0, 2e-6)
