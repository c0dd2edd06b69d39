"""The record of a run on disk, in TensorBoard and on Weights & Biases."""

import json
import sys
import types
from unittest import mock

import pytest
from tensorboardX.proto import event_pb2

from jaxformer.errors import InputError
from jaxformer.runs.records import rewind
from jaxformer.training.log import Log


@pytest.fixture
def open_log(tmp_path):
    """Return a function that opens the record of this test's directory; all are closed
    in the end.
    """
    logs = []

    def open_(step, evaluated):
        logs.append(Log(tmp_path, step, evaluated))
        return logs[-1]

    yield open_
    for log in logs:
        log.close()


def lines(path):
    return [
        json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]
    ]


def test_a_cut_line_goes(tmp_path):
    """A line that a killed process did not finish is removed, wherever it was cut, also
    within a character.
    """
    path = tmp_path / "samples.jsonl"
    whole = '{"step": 1, "translation": "für"}\n'.encode()
    for cut in range(len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        rewind(path, lambda line: line["step"] <= 2)
        assert path.read_bytes() == whole


def test_tensorboard_shows_what_the_record_holds(tmp_path, open_log):
    """Each metric of the record is a point of its curve, at its step."""
    log = open_log(0, 0)
    log.write(3, {"train/loss": 1.5, "train/padding": 0.25})
    log.write(3, {"valid/bleu": 12.5})
    log.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    content, place, found = path.read_bytes(), 0, []
    # A length of eight bytes, four of its checksum, the record, four of its checksum.
    while place < len(content):
        size = int.from_bytes(content[place : place + 8], "little")
        event = event_pb2.Event.FromString(content[place + 12 : place + 12 + size])
        found += [(event.step, x.tag, x.simple_value) for x in event.summary.value]
        place += 16 + size
    points = {"train/loss": 1.5, "train/padding": 0.25, "valid/bleu": 12.5}
    assert found == [(3, name, value) for name, value in points.items()]


@pytest.fixture
def wandb(monkeypatch):
    """Stand in for the package: it remembers how runs were begun, and those runs."""
    stub = types.ModuleType("wandb")
    stub.begun, stub.runs, stub.Error = [], [], type("Error", (Exception,), {})
    stub.Settings = lambda **settings: settings

    def init(**arguments):
        if arguments["project"] == "closed":
            raise stub.Error("no API key")
        stub.begun.append(arguments)
        stub.runs.append(mock.Mock())
        return stub.runs[-1]

    stub.init = init
    monkeypatch.setitem(sys.modules, "wandb", stub)
    return stub


def test_weights_and_biases_gets_what_the_record_holds(tmp_path, wandb):
    """The project gets each line of the record, by the record's own steps, and the
    configuration. Where nobody is logged in one line names the key and the cure.
    """
    config = {"training": {"steps": 7}}
    log = Log(tmp_path, 0, 0, wandb_project="translation", config=config)
    log.write(3, {"train/loss": 1.5})
    log.write(3, {"valid/bleu": 2.5})
    log.close()
    (run,), (begun,) = wandb.runs, wandb.begun
    rows = [call.args[0] for call in run.log.call_args_list]
    assert rows == lines(tmp_path / "metrics.jsonl")
    run.define_metric.assert_called_with("*", step_metric="step")
    run.finish.assert_called_once()
    assert (begun["project"], begun["name"]) == ("translation", tmp_path.name)
    assert begun["config"] == config
    cure = r"training.wandb_project=closed \(no API key\): run `wandb login`, .*$"
    with pytest.raises(InputError, match=cure):
        Log(tmp_path, 0, 0, wandb_project="closed")


def test_a_resumed_run_is_the_same_on_weights_and_biases(tmp_path, wandb):
    """A directory keeps one id, wherever it is moved, and another directory of the
    same name has another.
    """
    first, second = tmp_path / "a" / "run", tmp_path / "b" / "run"
    for directory in (first, second):
        directory.mkdir(parents=True)
        Log(directory, 0, 0, wandb_project="translation").close()
    moved = first.rename(tmp_path / "moved")
    Log(moved, 5, 0, wandb_project="translation").close()
    one, two, again = wandb.begun
    assert one["id"] == again["id"] != two["id"]
    assert again["resume"] == "allow"
