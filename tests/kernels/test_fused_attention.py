"""Attention by kernels in models and on meshes, which is chosen, and what each
refuses.
"""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.inputs import within_backend

from jaxformer import InputError
from jaxformer import functional as F
from jaxformer.kernels import attend, attention
from jaxformer.kernels.backends import LONG, Attending, fit
from jaxformer.models.config import TransformerConfig
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.transformer import Transformer


@pytest.fixture(params=["pallas", "cudnn"])
def backend(request):
    with within_backend(request.param):
        yield request.param


def test_a_model_with_a_kernel_predicts_the_same():
    """Encoder, causal decoder and cross-attention, packed and not. Who asks for
    attention weights gets those of the plain definition.
    """
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(23, **sizes, **layers, attention_backend="plain")
    plain = Transformer(config)
    source, target = jnp.array([[5, 6, 7, 8, 0]]), jnp.array([[9, 4, 8, 0]])
    packing = {
        "source_segments": jnp.array([[1, 1, 2, 2, 0]]),
        "target_segments": jnp.array([[1, 2, 2, 0]]),
    }
    params = jax.jit(plain.init)(jax.random.key(0), source, target)
    fused = plain.clone(
        config=dataclasses.replace(config, attention_backend="pallas"),
        device=SimpleNamespace(platform="tpu"),
    )
    for more in ({}, packing):
        expected = jax.jit(plain.apply)(params, source, target, **more)
        with within_backend("pallas"):
            found = jax.jit(fused.apply)(params, source, target, **more)
        real = np.asarray(target)[0] != 0
        assert np.abs(found - expected)[0, real].max() < 1e-5
        forward = functools.partial(fused.apply, method="forward")
        _, weights = jax.eval_shape(forward, params, source, target, **more)
        assert weights.encoder[0].shape == (1, 2, 5, 5)


def test_prompts_are_read_by_a_kernel(backend, monkeypatch):
    """Those that are padded on the left; the second layer keeps what it reads of the
    first.
    """
    sizes = {"d_model": 16, "d_ff": 24, "num_heads": 2}
    layers = {"num_encoder_layers": 0, "num_decoder_layers": 2}
    config = TransformerConfig(23, **sizes, **layers, attention_backend="plain")
    plain, prompts = (
        LanguageModel(config),
        jnp.array([[5, 6, 7, 8, 4], [9, 4, 0, 0, 0]]),
    )
    params = jax.jit(plain.init)(jax.random.key(0), prompts)
    fused = plain.clone(
        config=dataclasses.replace(config, attention_backend=backend),
        device=SimpleNamespace(platform="tpu"),
    )
    used, run_kernel = [], attention.run_kernel

    def run(*arguments):
        used.append(arguments[0])
        return run_kernel(*arguments)

    monkeypatch.setattr(attention, "run_kernel", run)

    def start(model):
        return jax.jit(functools.partial(model.apply, method="start"))(params, prompts)

    expected = start(plain)
    assert not used
    found = start(fused)
    assert used == [backend] * 2
    for own, other in zip(found.stores, expected.stores, strict=True):
        # A kernel may write anything where nothing is read.
        read = np.asarray(expected.read)[:, None, None]
        for x, y in ((own.keys, other.keys), (own.values.mT, other.values.mT)):
            x, y = (np.where(read, each, 0.0) for each in (x, y))
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(8,), (2, 2, 2)])
def test_each_device_computes_its_rows_and_heads(shape):
    """On a mesh the kernel is given parts of the arrays, and nothing is gathered."""
    names = ("data", "fsdp", "tensor")[: len(shape)]
    mesh = jax.make_mesh(
        shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape)
    )
    rng = np.random.default_rng(1)
    query, key, value = (
        jnp.asarray(rng.normal(size=(8, 4, 2, 8)), jnp.float32) for _ in range(3)
    )
    mask = F.SegmentMask(jnp.asarray(rng.integers(0, 2, (8, 4))), causal=True)
    spec = jax.sharding.PartitionSpec(
        tuple(name for name in names if name != "tensor"),
        None,
        "tensor" if "tensor" in names else None,
    )

    def run(how, *arrays):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return attend(*arrays, mask, backend=how)[0]

    sharding = jax.sharding.NamedSharding(mesh, spec)
    placed = [jax.device_put(x, sharding) for x in (query, key, value)]
    expected = run("plain", query, key, value)
    with within_backend("pallas"):
        found = jax.jit(functools.partial(run, "pallas"))(*placed)
    assert found.sharding.shard_shape(found.shape) == sharding.shard_shape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


USUAL = Attending("gpu", "8.0", jnp.dtype("bfloat16"), 64, 64, 256, dropout=False)


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "cudnn"),
        ({"capability": "12.1"}, "cudnn"),
        ({"capability": "7.5"}, "plain"),
        ({"capability": None}, "plain"),
        ({"capability": "gfx942"}, "plain"),  # AMD
        ({"platform": "tpu", "length": LONG}, "pallas"),
        ({"platform": "tpu", "length": LONG, "dtype": jnp.dtype("float32")}, "pallas"),
        ({"platform": "tpu", "length": LONG - 1}, "plain"),
        ({"platform": "cpu"}, "plain"),
        ({"dtype": jnp.dtype("float32")}, "plain"),
        ({"d_k": 16}, "plain"),
        ({"d_k": 256, "d_v": 256}, "plain"),
        ({"dropout": True}, "plain"),
        ({"bias": True}, "plain"),
        ({"platform": "tpu", "length": LONG, "window": True}, "plain"),
        ({"platform": "tpu", "length": LONG, "dtype": jnp.dtype("float16")}, "plain"),
    ],
)
def test_auto_takes_the_kernel_of_the_machine_where_it_fits(changes, chosen):
    assert fit("auto", USUAL._replace(**changes)) == chosen
    assert fit("plain", USUAL._replace(**changes)) == "plain"


