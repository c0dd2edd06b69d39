"""One device, eight, and every mesh of them: the same loss, the same gradient, the
same parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from training.little import PAD, assert_trees_close, without_key_biases

from jaxformer.errors import InputError
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.engines import make_engine
from jaxformer.training.state import TrainState, create_state

DEVICES = 8

assert jax.local_device_count() == DEVICES, (
    "needs XLA_FLAGS=--xla_force_host_platform_device_count=8"
)

ENGINES = {
    "jit": {"engine": "jit"},
    "pmap": {"engine": "pmap"},
    "mesh 8 1 1": {"engine": "mesh"},
    "mesh 4 2 1": {"engine": "mesh", "mesh_fsdp": 2},
    "mesh 2 2 2": {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2},
    "mesh 2 2 2, moments over data": {
        "engine": "mesh",
        "mesh_fsdp": 2,
        "mesh_tensor": 2,
        "shard_moments": True,
    },
}

# Two rows a device: unequal numbers of tokens everywhere, and the fourth and the last
# device hold padding alone.
UNEQUAL = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 0, 0]


def test_a_mean_of_means_is_not_the_mean(make_model, make_training, make_batch):
    """The engine's mean is that of all tokens and not the mean of the devices' means,
    with eight devices that have a sentence each, of very different lengths.
    """
    model = make_model()
    batch = make_batch(9, [9, 0, 1, 0, 1, 0, 2, 0, 9, 0, 1, 0, 1, 0, 1, 0])
    engine, state = make_training(model, "pmap")
    alone, state_alone = make_training(model, "jit")

    def nll(runs, state, rows):
        kept = np.isin(np.arange(16), rows)[:, None]
        sums = runs.evaluate(
            state, {side: np.where(kept, tokens, PAD) for side, tokens in batch.items()}
        )
        return float(sums["nll"]) / float(sums["tokens"])

    mean = nll(engine, state, range(16))
    assert mean == pytest.approx(nll(alone, state_alone, range(16)), rel=1e-6)
    assert (
        abs(mean - np.mean([nll(alone, state_alone, [row]) for row in range(0, 16, 2)]))
        > 1e-3
    )


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "jit"])
def test_every_engine_equals_one_device(make_model, make_training, make_batch, name):
    """Losses of twenty updates are those of one device, and so are the first gradient
    and the last parameters, with unequal numbers of tokens and devices that hold
    padding alone.
    """
    model = make_model()
    one, one_state = make_training(model, "jit")
    other, other_state = make_training(model, **ENGINES[name])
    assert (one.devices, other.devices) == (1, DEVICES)
    start = jax.tree.map(np.array, one_state.params)
    generator = np.random.default_rng(0)
    for step in range(20):
        batch = make_batch(
            step, UNEQUAL if step == 0 else list(generator.permutation(UNEQUAL))
        )
        one_state, wanted = one.step(one_state, batch)
        other_state, metrics = other.step(
            other_state, other.put(batch) if step % 2 else batch
        )
        assert float(metrics["tokens"]) == float(wanted["tokens"]) == sum(UNEQUAL)
        assert_trees_close(metrics, wanted, rtol=1e-5)
        if step == 0:  # the first moment of the first update is a tenth of its gradient
            found, expected = other.collect(other_state), one.collect(one_state)
            assert_trees_close(
                found.optimizer[0].mu, expected.optimizer[0].mu, atol=1e-6, rtol=0
            )
    found, expected = other.collect(other_state), one.collect(one_state)
    assert_trees_close(
        without_key_biases(found.params),
        without_key_biases(expected.params),
        atol=1e-5,
        rtol=0,
    )
    assert (int(found.step), int(found.updates), int(found.optimizer[0].count)) == (
        20,
        20,
        20,
    )
    change = [
        np.abs(np.asarray(new) - old).max()
        for new, old in zip(*map(jax.tree.leaves, (found.params, start)), strict=True)
    ]
    assert min(change) > 1e-4


def test_parameters_are_sharded_as_the_rules_say(make_model, make_training):
    """On a mesh each device holds its part of each parameter from the beginning, and of
    its moments the same; with ``shard_moments`` a part of that. What an axis does not
    divide is whole everywhere.
    """
    model = make_model()
    state = make_training(model, **ENGINES["mesh 2 2 2"])[1]
    kernel = state.params["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
    assert kernel.sharding.spec == PartitionSpec("fsdp", "tensor")
    assert kernel.addressable_shards[0].data.size == kernel.size // 4
    assert (
        state.optimizer[0]
        .mu["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
        .sharding
        == kernel.sharding
    )
    table = state.params["embedding"]["table"]
    assert table.shape[0] % 2 == 1
    assert table.sharding.spec == PartitionSpec(None, "fsdp")
    zero = make_training(model, **ENGINES["mesh 2 2 2, moments over data"])[1]
    assert (
        zero.params["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"].sharding
        == kernel.sharding
    )
    moment = zero.optimizer[0].mu["encoder"]["layer_0"]["feed_forward"]["inner"][
        "kernel"
    ]
    assert moment.addressable_shards[0].data.size == kernel.size // 8


@pytest.mark.slow
def test_scanned_layers_need_no_more_memory_on_a_mesh(make_model):
    """Activations keep the sharding of the rows through scanned layers, as they do
    through looped ones: else the compiler would gather them, and the logits' gradient,
    from all devices.
    """
    sizes = {
        "vocabulary_size": 4096,
        "d_model": 64,
        "d_ff": 128,
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
    }
    batch = dict.fromkeys(("source", "target"), (32, 32))
    needed = []
    for scan in (False, True):
        model = make_model(**sizes, dropout_rate=0.1, max_length=64, scan_layers=scan)
        engine = make_engine(model, TrainingConfig(engine="mesh", mesh_fsdp=4))
        compiled = engine.lower(batch).compile()
        needed.append(compiled.memory_analysis().temp_size_in_bytes)
    looped, scanned = needed
    assert scanned < 1.1 * looped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mesh_fsdp": 3},
            (
                "training.mesh_fsdp=3 times training.mesh_tensor=1 must divide the 8"
                " devices: their product is to be 1 or 2 or 4 or 8"
            ),
        ),
        (
            {"mesh_tensor": 4},
            (
                "training.mesh_tensor=4 must divide model.num_heads=2: of 8 devices"
                " take 1 or 2, or change the model"
            ),
        ),
        (
            {"mesh_fsdp": 8},
            (
                "training.mesh_fsdp=8 must divide model.d_model=12: of 8 devices take 1"
                " or 2 or 4, or change the model"
            ),
        ),
    ],
)
def test_a_mesh_that_does_not_fit(make_model, changes, message):
    """A mesh over which a model would lie whole on every device is refused."""
    model = make_model(d_model=12, d_ff=16)
    with pytest.raises(InputError) as caught:
        make_engine(model, TrainingConfig(engine="mesh", **changes))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["jit", "pmap", "mesh 2 2 2"])
def test_what_no_state_can_be_made_of(make_model, name):
    """Patterns of frozen parameters that match nothing are refused when the engine is
    made, before anything is written.
    """
    with pytest.raises(InputError, match="no parameter matches 'encodr/"):
        make_engine(make_model(), TrainingConfig(frozen="encodr/*", **ENGINES[name]))


@pytest.mark.parametrize("name", ENGINES)
def test_every_run_begins_with_the_same_parameters(make_model, make_training, name):
    """The first state depends on the seed alone, not on the engine."""
    model = make_model()
    engine = make_training(model, **ENGINES[name])[0]
    expected = create_state(model, TrainingConfig())
    found = engine.collect(engine.create())
    # compiled or not
    assert_trees_close(found.params, expected.params, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(found.key, expected.key)


def test_every_device_keeps_the_same_state(make_model, make_training, make_batch):
    """After updates with different rows and dropout on each device all copies are
    equal, bit for bit.
    """
    engine, state = make_training(make_model(dropout_rate=0.3), "pmap")
    for step in range(2):
        state, _ = engine.step(state, make_batch(step, UNEQUAL))

    def same(leaf):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        assert len(copies) == DEVICES
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])

    jax.tree.map(same, state)


def test_only_padding_on_every_device(make_model, make_training, make_batch):
    """A global batch without a token gives loss 0 and changes nothing."""
    engine, state = make_training(make_model(), "pmap")
    before = jax.tree.map(np.array, engine.collect(state).params)
    state, metrics = engine.step(state, make_batch(0, []))
    assert {name for name, value in metrics.items() if float(value)} == {
        "learning_rate",
        "slots",
    }
    jax.tree.map(np.testing.assert_array_equal, engine.collect(state).params, before)


def test_dropout_differs_between_devices(make_model, make_training, make_batch):
    """The same sentence has another loss on each device, since each draws its own
    masks, and the loss of all together is their sum; without dropout it is the same
    everywhere.
    """
    sentence = make_batch(0, [9])

    def on(devices):
        batch = {side: np.full_like(rows, PAD) for side, rows in sentence.items()}
        for side, rows in sentence.items():
            batch[side][[2 * device for device in devices]] = rows[0]
        return batch

    def losses(rate):
        engine, state = make_training(make_model(dropout_rate=rate), "pmap")
        state = engine.collect(state)
        alone = [
            float(engine.step(engine.place(state), on([d]))[1]["loss"])
            for d in range(DEVICES)
        ]
        together = float(
            engine.step(engine.place(state), on(list(range(DEVICES))))[1]["loss"]
        )
        return alone, together

    alone, together = losses(0.3)
    assert len(set(alone)) == DEVICES
    assert together == pytest.approx(sum(alone), rel=1e-5)
    alone, _ = losses(0.0)
    np.testing.assert_allclose(alone, alone[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["jit", "pmap", "mesh 2 2 2"])
def test_one_compilation_a_shape(make_model, make_training, make_batch, name):
    """A step is compiled once for each shape of a batch, whatever its values, and
    never again.
    """
    engine, state = make_training(make_model(), **ENGINES[name])
    state, _ = engine.step(state, make_batch(0, UNEQUAL))
    before = engine.compilations()
    assert before >= 1
    for seed in range(1, 5):
        state, _ = engine.step(
            state,
            make_batch(seed, list(np.random.default_rng(seed).permutation(UNEQUAL))),
        )
    # A state that comes back from a checkpoint costs no compilation either.
    state = engine.place(engine.collect(state))
    state, _ = engine.step(state, make_batch(5, UNEQUAL))
    assert engine.compilations() == before
    for seed in range(2):  # a width that no other test has: they share engines
        state, _ = engine.step(
            state, make_batch(seed, [7, 1, 3], rows=DEVICES, width=13)
        )
    assert engine.compilations() == before + 1


@pytest.mark.parametrize("name", ["jit", "pmap"])
def test_a_batch_that_is_put_ahead_is_the_same_batch(
    make_model, make_training, make_batch, name
):
    """Copied to the devices before its step or with it: the same update, and one
    compilation of the step.
    """
    engine, state = make_training(make_model(), name)
    batch = make_batch(3, UNEQUAL, rows=11)
    ahead, metrics = engine.step(engine.place(engine.collect(state)), engine.put(batch))
    traces = engine.compilations()
    again, _ = engine.step(engine.place(engine.collect(ahead)), engine.put(batch))
    engine.step(again, engine.put(make_batch(4, UNEQUAL, rows=11)))
    assert engine.compilations() == traces
    plain, same_metrics = engine.step(state, batch)
    if name == "jit":  # devices that add up may do so in another order each time
        jax.tree.map(
            np.testing.assert_array_equal, engine.collect(ahead), engine.collect(plain)
        )
    assert_trees_close(metrics, same_metrics, rtol=1e-5)
    held = engine.put(batch)["source"]
    rows = np.asarray(held).reshape(-1, held.shape[-1])
    np.testing.assert_array_equal(rows[: len(batch["source"])], batch["source"])
    assert len(held.devices()) == engine.devices
    assert held.sharding.is_fully_addressable


@pytest.mark.parametrize("name", ["jit", "pmap", "mesh 2 2 2"])
def test_place_and_collect_are_inverse(make_model, make_training, name):
    """What is placed comes back bit for bit, in the shapes, types and shardings that
    checkpoints are restored in.
    """
    engine, state = make_training(make_model(), **ENGINES[name])
    plain = engine.collect(state)
    copy = jax.tree.map(np.array, plain)
    again = engine.collect(engine.place(plain))
    jax.tree.map(np.testing.assert_array_equal, again, copy)
    assert isinstance(again, TrainState)
    for leaf, like in zip(
        jax.tree.leaves(again), jax.tree.leaves(engine.abstract()), strict=True
    ):
        assert (leaf.shape, leaf.dtype, leaf.sharding) == (
            like.shape,
            like.dtype,
            like.sharding,
        )
    weights = jax.tree.leaves(engine.weights(state))
    assert all(len(leaf.devices()) == 1 for leaf in weights)
    for found, leaf in zip(weights, jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_array_equal(found, leaf)


def test_placing_leaves_the_state_usable(make_model, make_training, make_batch):
    """A step uses up what was placed, never the state that was given to be placed."""
    engine, state = make_training(make_model(), "jit")
    given = jax.tree.map(jnp.array, state)
    engine.step(engine.place(given), make_batch(0, UNEQUAL))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(given))


def test_rows_that_devices_cannot_share(make_model, make_training, make_batch):
    """Rows of padding fill a batch up to a multiple of the devices, and change nothing:
    so the batches themselves do not depend on the number of devices.
    """
    model = make_model()
    batch = make_batch(0, [3] * 12, rows=12)
    one, one_state = make_training(model, "jit")
    eight, eight_state = make_training(model, "pmap")
    wanted = {
        name: float(value) for name, value in one.evaluate(one_state, batch).items()
    }
    got = {
        name: float(value) for name, value in eight.evaluate(eight_state, batch).items()
    }
    assert got == pytest.approx(wanted, rel=1e-6)
    _, wanted = one.step(one_state, batch)
    _, got = eight.step(eight_state, batch)
    assert float(got["tokens"]) == float(wanted["tokens"])
    assert float(got["loss"]) == pytest.approx(float(wanted["loss"]), rel=1e-6)


def test_auto_takes_all_devices(make_model, make_training):
    """With several devices ``auto`` is pmap on all of them."""
    assert make_training(make_model(), "auto")[0].devices == DEVICES
