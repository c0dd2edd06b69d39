"""One device, eight, and meshes of them: the same loss, the same gradient, the same
parameters.
"""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from models.little import LATER
from training.little import (
    PAD,
    assert_trees_close,
    assert_trees_equal,
    compiling,
    without_key_biases,
)

import runs
from jaxformer.data.packing import RowShape, make_packed_batch, pack
from jaxformer.data.store import Encoded, Sentences
from jaxformer.errors import InputError
from jaxformer.models.stacking import unstack_layers
from jaxformer.runs.training import TrainingConfig
from jaxformer.training import mesh as meshes
from jaxformer.training.engines import make_engine
from jaxformer.training.state import TrainState, create_state

DEVICES = 8
STEPS = {"jit(train_step)", "jit(_fun)"}

assert jax.local_device_count() == DEVICES, (
    "needs XLA_FLAGS=--xla_force_host_platform_device_count=8"
)

CUT = {"engine": "mesh", "mesh_fsdp": 2, "mesh_tensor": 2}
ENGINES = {
    "jit": {"engine": "jit"},
    "pmap": {"engine": "pmap"},
    "mesh": {**CUT, "shard_moments": True},
}
MANY = ("pmap", "mesh")

# Two rows a device: unequal numbers of tokens everywhere, and the fourth and the last
# device hold only padding.
UNEQUAL = [9, 1, 4, 4, 2, 0, 0, 0, 7, 7, 1, 0, 3, 8, 0, 0]


def assert_same_training(engine, state, one, one_state):
    """Two states have the same parameters and counts."""
    found, expected = engine.collect(state), one.collect(one_state)
    assert_trees_close(
        *(without_key_biases(each.params) for each in (found, expected)),
        atol=1e-5,
        rtol=0,
    )
    counts = (
        [int(n) for n in (each.step, each.updates, each.optimizer[0].count)]
        for each in (found, expected)
    )
    assert next(counts) == next(counts)


def assert_same_first_gradient(engine, state, one, one_state):
    """The first moment of the first update is a tenth of its gradient."""
    moments = (
        e.collect(s).optimizer[0].mu for e, s in ((engine, state), (one, one_state))
    )
    assert_trees_close(*moments, atol=1e-6, rtol=0)


@pytest.mark.parametrize("blocks", runs.slow_but(["alibi, one head of keys"], LATER))
def test_later_blocks_on_a_mesh(make_model, make_training, make_batch, blocks):
    """The first gradient is that of one device; heads of keys that the mesh does not
    divide are whole on every device.
    """
    even = {"num_heads": 4, "d_k": 4, "d_v": 4}
    model = make_model(**LATER[blocks] | even)
    one, one_state = make_training(model, "jit")
    other, other_state = make_training(model, **ENGINES["mesh"])
    batch = make_batch(0, UNEQUAL)
    one_state, wanted = one.step(one_state, batch)
    other_state, metrics = other.step(other_state, batch)
    assert_trees_close(metrics, wanted, rtol=1e-5)
    assert_same_first_gradient(other, other_state, one, one_state)


@pytest.mark.parametrize("name", MANY)
def test_every_engine_equals_one_device(make_model, make_training, make_batch, name):
    """Losses of updates are those of one device, and so are the first gradient and the
    last parameters, with unequal numbers of tokens, devices that hold only padding and
    rows that the devices cannot share. A batch may be put ahead; a state may be
    collected and placed again; neither costs a compilation.
    """
    model = make_model()
    one, one_state = make_training(model, "jit")
    other, other_state = make_training(model, **ENGINES[name])
    assert (one.devices, other.devices) == (1, DEVICES)
    start = jax.tree.map(np.array, one_state.params)
    generator = np.random.default_rng(0)
    with compiling() as names:
        for step in range(6):
            lengths = UNEQUAL if step == 0 else list(generator.permutation(UNEQUAL))
            batch = make_batch(step, lengths)
            if step == 4:
                batch = make_batch(step, [3] * 13)
            given = {
                side: rows[: 13 if step == 4 else 16] for side, rows in batch.items()
            }
            one_state, wanted = one.step(one_state, batch)
            other_state, metrics = other.step(
                other_state, other.put(given) if step % 2 else given
            )
            assert float(metrics["tokens"]) == float(wanted["tokens"]) > 0
            assert_trees_close(metrics, wanted, rtol=1e-5)
            if step == 0:
                assert_same_first_gradient(other, other_state, one, one_state)
                names.clear()
                other_state = other.place(other.collect(other_state))
    assert not STEPS & {*names}
    assert_same_training(other, other_state, one, one_state)
    changed = jax.tree.map(
        lambda new, old: np.abs(np.asarray(new) - old).max(),
        other.collect(other_state).params,
        start,
    )
    assert min(jax.tree.leaves(changed)) > 1e-4
    sums = other.evaluate(other_state, given)  # and not means of the devices' means
    assert_trees_close(sums, one.evaluate(one_state, batch), rtol=1e-4)


