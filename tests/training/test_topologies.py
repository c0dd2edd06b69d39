"""Devices that are not there, by name."""

import importlib.util

import pytest

from jaxformer import InputError
from jaxformer.training.topologies import MACHINES, devices_of, parse_topology


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("v5e:2x4", "v5e", "2x4"),
        ("v5p", "v5p", "2x2x1"),
        ("h200:8", "h200", "8"),
        ("a100", "a100", "1"),
        ("H200:8", "h200", "8"),
    ],
)
def test_names(text, name, shape):
    topology = parse_topology(text)
    assert (topology.name, topology.shape) == (name, shape)
    assert topology.machine is MACHINES[name]
    assert topology.is_tpu == name.startswith("v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v9:2x2", "name one of v5e, v5p, v6e, a100, h100, h200, as in"),
        ("v5e:3x3", "v5e has no slice 3x3: it is one of 1x1, 2x2, 2x4, "),
        ("v5p:2x2", "v5p has no slice 2x2: it is one of 2x2x1, 2x2x2, "),
        ("v6e-16", "v6e-16 is named by its shape: give v6e:4x4"),
        ("v6e:16", "v6e:16 is named by its shape: give v6e:4x4"),
        ("v5p-16", "v5p-16 is named by its shape: give v5p:2x2x2"),
        ("h200:0", "h200 takes a number of devices, as in h200:8"),
        ("h200:2x4", "h200 takes a number of devices, as in h200:8"),
        ("", "begins with no known machine"),
    ],
)
def test_what_does_not_exist_is_refused_in_one_line(text, message):
    with pytest.raises(InputError, match=message) as caught:
        parse_topology(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "module", "extra"),
    [("v5e:2x2", "libtpu", "tpu"), ("h200:8", "jax_cuda12_plugin", "cuda12")],
)
def test_a_missing_compiler_names_its_extra(text, module, extra, monkeypatch):
    """Whether or not it is installed here."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == module else found(name),
    )
    name, _ = text.split(":")
    with pytest.raises(InputError) as caught:
        devices_of(parse_topology(text))
    assert str(caught.value) == (
        f"compiling for {name} needs its compiler, which is not installed: pip install"
        f" 'jaxformer[{extra}]'"
    )
