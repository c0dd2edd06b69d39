"""The promise of compatibility: a model stored by an earlier version says today what it
said then.

``scripts/store_compatibility_model.py`` stores one of each release.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import runs
from jaxformer import InputError, Translator, __version__
from jaxformer.data.config import EARLIER
from jaxformer.data.records import Pair
from jaxformer.evaluation.evaluate import evaluate, make_validator
from jaxformer.runs import config as configuration
from jaxformer.training.progress import Progress
from jaxformer.training.train import train

FOLDER = Path(__file__).parent
VERSIONS = sorted(path.stem for path in FOLDER.glob("*.zip"))
assert "0.1.0" in VERSIONS


@pytest.fixture(params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture
def run(version, tmp_path) -> Path:
    """Unpack the directory of the run."""
    shutil.unpack_archive(FOLDER / f"{version}.zip", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def said(version) -> dict[str, Any]:
    """Read what the model said when it was stored."""
    return json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))


def test_storing_can_be_repeated_after_a_failure(tmp_path, monkeypatch, capsys):
    """There is no archive without the record of what it says; with both it stays. Who
    asks for help stores nothing.
    """
    monkeypatch.syspath_prepend(runs.ROOT / "scripts")
    script = importlib.import_module("store_compatibility_model")

    def train(_config, run, _make_validator):
        for name in script.KEPT:
            (run / name).mkdir(parents=True)

    monkeypatch.setattr(script, "FOLDER", tmp_path)
    monkeypatch.setattr(script, "train", train)
    monkeypatch.setattr(script, "describe", lambda _: 1 / 0)
    monkeypatch.setattr(sys, "argv", ["store_compatibility_model.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        script.main()
    monkeypatch.setattr(sys, "argv", ["store_compatibility_model.py"])
    with pytest.raises(ZeroDivisionError):
        script.main()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(script, "describe", lambda _: {})
    assert script.main() == 0
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".zip"}
    assert script.main() == 1
    assert "is there already" in capsys.readouterr().err


def test_it_translates_and_scores_as_before(run, said, version):
    """Texts are the same, greedy and by beam search; log-probabilities, BLEU and
    chrF are to five places.
    """
    assert version == said["version"]
    assert (FOLDER / f"{version}.zip").stat().st_size < 300_000
    assert version == json.loads((run / "config.json").read_text())["version"]
    pairs = [Pair(*pair) for pair in said["pairs"]]
    texts = [pair.source for pair in pairs]
    translator = Translator.load(run)
    for beam_size, expected in said["translations_by_beam"].items():
        found = [best[0] for best in translator.search(texts, beam_size=int(beam_size))]
        assert [best.text for best in found] == [best["text"] for best in expected]
        for key in ("score", "log_probability"):
            wanted = [best[key] for best in expected]
            close([getattr(best, key) for best in found], wanted)
        # The stored translations differ.
        assert len({best["text"] for best in expected}) > len(texts) // 2
    scores, wanted = translator.score(pairs), said["pair_scores"]
    assert [score.tokens for score in scores] == [score["tokens"] for score in wanted]
    logs = [score.log_probability for score in scores]
    close(logs, [score["log_probability"] for score in wanted])
    record, _ = evaluate(translator, pairs, "stored")
    close([record["bleu"], record["chrf"]], [said["bleu"], said["chrf"]])


def close(found: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


def test_its_training_continues(run):
    """The loss of a step more is about that of the steps before."""
    config, last = configuration.load(run / "config.json"), losses(run)[-1]
    assert config.data.shape_multiple == 1  # the shapes of its batches stay
    steps = config.training.steps + 1
    changed = dataclasses.replace(config.training, steps=steps, log_every=1)
    config = dataclasses.replace(config, training=changed)
    with jax.numpy_dtype_promotion("standard"):
        outcome = train(config, run, make_validator)
    assert (outcome.step, outcome.finished) == (steps, True)
    assert math.isclose(losses(run)[-1], last, rel_tol=0.3)
    assert json.loads((run / "config.json").read_text())["version"] == __version__


# tied to other values, or a key that was removed
TIED = {"data.vocabulary_size", "model.max_length", "data.max_length"}
TIED |= {f"model.{key}" for key in configuration.OF_THE_VOCABULARY}
TIED |= configuration.REMOVED.keys()


def test_every_key_may_be_missing(run):
    """A configuration of an earlier version lacks the keys that were added since: each
    has its default then.
    """
    whole = json.loads((run / "config.json").read_text())
    default = configuration.parse(configuration.default_config().to_dict())
    defaults = configuration.flatten(default)
    defaults |= {f"data.{key}": value for key, value in EARLIER.items()}
    for section, values in whole.items():
        for key in values if section != "version" else ():
            if (name := f"{section}.{key}") not in TIED:
                left = {other: values[other] for other in values if other != key}
                (run / "config.json").write_text(json.dumps({**whole, section: left}))
                found = configuration.flatten(configuration.load(run / "config.json"))
                assert found[name] == defaults[name]


@pytest.mark.parametrize(
    ("section", "key", "value", "fault"),
    [
        ("model", "memory_layers", 3, "there is no configuration key model.memory_la"),
        ("model", "activation", "sine", "model.activation must be one of "),
        ("serving", "port", 80, "there is no configuration key serving"),
    ],
)
def test_a_version_to_come_is_named(section, key, value, fault, run):
    """Unknown keys of a later version are refused by one line, which names the version
    to install; a later version without any is read.
    """
    record = json.loads((run / "config.json").read_text()) | {"version": "7.3.0"}
    (run / "config.json").write_text(json.dumps(record))
    assert configuration.load(run / "config.json").model.d_model == 16
    record.setdefault(section, {})[key] = value
    (run / "config.json").write_text(json.dumps(record))
    with pytest.raises(InputError) as caught:
        Translator.load(run)
    said = rf" was written by jaxformer 7.3.0 and .* {__version__}: {fault}"
    assert re.search(rf"{said}.*; install jaxformer 7.3.0$", str(caught.value))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("place", ["", "position"])
def test_counters_of_a_version_to_come(place):
    """Training does not go on from a checkpoint that counts what this version would
    lose; one that counts less does.
    """
    record = Progress(step=7).to_json()
    assert Progress.from_json({"step": 7, "position": {}}) == Progress.from_json(record)
    target = record[place] if place else record
    target["epochs_left"] = 3
    said = rf"the checkpoint has epochs_left, which jaxformer {__version__} does not"
    with pytest.raises(InputError, match=said):
        Progress.from_json(record)