@pytest.mark.slow
def test_muon_on_a_mesh_and_in_scanned_layers(make_model, make_training, make_batch):
    """Muon makes the kernels of each layer orthogonal, whole, whether a mesh shards
    them or layers are stacked.
    """
    found = []
    for scan, engine in ((False, "jit"), (True, "jit"), (False, "mesh")):
        model = make_model(scan_layers=scan, num_encoder_layers=2)
        recipe = {"optimizer": "muon", "warmup_steps": 2}
        one, state = make_training(model, **ENGINES[engine], **recipe)
        state, _ = one.step(state, make_batch(0, UNEQUAL))
        params = jax.tree.map(np.asarray, one.collect(state).params)
        found.append(without_key_biases(unstack_layers(params)))
    for other in found[1:]:
        assert_trees_close(other, found[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", MANY)
def test_a_state_and_a_batch_on_the_devices(
    make_model, make_training, make_batch, name
):
    """Every run begins with the parameters of the seed. What is placed comes back bit
    for bit, in the shapes, types and shardings that checkpoints are restored in; what
    was given stays usable. Weights to translate with are whole, on one device.
    """
    model = make_model()
    engine, _ = make_training(model, **ENGINES[name])
    expected, plain = (
        create_state(model, TrainingConfig()),
        engine.collect(engine.create()),
    )
    # compiled or not
    assert_trees_close(plain.params, expected.params, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(plain.key, expected.key)
    copy = jax.tree.map(np.array, plain)
    placed = engine.place(plain)
    weights = jax.tree.leaves(engine.weights(placed))
    assert all(len(leaf.devices()) == 1 for leaf in weights)
    for found, leaf in zip(weights, jax.tree.leaves(copy.params), strict=True):
        np.testing.assert_array_equal(found, leaf)
    again = engine.collect(placed)
    assert isinstance(again, TrainState)
    assert_trees_equal(again, copy)
    like = engine.abstract()
    for a, b in zip(*map(jax.tree.leaves, (again, like)), strict=True):
        assert (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding)
    engine.step(placed, make_batch(0, UNEQUAL))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(plain))
    batch = make_batch(3, UNEQUAL, rows=11)["source"]
    held = engine.put({"source": batch})["source"]
    rows = np.asarray(held).reshape(-1, held.shape[-1])
    np.testing.assert_array_equal(rows[:11], batch)
    assert len(held.devices()) == DEVICES


def test_parameters_are_sharded_as_the_rules_say(make_model, make_training):
    """On a mesh each device holds its part of each parameter from the beginning; with
    ``shard_moments`` a part of that of its moments, and without it the same part. What
    an axis does not divide is whole everywhere.
    """
    state = make_training(make_model(), **ENGINES["mesh"])[1]
    kernel, moment = (
        tree["encoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
        for tree in (state.params, state.optimizer[0].mu)
    )
    assert kernel.sharding.spec == PartitionSpec("fsdp", "tensor")
    assert kernel.addressable_shards[0].data.size == kernel.size // 4
    assert moment.addressable_shards[0].data.size == kernel.size // 8
    table = state.params["embedding"]["table"]
    assert table.shape[0] % 2 == 1
    assert table.sharding.spec == PartitionSpec(None, "fsdp")
    plain = make_engine(make_model(), TrainingConfig(**CUT)).shardings
    assert plain.optimizer[0].mu == plain.params


@pytest.mark.slow
def test_scanned_layers_need_no_more_memory_on_a_mesh(make_model):
    """Activations keep the sharding of the rows through scanned layers, as they do
    through looped ones: else the compiler would gather them, and the logits' gradient,
    from all devices.
    """
    sizes = {"vocabulary_size": 2048, "d_model": 32, "d_ff": 64, "max_length": 64}
    sizes |= {"num_encoder_layers": 2, "dropout_rate": 0.1}
    batch = dict.fromkeys(("source", "target"), (32, 32))
    needed = []
    for scan in (False, True):
        model = make_model(**sizes, scan_layers=scan)
        engine = make_engine(model, TrainingConfig(engine="mesh", mesh_fsdp=4))
        compiled = engine.lower(batch).compile()
        needed.append(compiled.memory_analysis().temp_size_in_bytes)
    looped, scanned = needed
    assert scanned < 1.1 * looped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh_fsdp": 3}, "8 devices: their product is to be 1 or 2 or 4 or 8"),
        ({"mesh_tensor": 4}, "divide model.num_heads=2: of 8 devices take 1 or 2, or"),
        (
            {"mesh_fsdp": 8},
            "divide model.d_model=12: of 8 devices take 1 or 2 or 4, or",
        ),
        ({"frozen": "encodr/*"}, "training.frozen: no parameter matches 'encodr/*"),
    ],
)
def test_what_does_not_fit_the_model(make_model, changes, message):
    """It is refused when the engine is made, before anything is written."""
    with pytest.raises(InputError) as caught:
        make_engine(make_model(d_model=12), TrainingConfig(engine="mesh", **changes))
    assert message in str(caught.value)


def devices_of(platform):
    """Return a stand-in for a mesh of one device."""
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))


