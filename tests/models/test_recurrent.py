"""The networks before the Transformer: their equations, padding, search, counts and
refused settings.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.little import make_sentences

from jaxformer import InputError, TransformerConfig
from jaxformer.models import logical_axes
from jaxformer.models.flops import Work, forward_flops
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.models.recurrent import RecurrentNetwork
from jaxformer.paper.parameters import count_parameters
from jaxformer.search.rules import SearchRules
from jaxformer.translation.compiled import BatchInput, lost_coverage, search_shard
from jaxformer.translation.models import prepare

BAHDANAU = {"network": "bahdanau", "num_encoder_layers": 1, "num_decoder_layers": 1}
LUONG = {"network": "luong", "num_encoder_layers": 2, "num_decoder_layers": 2}
NETWORKS = {
    "bahdanau": BAHDANAU,
    "dot": LUONG | {"attention_score": "dot", "tied_embeddings": "none"},
    "general": LUONG | {"tied_embeddings": "target"},
    "concat": LUONG
    | {"attention_score": "concat", "output_bias": True, "reverse_source": True},
    "sutskever": LUONG | {"network": "sutskever"},
    "sutskever reversed": LUONG | {"network": "sutskever", "reverse_source": True},
    "cho": BAHDANAU | {"network": "cho"},
}
ATTENDING = [*NETWORKS][:4]
# Of width d, without tables: RNNsearch 36 d d + 16 d; Luong's 8 d d + 4 d a layer, 6 d
# d, and 0, d d or 2 d d + d for the score; Sutskever's 8 d d + 4 d a layer; Cho's 23 d
# d + 12 d.
COUNTS = {"bahdanau": 149_312, "dot": 159_168, "general": 162_432, "concat": 165_773}
COUNTS |= dict.fromkeys(("sutskever", "sutskever reversed"), 132_928) | {"cho": 95_808}
EACH = pytest.mark.parametrize("name", NETWORKS)


@functools.cache
def make(name, **settings):
    """Return a little network and parameters without zeros among them."""
    little = {"vocabulary_size": 13, "d_model": 6, "dropout_rate": 0.0}
    config = TransformerConfig(**little | NETWORKS[name] | settings)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.float32(0.5 * rng.normal(size=leaf.shape)),
        abstract_parameters(config),
    )
    return make_model(config), params


@functools.cache
def begin(name):
    """Return a network and the parameters that its training begins with."""
    model, _ = make(name, d_model=32)
    token = jnp.ones((1, 1), jnp.int32)
    return model, jax.jit(model.init)(jax.random.key(0), token, token)["params"]


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, source, target):
    """Return logits and attention weights [B, T, S]; None without attention."""
    logits, weights = model.apply({"params": params}, source, target, method="forward")
    assert weights.encoder == weights.decoder == []
    assert len(weights.cross) == model.config.attention_layers
    return logits, weights.cross[0][:, 0] if weights.cross else None


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def gru(p, h, x):
    r = sigmoid(x @ p["ir"]["kernel"] + p["ir"]["bias"] + h @ p["hr"]["kernel"])
    z = sigmoid(x @ p["iz"]["kernel"] + p["iz"]["bias"] + h @ p["hz"]["kernel"])
    held = h @ p["hn"]["kernel"] + p["hn"]["bias"]
    n = np.tanh(x @ p["in"]["kernel"] + p["in"]["bias"] + r * held)
    return (1 - z) * n + z * h


def lstm(p, carry, x):
    c, h = carry
    i, f, g, o = (
        x @ p[f"i{k}"]["kernel"] + h @ p[f"h{k}"]["kernel"] + p[f"h{k}"]["bias"]
        for k in "ifgo"
    )
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return c, sigmoid(o) * np.tanh(c)


def by_bahdanau(params, source, words):
    """Return what predicts each word of one sentence without padding, and the weights
    of its attention.
    """
    both, p = params["encoder"]["both"], params["decoder"]
    sides, width = [], source.shape[1]
    for name, xs in (("forward_rnn", source), ("backward_rnn", source[::-1])):
        h, states = np.zeros(width), []
        for x in xs:
            h = gru(both[name]["cell"], h, x)
            states.append(h)
        sides.append(states)
    memory = np.array([[*a, *b] for a, b in zip(sides[0], sides[1][::-1], strict=True)])
    attention = {key: p["attention"][key]["kernel"] for key in p["attention"]}
    # The backward state of the first word begins.
    s = np.tanh(sides[1][-1] @ p["initial"]["kernel"] + p["initial"]["bias"])
    outputs, weights = [], []
    for x in words:
        hidden = np.tanh(s @ attention["state"] + memory @ attention["memory"])
        weights.append(softmax(hidden @ attention["energy"][:, 0]))
        context = weights[-1] @ memory
        s = gru(p["cell"], s, np.concatenate([x, context]))
        outputs.append(maxout(p["readout"], s, x, context))
    return np.array(outputs), np.array(weights)


def affine(p, x):
    return x @ p["kernel"] + p["bias"]


def maxout(p, *seen):
    units = affine(p, np.concatenate(seen))
    return np.maximum(units[0::2], units[1::2])


def by_cho(params, source, words):
    """Return what predicts each word."""
    encoder, p = params["encoder"], params["decoder"]
    h, outputs = np.zeros(source.shape[1]), []
    for x in source:
        h = gru(encoder["rnn"]["cell"], h, x)
    c = np.tanh(affine(encoder["summary"], h))
    s = np.tanh(affine(p["initial"], c))
    for x in words:
        s = gru(p["cell"], s, np.concatenate([x, c]))
        outputs.append(maxout(p["readout"], s, x, c))
    return np.array(outputs), None


def by_luong(params, source, words):
    """As :func:`by_bahdanau`; without the map to h~ Sutskever's network."""
    p, width = params["decoder"], source.shape[1]
    carries, memory = [], source
    for layer in ("stack_0", "stack_1"):
        carry, states = (np.zeros(width), np.zeros(width)), []
        for x in memory:
            carry = lstm(params["encoder"][layer]["cell"], carry, x)
            states.append(carry[1])
        carries.append(carry)
        memory = np.array(states)
    attention = {k: v["kernel"] for k, v in p.get("attention", {}).items()}
    fed, outputs, weights = np.zeros(width), [], []
    for word in words:
        x = np.concatenate([word, fed]) if "combined" in p else word
        for layer in range(2):
            carries[layer] = lstm(p[f"stack_{layer}"], carries[layer], x)
            x = carries[layer][1]
        if "combined" not in p:
            outputs.append(x)
            continue
        if "energy" in attention:
            kernel = np.concatenate([attention["state"], attention["memory"]])
            both = np.concatenate([np.tile(x, (len(memory), 1)), memory], axis=1)
            scores = np.tanh(both @ kernel) @ attention["energy"][:, 0]
        else:
            scores = memory @ (x @ attention["state"] if attention else x)
        weights.append(softmax(scores))
        context = weights[-1] @ memory
        fed = np.tanh(np.concatenate([context, x]) @ p["combined"]["kernel"])
        outputs.append(fed)
    return np.array(outputs), np.array(weights)


