"""``info``: what a run is made of, and what a configuration would need."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import jax
import pytest

import jaxformer
import runs
from jaxformer.cli import config_file
from jaxformer.models.make import count_parameters
from jaxformer.runs.config import parse
from jaxformer.training.memory import abstract_mesh, count_bytes

FILE = runs.ROOT / "configs" / "reverse.py"


@pytest.fixture
def info(call):
    def info(*arguments):
        with jax.numpy_dtype_promotion("standard"):
            outcome = call("info", *arguments)
        assert (outcome.code, outcome.err) == (0, "")
        return json.loads(outcome.out)

    return info


def test_a_run(info, run, translator):
    """The configuration, the parameters by part and the checkpoints with their scores;
    no file changes. A run without checkpoints is shown too.
    """

    def files():
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = files()
    record = info(f"--workdir={run}")
    assert files() == before
    parts = dict(record["parameters"])
    assert set(parts) == {"total", *translator.params}
    assert parts.pop("total") == sum(parts.values())
    assert sum(parts.values()) == count_parameters(translator.params)
    assert (record["step"], record["best"], record["results"]) == (20, 10, {})
    assert record["checkpoints"] == {"10": {"bleu": 5.0}, "20": {"bleu": 4.0}}
    saved = json.loads((run / "config.json").read_text())
    assert saved.pop("version") == jaxformer.__version__
    assert record["config"] == saved
    shutil.rmtree(run / "checkpoints")
    record = info(f"--workdir={run}")
    assert (record["step"], record["best"], record["checkpoints"]) == (0, None, {})
    assert not (run / "checkpoints").exists()


def test_damaged_checkpoints_and_averages(call, info, run):
    """Those whose record cannot be read are named; the others are listed as before."""
    assert call("average", f"--workdir={run}", "--last=1").code == 0
    checkpoint, average = run / "checkpoints" / "20", run / "averages" / "last-1"
    before = info(f"--workdir={run}")
    assert "damaged" not in before
    (checkpoint / "_CHECKPOINT_METADATA").unlink()
    (average / "_CHECKPOINT_METADATA").write_bytes(b"")
    after = info(f"--workdir={run}")
    first, second = after.pop("damaged")
    rule = "is damaged: _CHECKPOINT_METADATA has changed since it was saved"
    assert first.startswith(f"checkpoint last-1 in {average.parent} {rule}")
    rule = "is damaged: _CHECKPOINT_METADATA is missing"
    assert second.startswith(f"checkpoint 20 in {checkpoint.parent} {rule}")
    assert after == {**before, "averages": {}}


def test_memory_of_a_configuration(info, tmp_path, monkeypatch):
    """For more devices than there are, each engine's bytes are those of the arithmetic;
    nothing is written. One device has one engine.
    """
    monkeypatch.chdir(tmp_path)
    keys = {"training.mesh_fsdp": 4, "training.mesh_tensor": 2}
    keys |= {"training.engine": "mesh", "data.train": "text:is,missing"}
    keys |= {"model.attention_backend": "pallas"}  # for devices that are not here
    given = [f"--config.{key}={value}" for key, value in keys.items()]
    record = info(f"--config={FILE}", "--devices=64", *given)
    assert list(tmp_path.iterdir()) == []
    config = parse(config_file.read(str(FILE), given))
    assert record["devices"] == 64
    parts = dict(record["parameters"])
    assert parts.pop("total") == sum(parts.values())
    meshes = {"jit": [1, 1, 1], "pmap": [64, 1, 1], "mesh": [8, 4, 2]}
    assert record["memory"].keys() == meshes.keys()
    for engine, entry in record["memory"].items():
        assert [*entry["mesh"].values()] == meshes[engine]
        mesh = abstract_mesh(engine, 64, config.training)
        found = count_bytes(config.model, config.training, mesh)
        assert {name: entry[name] for name in asdict(found)} == asdict(found)
        assert entry["total"] == found.total
    assert list(info(f"--config={FILE}", "--devices=1")["memory"]) == ["jit"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--config=FILE --config.model.d_modell=8", "did you mean model.d_model?"),
        ("--workdir=RUN --config.model.d_model=8", "give --config=FILE"),
        ("--config=FILE --devices=6 MESH --config.training.mesh_fsdp=4", "the 6 devic"),
    ],
)
def test_wrong_options(options, rule, call):
    given = options.replace("=FILE", f"={FILE}").replace("RUN", str(runs.random_run()))
    given = given.replace("MESH", "--config.training.engine=mesh")
    assert rule in call("info", *given.split()).error