@pytest.mark.parametrize(
    ("backend", "changes", "message"),
    [
        ("flash", {}, "backend is one of auto, plain, cudnn, pallas, not 'flash'"),
        ("pallas", {}, "=pallas is for a TPU, and this is a GPU: set"),
        ("cudnn", {"platform": "cpu"}, "=cudnn is for a GPU, and this is a CPU"),
        ("cudnn", {"capability": "7.0"}, "capability 8.0 or higher, and this has 7.0"),
        ("cudnn", {"capability": None}, "8.0 or higher, and this has none: set"),
        ("cudnn", {"dtype": jnp.dtype("float32")}, "or float16, not in float32"),
        ("cudnn", {"d_k": 16}, "not d_k=16 and d_v=64"),
        ("cudnn", {"dropout": True}, "has no dropout of attention weights"),
        (
            "pallas",
            {"platform": "tpu", "dtype": jnp.dtype("float16")},
            "in bfloat16 or float32, not in float16",
        ),
    ],
)
def test_a_backend_that_does_not_fit_is_refused_in_one_line(backend, changes, message):
    with pytest.raises(InputError, match=message) as caught:
        fit(backend, USUAL._replace(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "flash"}, "one of auto, plain, cudnn, pallas, not 'flash'"),
        ({}, "backend=pallas needs a TPU: use auto or plain"),
        ({"mask": jnp.ones((1, 1, 4, 4), bool)}, "takes a mask of segments"),
        ({"drop": lambda x: x}, "has no dropout"),
        ({"bias": jnp.ones((1, 1, 4, 4))}, "has no bias on scores: set backend=auto"),
        (
            {"mask": F.SegmentMask(jnp.ones((1, 4), int), window=2)},
            "has no window of attention: set backend=auto",
        ),
        ({"backend": "cudnn"}, "computes in bfloat16 or float16, not in float32: set"),
    ],
)
def test_a_kernel_refuses_what_it_cannot_compute(changes, message):
    x = jnp.ones((1, 4, 2, 8))
    given = {"query": x, "key": x, "value": x, "backend": "pallas"}
    with pytest.raises(InputError, match=message):
        attend(**given | changes)


def test_cudnn_is_refused_without_a_gpu(monkeypatch):
    """In ``jit`` too."""

    def absent(*_, **__):
        raise RuntimeError("cuDNN is not detected.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", absent)
    x = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    with pytest.raises(InputError, match="backend=cudnn needs a GPU: use auto or"):
        jax.jit(functools.partial(attend, backend="cudnn"))(x, x, x)


def test_auto_is_the_kernel_of_the_first_device_where_it_fits(monkeypatch):
    """Here plain attention, which returns weights; on a TPU the kernel, but for a mask
    that is an array, and under a check of what varies over devices.
    """
    x = jnp.ones((1, LONG, 1, 8))
    segments = F.SegmentMask(jnp.ones((1, LONG), int))
    auto = functools.partial(attend, x, x, x, backend="auto")
    expected, weights = auto(segments)
    assert weights is not None
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="tpu")])
    assert auto(segments.dense(LONG))[1] is not None
    with within_backend("pallas"):
        output, weights = auto(segments)
    assert weights is None
    np.testing.assert_allclose(output, expected, rtol=1e-6)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")
    checked = jax.shard_map(
        lambda x: attend(x, x, x, backend="auto")[0],
        mesh=mesh,
        in_specs=rows,
        out_specs=rows,
    )
    assert jax.eval_shape(checked, jnp.ones((2, LONG, 1, 8))).shape[0] == 2


def test_cudnn_refuses_a_key_after_padding():
    """It is given lengths, by which the output would silently be wrong."""
    x = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    mask = F.SegmentMask(jnp.array([[True, False, True, False]]))
    with pytest.raises(InputError, match="padded on the right: row 0"):
        attend(x, x, x, mask, backend="cudnn")


@pytest.mark.parametrize("backend", ["cudnn"], indirect=True)
@pytest.mark.parametrize("causal", [False, True])
def test_a_key_after_padding_is_nan_where_values_are_unknown(backend, causal):
    """In its row only, and in the gradients of that row's queries and keys."""
    keys = jnp.array([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]])
    rng = np.random.default_rng(2)
    arrays = [jnp.asarray(rng.normal(size=(4, 4, 2, 8)), jnp.float32) for _ in range(3)]

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def run(query, key, value, keys):
        mask = F.SegmentMask(keys, causal=causal)
        output, _ = attend(query, key, value, mask, backend=backend)
        return output.sum(), output

    (_, output), gradients = run(*arrays, keys)
    for found in (output, *gradients):
        wrong = np.isnan(found).any(axis=(1, 2, 3))
        np.testing.assert_array_equal(wrong, [True, False, True, False])
    assert np.isnan(output[0]).all()
