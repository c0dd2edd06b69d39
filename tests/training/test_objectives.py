"""What is minimised: which words are masked, what counts, and losses by hand."""

import dataclasses
import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import TransformerConfig
from jaxformer.models.make import abstract_parameters, make_model
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import make_eval_step, make_train_step
from jaxformer.training.objectives import draw_masks, make_objective
from jaxformer.training.state import create_state

SIZE = 40
LITTLE = {"vocabulary_size": SIZE, "d_model": 8, "d_ff": 12, "num_heads": 2}
LITTLE |= {"max_length": 64, "eos_id": 1, "mask_id": 3}
ENCODER = LITTLE | {"num_encoder_layers": 1, "num_decoder_layers": 0}
LABELS = {"source_vocabulary_size": SIZE, "vocabulary_size": 5}
MODELS = {
    "causal": LITTLE | {"num_encoder_layers": 0, "num_decoder_layers": 1},
    "masked": ENCODER | {"head": "words"},
    "masked_and_next": ENCODER | {"head": "words_and_next", "segment_types": 2},
    "classification": ENCODER | {"head": "classification"} | LABELS,
    "regression": ENCODER | {"head": "classification"} | LABELS,
    "tagging": ENCODER | {"head": "tagging"} | LABELS,
    "span": ENCODER | {"head": "span"} | LABELS,
}
MODELS["regression"] = MODELS["regression"] | {"vocabulary_size": 1}


def make_text(seed, lengths, width):
    rng = np.random.default_rng(seed)
    text = rng.integers(4, SIZE, (len(lengths), width))
    text[np.arange(width) >= np.array(lengths)[:, None]] = 0
    return text.astype(np.int32)


def make_batch(objective, rows=6):
    rng = np.random.default_rng(7)
    text = make_text(1, [9, 3, 5, 9, 1, 7][:rows], 9)
    if objective in ("causal", "masked"):
        return {"target": text}
    target = {
        "classification": rng.integers(0, 5, (rows, 1)),
        "masked_and_next": rng.integers(0, 2, (rows, 1)),
        "regression": rng.normal(size=(rows, 1)).astype(np.float32).view(np.int32),
        "tagging": rng.integers(0, 6, (rows, 9)),
        "span": np.zeros((rows, 2), int),
    }[objective]
    return {"source": text, "target": target.astype(np.int32)}


@functools.cache
def make(objective, **training):
    config = TrainingConfig(objective=objective, label_smoothing=0.0, **training)
    model = make_model(TransformerConfig(**MODELS[objective]))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32),
        abstract_parameters(model.config),
    )
    return model, config, params


@functools.cache
def evaluation(objective):
    model, config, _ = make(objective)
    return jax.jit(make_eval_step(model, config))


def masks_of(tokens, seed=0, rate=0.15):
    model = TransformerConfig(**MODELS["masked"])
    drawn = draw_masks(tokens, jax.random.key(seed), model, rate)
    return [np.asarray(each) for each in drawn]


def test_the_share_of_each_text_that_is_masked_is_exact():
    """``max(1, round(0.15 n))`` of n words, none twice, never a special one, and none
    where there is no word.
    """
    lengths = [1, 3, 4, 10, 17, 50, 64, 0]
    tokens = make_text(0, lengths, 64)
    tokens[:7, 0] = 2  # a beginning, which is special
    masked, places, counts = masks_of(tokens)
    for row, length in enumerate(lengths):
        words = max(0, length - 1)
        chosen = places[row][counts[row] == 1]
        assert (
            len(set(chosen)) == len(chosen) == min(words, max(1, round(0.15 * words)))
        )
        assert all(0 < place < length for place in chosen)
        others = np.setdiff1d(np.arange(64), chosen)
        assert (masked[row, others] == tokens[row, others]).all()


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.42])
def test_the_share_is_that_of_the_decimal_number(rate):
    """Python's ``round`` of the exact product: half goes to the even number."""
    lengths = np.arange(1, 200)
    _, _, counts = masks_of(make_text(0, lengths, 199), rate=rate)
    exact = [max(1, round(Fraction(str(rate)) * n)) for n in lengths.tolist()]
    assert counts.sum(axis=1).tolist() == exact


def test_four_fifths_become_the_mask_and_a_tenth_another_word():
    """Within one per cent over 60,000 words; no drawn word is special."""
    tokens = make_text(0, [200] * 2_000, 200)
    masked, places, counts = masks_of(tokens)
    chosen = counts == 1
    words, found = (
        np.take_along_axis(text, places, 1)[chosen] for text in (tokens, masked)
    )
    assert abs((found == 3).mean() - 0.8) < 0.01
    # One of ten draws among 36 words is the same word by chance in 1 of 36.
    assert abs((found == words).mean() - 0.1 * (1 + 1 / 36)) < 0.01
    drawn = found[(found != 3) & (found != words)]
    assert set(drawn) == set(range(4, SIZE))