@EACH
def test_a_network_is_its_equations_in_float64(name):
    """Each row of a padded batch, against loops over one sentence without padding."""
    model, params = make(name)
    source, target = make_sentences(1, (5, 2, 4)), make_sentences(2, (3, 4, 1))
    logits, weights = forward(model, params, source, target)
    wide = jax.tree.map(np.float64, params)
    tables = [wide.get(f"{side}_embedding") for side in ("source", "target")]
    tables = [(table or wide.get("embedding"))["table"] for table in tables]
    by_hand = {"bahdanau": by_bahdanau, "cho": by_cho}.get(name, by_luong)
    order = slice(None, None, -1 if model.config.reverse_source else 1)
    for row in range(3):
        real, count = source[row] != 0, (target[row] != 0).sum()
        before = np.array([2, *target[row]])[:count]
        sides = (tables[0][source[row][real]][order], tables[1][before])
        x, mixed = by_hand(wide, *(6**0.5 * side for side in sides))
        expected = x @ wide.get("output", tables[1]).T
        expected += wide.get("logits", {"bias": 0})["bias"]
        np.testing.assert_allclose(logits[row, :count], expected, atol=3e-6)
        if weights is not None:
            own = np.asarray(weights)[row, :count]
            np.testing.assert_allclose(own[:, real][:, order], mixed, atol=1e-6)
            assert (own[:, ~real] == 0).all()


@EACH
def test_padding_and_other_rows_change_nothing(name):
    model, params = make(name)
    source, target = make_sentences(1, (5, 2)), make_sentences(2, (3, 4))
    wide = [np.pad(side, ((0, 1), (0, 3))) for side in (source, target)]
    logits, weights = forward(model, params, source, target)
    more, others = forward(model, params, *wide)
    assert np.isfinite(more).all()  # also of a row of padding
    np.testing.assert_allclose(more[:2, :4], logits, atol=1e-6)
    if name in ATTENDING:
        np.testing.assert_allclose(others[:2, :4, :5], weights, atol=1e-6)
        assert not others[2].any()