def test_deterministic_steps_ask_the_compiler_of_a_gpu():
    """With ``training.deterministic`` the steps of a GPU get the option of XLA, and
    those of other devices none; by default nothing does.
    """
    on, off = TrainingConfig(deterministic=True), TrainingConfig()
    option = {"xla_gpu_deterministic_ops": True}
    assert meshes.compiler_options(on, devices_of("gpu")) == option
    assert meshes.compiler_options(off, devices_of("gpu")) == {}
    for platform in ("cpu", "tpu"):
        assert meshes.compiler_options(on, devices_of(platform)) == {}


def test_dropout_differs_between_devices(make_model, make_training, make_batch):
    """The same sentence has another loss on each device, since each draws its own
    masks, and the loss of all together is their sum; without dropout it is the same
    everywhere. After updates all copies of the state are equal, bit for bit. A batch
    without a token gives loss 0.
    """
    sentence = make_batch(0, [9])

    def losses(rate):
        engine, state = make_training(make_model(dropout_rate=rate), "pmap")
        state = engine.collect(state)

        def loss(devices):
            rows = [2 * device for device in devices]
            batch = {side: np.full_like(sentence[side], PAD) for side in sentence}
            for side, tokens in sentence.items():
                batch[side][rows] = tokens[0]
            return engine.step(engine.place(state), batch)

        last, metrics = loss(range(DEVICES))
        for leaf in jax.tree.leaves(last):
            first, *others = (
                np.asarray(shard.data) for shard in leaf.addressable_shards
            )
            assert len(others) == DEVICES - 1
            for copy in others:
                np.testing.assert_array_equal(copy, first)
        nothing = {name for name, value in loss([])[1].items() if float(value)}
        assert nothing == {"learning_rate", "slots"}
        alone = [float(loss([device])[1]["loss"]) for device in range(DEVICES)]
        return alone, float(metrics["loss"])

    alone, together = losses(0.3)
    assert len(set(alone)) == DEVICES
    assert together == pytest.approx(sum(alone), rel=1e-5)
    alone, _ = losses(0.0)
    np.testing.assert_allclose(alone, alone[0], rtol=1e-6)


# Packed rows: eleven, which eight devices cannot share.

SHAPE = RowShape(14, 13, 11)
SIZES = [9, 1, 4, 4, 2, 7, 7, 1, 3, 8, 5, 6, 2, 2]


def packed(batch):
    """Pack the pairs of a batch."""
    sides = (
        [row[row != PAD].tolist() for row in batch[side] if (row != PAD).any()]
        for side in ("source", "target")
    )
    pairs = Encoded(*(Sentences.from_lists(side, PAD) for side in sides))
    lengths = pairs.source.lengths, pairs.target.lengths
    rows = pack(*lengths, np.arange(len(pairs)), SHAPE)
    assert len(rows) < len(pairs)
    return make_packed_batch(pairs.take(rows.pairs), rows.sizes, SHAPE)


def test_packed_training_is_unpacked_training(make_model, make_training, make_batch):
    """Metrics, gradients and parameters of packed updates are those of the same pairs
    unpacked on one device, also where devices do not share the rows equally.
    Whatever the pairs, packed batches have one compiled step, and so has evaluation.
    """
    model = make_model()
    one, one_state = make_training(model, "jit")
    other, other_state = make_training(model, "pmap")
    with compiling() as names:
        for step in range(3):
            lengths = SIZES if step < 2 else SIZES[::-1][:11]
            batch = make_batch(step, lengths)
            evaluated = other.evaluate(other_state, packed(batch))
            wanted = one.evaluate(one_state, batch)
            assert_trees_close(evaluated, wanted, rtol=1e-5, atol=1e-5)
            one_state, wanted = one.step(one_state, batch)
            other_state, metrics = other.step(other_state, packed(batch))
            assert float(metrics["tokens"]) == sum(lengths)
            del metrics["slots"], wanted["slots"]
            assert_trees_close(metrics, wanted, rtol=1e-5)
            if step == 0:
                assert_same_first_gradient(other, other_state, one, one_state)
    assert_same_training(other, other_state, one, one_state)
    assert names.count("jit(_fun)") == 2


def test_rows_that_fill_up_devices_have_no_segment(make_model):
    """They hold padding on both sides, and segment 0 whatever the id of padding. With
    several devices ``auto`` is pmap on all of them.
    """
    engine = make_engine(make_model(pad_id=7), TrainingConfig())
    assert engine.split == DEVICES
    names = ("source", "target", "source_segments", "target_segments")
    placed = engine.put({name: jnp.ones((11, 5), jnp.int32) for name in names})
    for name, rows in placed.items():
        rows = np.asarray(rows).reshape(16, 5)
        assert (rows[:11] == 1).all()
        assert (rows[11:] == (0 if name.endswith("segments") else 7)).all()