def test_whole_words_are_masked():
    """All pieces of a word or none, words that are random, and nearly the rate; of a
    word that is longer than the row's number only the first pieces.
    """
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 60, 300)
    tokens = make_text(0, lengths, 64)
    tokens[:, 0] = 2
    continues = (rng.random(tokens.shape) < 0.5).astype(np.int32)
    model = TransformerConfig(**MODELS["masked"])
    drawn = draw_masks(tokens, jax.random.key(0), model, 0.15, continues)
    masked, places, counts = map(np.asarray, drawn)
    found = total = 0
    for row, text in enumerate(tokens):
        real = np.flatnonzero(text > 3)
        starts = [t for t in real if t == 1 or not continues[row, t]]
        ends = [*starts[1:], real[-1] + 1] if len(real) else []
        words = [{*range(*pair)} for pair in zip(starts, ends, strict=True)]
        chosen = {*places[row][counts[row] == 1].tolist()}
        most = min(len(real), max(1, round(0.15 * len(real))))
        assert len(chosen) <= most
        assert bool(chosen) == bool(len(real))
        touched = [word for word in words if word & chosen]
        if {*chosen} != set().union(*touched):
            (word,) = touched
            assert chosen == {*sorted(word)[:most]}
        others = [t for t in range(64) if t not in chosen]
        assert (masked[row, others] == text[others]).all()
        found, total = found + len(chosen), total + most
    assert 0.75 < found / total <= 1
    each = [np.asarray(x) for x in masks_of(tokens)]
    alone = draw_masks(tokens, jax.random.key(0), model, 0.15, 0 * continues)
    assert all(map(np.array_equal, each, alone))


def test_steps_have_their_own_masks():
    """Of a state, whose seed and step decide them: so also after a resumption."""
    _, config, _ = make("masked", warmup_steps=1)
    model = make_model(TransformerConfig(**MODELS["masked"] | {"dropout_rate": 0.0}))
    step, batch = jax.jit(make_train_step(model, config)), make_batch("masked")
    first, other = create_state(model, config), create_state(model, config)
    losses = []
    for state in (first, other, first.replace(step=first.step + 1)):
        losses.append(float(step(state, batch)[1]["nll"]))
    assert losses[0] == losses[1] != losses[2]


def test_a_batch_without_a_word_has_no_loss():
    """Special pieces alone are never masked, and divide nothing by 0."""
    for objective in ("masked", "masked_and_next"):
        model, config, params = make(objective)
        side = "target" if objective == "masked" else "source"
        batch = make_batch(objective) | {side: np.full((6, 3), 2, np.int32)}
        state = create_state(model, config).replace(params=params)
        state, metrics = jax.jit(make_train_step(model, config))(state, batch)
        assert (metrics["loss"], metrics["tokens"]) == (0.0, 0.0)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def logits_of(objective, model, params, batch):
    found = model.apply(
        {"params": params},
        {name: jnp.asarray(rows) for name, rows in batch.items()},
        train=False,
        method=make_objective(model.config, make(objective)[1]).output,
    )
    return np.asarray(found.logits(), np.float64)


@pytest.mark.parametrize("objective", [name for name in MODELS if "mask" not in name])
def test_the_loss_is_that_of_the_targets_that_count(objective):
    """Summed by hand in float64. Padding counts nothing, nor pieces without a tag; of
    numbers the square of the error counts.
    """
    model, _, params = make(objective)
    batch = make_batch(objective)
    logits = logits_of(objective, model, params, batch)
    found = evaluation(objective)(params, batch)
    if objective == "regression":
        errors = logits[:, 0] - batch["target"][:, 0].view(np.float32)
        np.testing.assert_allclose(found["loss"], (errors**2).sum(), rtol=1e-5)
        return
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    text, target = batch.get("source", batch["target"]), batch["target"]
    real = text != 0
    if objective == "tagging":
        real = real & (target < 5)
    if objective == "classification":
        target, real = target[:, 0], np.ones(6, bool)
    if objective == "span":
        real = np.ones((6, 2), bool)
    wanted = np.where(real, target, 0)
    each = -np.take_along_axis(logits, wanted[..., None], -1)[..., 0]
    np.testing.assert_allclose(found["nll"], each[real].sum(), rtol=1e-5)
    assert found["tokens"] == real.sum()
    assert found["correct"] == (logits.argmax(-1) == wanted)[real].sum()


def test_a_span_begins_and_ends_within_its_text():
    model, _, params = make("span")
    logits = logits_of("span", model, params, make_batch("span"))
    assert (logits[1, :, 3:] < -1e29).all()