@EACH
@pytest.mark.parametrize("beam", [1, 3])
def test_a_search_scores_what_the_whole_pass_scores(name, beam):
    """Of greedy search and of a beam, with the coverage of each hypothesis, which
    is refused without attention.
    """
    model, params = make(name)
    source = jnp.asarray(make_sentences(1, (5, 2, 4)))
    rules = SearchRules(
        max_lengths=jnp.array([6, 3, 5]),
        alpha=1.0,
        beam_size=beam,
        n_best=beam,
        bos_id=2,
        eos_id=1,
        pad_id=0,
    )
    batch = BatchInput(source, jnp.zeros((3, 2), jnp.int32), jnp.zeros((), jnp.int32))
    run = jax.jit(functools.partial(search_shard, (model,), (params,), None))
    found = run(batch, rules)
    tokens = np.asarray(found.tokens).reshape(3 * beam, 6)
    logits, _ = forward(model, params, jnp.repeat(source, beam, 0), tokens)
    scores = np.take_along_axis(
        np.asarray(jax.nn.log_softmax(logits)), tokens[..., None], -1
    )[..., 0]
    each = np.where(tokens != 0, scores, 0.0).reshape(3, beam, 6)
    np.testing.assert_allclose(found.token_log_probabilities, each, atol=1e-5)
    assert len(np.unique(tokens, axis=0)) > 1
    rules = dataclasses.replace(rules, coverage=lost_coverage, beta=0.5)
    if name not in ATTENDING:
        with pytest.raises(
            InputError, match=r"model.network=\w+ has none: set it to 0"
        ):
            run(batch, rules)
        return
    covered = run(batch, rules)
    words = np.asarray(covered.tokens).reshape(3 * beam, 6)
    _, weights = forward(model, params, jnp.repeat(source, beam, 0), words)
    lengths = np.asarray(covered.lengths)
    read = np.arange(6) < lengths.reshape(-1, 1)
    seen = np.where(read[..., None], weights, 0.0).sum(axis=1)
    seen += np.repeat(np.asarray(source) == 0, beam, 0)
    lost = 0.5 * np.log(np.minimum(seen, 1.0)).sum(axis=1).reshape(3, beam)
    mean = np.asarray(covered.log_probabilities) / ((5 + lengths) / 6)
    ended = np.asarray(covered.finished)
    np.testing.assert_allclose(covered.scores[ended], (mean + lost)[ended], atol=1e-5)


@EACH
def test_counts(name):
    """Parameters of width 64 by the equations of the papers, all with names for their
    axes; operations by XLA's count for one target token, without additions and
    activations.
    """
    model, params = make(name, d_model=64)
    config = model.config
    assert count_parameters(config) == COUNTS[name]
    names = jax.tree.leaves(logical_axes(params), is_leaf=is_names)
    assert [len(x) for x in names] == [leaf.ndim for leaf in jax.tree.leaves(params)]
    words = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    compiled = forward.lower(model, params, words, words).compile()
    ours = forward_flops(config, Work(1, 1, 1, 1, 1))
    first = 2 * 64 * 64 * {"bahdanau": 1, "cho": 2}.get(name, 0)
    assert ours + first == pytest.approx(compiled.cost_analysis()["flops"], rel=0.05)


def is_names(x):
    return isinstance(x, tuple) and all(isinstance(each, str) for each in x)


def test_recurrent_matrices_begin_orthogonal():
    _, params = begin("dot")
    for cell in (params["encoder"]["stack_1"]["cell"], params["decoder"]["stack_0"]):
        for gate in "ifgo":
            kernel = np.asarray(cell[f"h{gate}"]["kernel"])
            np.testing.assert_allclose(kernel @ kernel.T, np.eye(32), atol=1e-6)


@pytest.mark.parametrize("name", ["bahdanau", "general"])
def test_bfloat16_is_near_float32(name):
    model, params = make(name)
    half, kept = prepare(model.config, params, "bfloat16")
    source, target = make_sentences(1, (5, 2)), make_sentences(2, (3, 4))
    whole, _ = forward(model, params, source, target)
    with jax.numpy_dtype_promotion("standard"):  # of Flax's cells
        rounded, _ = forward(make_model(half), kept, source, target)
    assert rounded.dtype == jnp.float32
    np.testing.assert_allclose(rounded, whole, atol=0.1)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        (BAHDANAU | {"d_ff": 8, "num_heads": 2}, "has no model.d_ff=8, model.num_h"),
        (BAHDANAU | {"num_decoder_layers": 2}, "has one layer on each side"),
        (BAHDANAU | {"num_encoder_layers": 0}, "has one layer on each side"),
        (BAHDANAU | {"attention_score": "dot"}, "bahdanau has no model.attention_sco"),
        (BAHDANAU | {"reverse_source": True}, "has no model.reverse_source=True"),
        (LUONG | {"num_decoder_layers": 1}, "must be equal, not 2 and 1"),
        (LUONG | {"network": "cho"}, "has one layer on each side"),
        (LUONG | {"positions": "learned"}, "no model.positions=learned: leave it"),
        (LUONG | {"scan_layers": True}, "has no model.scan_layers=True"),
        ({"attention_score": "dot"}, "transformer has no model.attention_score=dot"),
        ({"network": "elman"}, "model.network must be one of"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, match):
    with pytest.raises(InputError, match=match):
        TransformerConfig(**{"vocabulary_size": 13} | settings)


def test_packed_rows_and_8_bits_are_refused():
    model, params = make("bahdanau")
    assert isinstance(model, RecurrentNetwork)
    tokens = jnp.ones((1, 2), jnp.int32)
    segments = {"source_segments": tokens, "target_segments": tokens}
    with pytest.raises(InputError, match="one sentence a row"):
        model.apply({"params": params}, tokens, tokens, **segments)
    with pytest.raises(InputError, match="int8 is not for"):
        prepare(model.config, params, "int8")
