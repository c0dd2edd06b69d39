"""``info --config``: what a configuration would need, before anything is trained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import jax
import pytest

import runs
from jaxformer.cli import config_file
from jaxformer.runs.config import parse
from jaxformer.training.memory import abstract_mesh, count_bytes

FILE = Path(__file__).parents[2] / "configs" / "reverse.py"


@pytest.fixture(autouse=True)
def _promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def test_a_damaged_checkpoint_or_average_is_named(call, tmp_path):
    """The others are listed as before, and the best is still the best."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    assert call("average", f"--workdir={run}", "--last=1").code == 0
    before = json.loads(call("info", f"--workdir={run}").out)
    assert "damaged" not in before
    assert "without_checksums" not in before
    (run / "checkpoints" / "20" / "_CHECKPOINT_METADATA").unlink()
    (run / "averages" / "last-1" / "params" / "_METADATA").write_bytes(b"")
    after = json.loads(call("info", f"--workdir={run}").out)
    average, checkpoint = after.pop("damaged")
    assert average.startswith(
        f"average last-1 in {run / 'averages'} is damaged: params/_METADATA has 0"
        " bytes, and "
    )
    assert checkpoint.startswith(
        f"checkpoint 20 in {run / 'checkpoints'} is damaged: _CHECKPOINT_METADATA is"
        " missing"
    )
    assert after == {**before, "averages": {}}


def test_checkpoints_without_checksums_are_listed(call, tmp_path):
    """A changed byte in them would not be seen."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    assert call("average", f"--workdir={run}", "--last=1").code == 0
    (run / "checkpoints" / "20" / "checksums.json").unlink()
    assert json.loads(call("info", f"--workdir={run}").out)["without_checksums"] == [
        "20"
    ]
    (run / "averages" / "last-1" / "checksums.json").unlink()
    assert json.loads(call("info", f"--workdir={run}").out)["without_checksums"] == [
        "average/last-1",
        "20",
    ]


def test_memory_of_a_configuration(call, tmp_path, monkeypatch):
    """For more devices than there are, each engine's bytes are those of the
    arithmetic; nothing is written.
    """
    monkeypatch.chdir(tmp_path)
    keys = [
        *(
            "--config.training.engine=mesh",
            "--config.training.mesh_fsdp=4",
            "--config.training.mesh_tensor=2",
        ),
        "--config.data.train=text:is,missing",
    ]
    outcome = call("info", f"--config={FILE}", "--devices=64", *keys)
    assert outcome.code == 0
    assert outcome.err == ""
    assert list(tmp_path.iterdir()) == []
    record = json.loads(outcome.out)
    config = parse(config_file.read(str(FILE), keys))
    assert record["devices"] == 64
    parts = dict(record["parameters"])
    assert parts.pop("total") == sum(parts.values())
    assert {name: entry["mesh"] for name, entry in record["memory"].items()} == {
        "jit": {"data": 1, "fsdp": 1, "tensor": 1},
        "pmap": {"data": 64, "fsdp": 1, "tensor": 1},
        "mesh": {"data": 8, "fsdp": 4, "tensor": 2},
    }
    for engine, entry in record["memory"].items():
        mesh = abstract_mesh(engine, 64, config.training)
        found = count_bytes(config.model, config.training, mesh)
        assert {name: entry[name] for name in asdict(found)} == asdict(found)
        assert entry["total"] == found.total


def test_one_device_has_one_engine(call):
    """Where there is nothing to share, only jit is shown."""
    assert list(
        json.loads(call("info", f"--config={FILE}", "--devices=1").out)["memory"]
    ) == ["jit"]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--devices=0"], "argument --devices: must be at least 1, not 0"),
        (
            [
                "--devices=6",
                "--config.training.engine=mesh",
                "--config.training.mesh_fsdp=4",
            ],
            "must divide the 6 devices",
        ),
        (["--config.model.d_modell=8"], "did you mean model.d_model?"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, rule, call):
    assert rule in call("info", f"--config={FILE}", *arguments).error


@pytest.mark.parametrize("argument", ["--devices=8", "--config.model.d_model=8"])
def test_a_run_is_as_it_is(argument, call):
    """What is about a configuration is refused beside a run, not ignored."""
    assert (
        "give --config=FILE"
        in call("info", f"--workdir={runs.random_run()}", argument).error
    )


def test_run_or_configuration(call):
    """One of the two, and not both."""
    assert call("info").code == 2
    assert call("info", f"--config={FILE}", "--workdir=runs/none").code == 2