@pytest.mark.parametrize("objective", MODELS)
def test_a_step_lowers_the_loss_and_rows_of_padding_change_nothing(objective):
    model, config, _ = make(objective, warmup_steps=1, initializer="normal")
    batch = make_batch(objective)
    step = jax.jit(make_train_step(model, config))
    state, losses = create_state(model, config), []
    for _ in range(25):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"] / metrics["tokens"]))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    if config.masks:
        return  # the masks depend on the shape
    evaluate = evaluation(objective)
    padded = {
        name: np.pad(rows, ((0, 2), (0, 0)), constant_values=0)
        for name, rows in batch.items()
    }
    for name, found in evaluate(state.params, batch).items():
        other = evaluate(state.params, padded)[name]
        np.testing.assert_allclose(found, other, rtol=1e-5)


@pytest.mark.slow
def test_two_terms_are_divided_by_their_own_counts():
    """The loss is the mean of the masked words plus that of the pairs, and so is the
    gradient, whatever the parts and devices: a row of padding counts nowhere.
    """
    model, config, params = make("masked_and_next")
    model = make_model(
        TransformerConfig(**MODELS["masked_and_next"] | {"dropout_rate": 0.0})
    )
    batch = {
        name: np.pad(rows, ((0, 2), (0, 0)))
        for name, rows in make_batch("masked_and_next").items()
    }
    objective = make_objective(model.config, config)

    @jax.jit
    @jax.value_and_grad
    def mean(params, key):
        drawn = {
            name: jnp.asarray(x) for name, x in objective.prepare(batch, key).items()
        }
        given = {"params": params}, drawn
        output = model.apply(*given, train=False, method=objective.output)
        words, real = objective.targets(drawn)
        terms = (
            (output.logits(), words, real),
            (output.second, *objective.second(drawn)),
        )
        total = 0.0
        for logits, targets, real in terms:
            shares = jax.nn.log_softmax(logits)
            own = jnp.take_along_axis(shares, targets[..., None], -1)[..., 0]
            total -= jnp.where(real, own, 0.0).sum() / real.sum()
        return total

    for parts in (1, 2, 4):
        training = dataclasses.replace(config, accumulation_steps=parts)
        state = create_state(model, training).replace(params=params)
        _, metrics = jax.jit(make_train_step(model, training))(state, batch)
        key = jax.random.fold_in(jax.random.wrap_key_data(state.key), state.step)
        key = jax.random.fold_in(key, 2**32 - 1)
        loss, gradient = mean(params, key)
        found = metrics["loss"] / metrics["tokens"]
        np.testing.assert_allclose(found, loss, rtol=1e-5)
        norm = np.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradient)))
        np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-4)
    sums = evaluation("masked_and_next")(params, batch)
    assert sums["texts"] == 6
    words = (sums["nll"] / sums["tokens"], sums["next_nll"] / 6)
    np.testing.assert_allclose(sums["loss"] / sums["tokens"], sum(words), rtol=1e-5)


@pytest.mark.skipif(jax.local_device_count() < 2, reason="needs two devices")
def test_validation_on_two_devices_is_that_of_one():
    """The same masks, and the mean of both terms over both devices: the first has 3
    masked words a text and the second 2.5.
    """
    model, config, params = make("masked_and_next", mask_rate=0.5)
    batch = {
        name: np.pad(rows, ((0, 2), (0, 0)))
        for name, rows in make_batch("masked_and_next").items()
    }
    batch["row"] = np.array([[5], [2], [90], [1], [0], [4], [0], [0]], np.int32)
    one = jax.jit(make_eval_step(model, config))(params, batch)
    step = make_eval_step(model, config, axis_name="devices")
    both = jax.pmap(step, "devices", in_axes=(None, 0), out_axes=None)
    halves = {name: rows.reshape(2, 4, -1) for name, rows in batch.items()}
    two = both(params, halves)
    assert one["tokens"] / one["texts"] == 17 / 6
    for name, found in two.items():
        np.testing.assert_allclose(found, one[name], rtol=1e-5)
    mean = two["nll"] / two["tokens"] + two["next_nll"] / two["texts"]
    np.testing.assert_allclose(two["loss"] / two["tokens"], mean, rtol=1e-5)


def test_normal_parameters_have_their_deviation():
    """0.02, and those that write into the residual stream less; biases are 0."""
    config = TransformerConfig(
        500, d_model=64, num_encoder_layers=0, num_decoder_layers=4
    )
    deviations = {}
    for name in ("normal", "normal_residual"):
        training = TrainingConfig(objective="causal", initializer=name)
        params = create_state(make_model(config), training).params
        layer = params["decoder"]["layer_1"]
        assert not layer["feed_forward"]["inner"]["bias"].any()
        deviations[name] = [
            float(np.std(leaf))
            for leaf in (
                params["embedding"]["table"],
                layer["self_attention"]["query"]["kernel"],
                layer["self_attention"]["output"]["kernel"],
                layer["feed_forward"]["outer"]["kernel"],
            )
        ]
    small = 0.02 / 8**0.5
    np.testing.assert_allclose(deviations["normal"], [0.02] * 4, rtol=0.05)
    np.testing.assert_allclose(
        deviations["normal_residual"], [0.02, 0.02, small, small], rtol=0.05
    )
