"""RNNsearch's encoder, and the networks without attention, give what PyTorch's GRU and
LSTM give with the same weights, on padded rows.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_sentences

from jaxformer import TransformerConfig
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.nn.recurrent import BahdanauEncoder

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


def check_gradients(theirs, layer, cell):
    """Of a cell's gates, which are rows of PyTorch's matrices."""
    kind = "gru" if isinstance(theirs, torch.nn.GRU) else "lstm"
    for (letter, gate), own in cell.items():
        begin = WIDTH * GATES[kind].index(gate)
        for name, value in own.items():
            name = "bias" if name == "bias" else "weight"
            whole = getattr(theirs, f"{name}_{letter}h_l{layer}").grad.numpy()
            expected = whole[begin : begin + WIDTH].T
            np.testing.assert_allclose(value, expected, 0, 1e-5)


@pytest.mark.parametrize(("network", "layers"), [("sutskever", 2), ("cho", 1)])
def test_the_networks_without_attention(network, layers):
    """Logits, and the gradient of every parameter; Sutskever's reads in reverse."""
    stacks = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), layers)
    is_cho = network == "cho"
    stacks |= {"network": network, "reverse_source": not is_cho, "dropout_rate": 0.0}
    config = TransformerConfig(13, d_model=WIDTH, **stacks)
    model, rng = make_model(config), np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.float32(0.5 * rng.normal(size=leaf.shape)),
        abstract_parameters(config),
    )
    source, target = make_sentences(1, LENGTHS), make_sentences(2, (4, 5, 2))
    mixing = np.float32(rng.normal(size=(3, 5, 13)) * (target != 0)[..., None])

    def mix(params):
        logits = model.apply({"params": params}, *map(jnp.asarray, (source, target)))
        return (mixing * logits).sum(), logits

    grads, logits = jax.jit(jax.grad(mix, has_aux=True))(params)

    own = jax.tree.map(
        lambda x: torch.tensor(np.float64(x), requires_grad=True), params
    )
    table, maps = own["embedding"]["table"], {**own["encoder"], **own["decoder"]}

    def embed(ids):
        return WIDTH**0.5 * table[torch.tensor(np.int64(ids))]

    def affine(name, x):
        return x @ maps[name]["kernel"] + maps[name]["bias"]

    kind = torch.nn.GRU if is_cho else torch.nn.LSTM
    settings = {"batch_first": True, "num_layers": layers, "dtype": torch.float64}
    encoder = kind(WIDTH, WIDTH, **settings)
    decoder = kind((1 + is_cho) * WIDTH, WIDTH, **settings)
    cells = []
    for layer in range(layers):
        reader = "rnn" if is_cho else f"stack_{layer}"
        for theirs, path in (
            (encoder, ("encoder", reader, "cell")),
            (decoder, ("decoder", "cell" if is_cho else reader)),
        ):
            cells.append((theirs, layer, path))
            fill(theirs, functools.reduce(dict.get, path, params), layer)
    read = source
    if not is_cho:
        rows = zip(source, LENGTHS, strict=True)
        read = [[*row[:count][::-1], *row[count:]] for row, count in rows]
    pack = torch.nn.utils.rnn.pack_padded_sequence
    _, last = encoder(pack(embed(read), LENGTHS, batch_first=True))
    x = embed(np.pad(target, ((0, 0), (1, 0)), constant_values=2)[:, :-1])
    if is_cho:
        context = torch.tanh(affine("summary", last[0]))
        x = torch.cat([x, context[:, None].expand(-1, 5, -1)], -1)
        states, _ = decoder(x, torch.tanh(affine("initial", context))[None])
        units = affine("readout", torch.cat([states, x], -1))
        x = units.reshape(3, 5, WIDTH, 2).amax(-1)
    else:
        x, _ = decoder(x, last)
    theirs = x @ table.T
    (torch.tensor(mixing) * theirs).sum().backward()
    real = target != 0
    np.testing.assert_allclose(logits[real], theirs.detach().numpy()[real], 0, 1e-5)
    for module, layer, path in cells:
        check_gradients(module, layer, functools.reduce(dict.get, path, grads))

    def check(found, expected):
        if expected.grad is not None:  # else of a cell
            np.testing.assert_allclose(found, expected.grad.numpy(), 0, 1e-5)

    jax.tree.map(check, grads, own)
    assert table.grad is not None
