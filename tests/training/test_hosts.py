"""Two hosts that train together: what each does for all, and what they tell each
other.
"""

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

import runs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.models.transformer import Transformer
from jaxformer.runs import config as configuration
from jaxformer.training import train
from jaxformer.translation.translator import Translator

BEFORE = """
import json
import sys
import jax
from jaxformer.training.distributed import Cluster, join
me = int(sys.argv[2])
join(Cluster(sys.argv[1], 2, me), 120.0)
from jaxformer.errors import InputError
from jaxformer.training.hosts import any_host, check_same, gather, make_once, together

def attempt(make):
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def refuse():
    raise InputError("no file train.en")

def fail():
    raise ZeroDivisionError("ours")

found = {}
"""

AGREE = """
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import TrainingText
from jaxformer.training import run

trained = []
def train(text):
    trained.append(1)
    return run._first_vocabularies(text, None, lambda _: None)
text = TrainingText.open(DataConfig(
    train="bundled:en-de/valid", vocabulary_size=300, shared_vocabulary=False
))
vocabularies = run._share(lambda: train(text))
found["vocabulary"] = [len(trained), vocabularies.source.size, vocabularies.hash]
found["made once"] = [attempt(lambda: make_once(make)) for make in (refuse, fail)]
found["gathered"] = gather({"host": me, "word": "x" * (me + 1)})
found["together"] = [attempt(lambda: together(make)) for make in (lambda: me, refuse)]
found["together, but for host 1"] = [
    attempt(lambda: together(make if me else lambda: "fine")) for make in (refuse, fail)
]
found["the same"] = [
    attempt(lambda: check_same({"seed": 3, "steps": 5 + more}, "mend it"))
    for more in (0, me)
]
found["any"] = [bool(any_host(flag)) for flag in (False, me == 0, me == 1, True)]
"""

DROPOUT = """
import numpy as np
from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.training.engines import make_engine
from jaxformer.runs.training import TrainingConfig

model = Transformer(TransformerConfig(
    vocabulary_size=11, d_model=8, d_ff=16, num_heads=2, num_encoder_layers=1,
    num_decoder_layers=1, dropout_rate=0.3, max_length=16,
))
engine = make_engine(model, TrainingConfig(warmup_steps=300))
found["share"] = [engine.devices, *engine.share]
state = engine.collect(engine.create())
def loss(device):
    rows = np.zeros((2, 9), np.int32)
    if device // 2 == me:
        rows[device % 2] = [5, 6, 7, 8, 9, 10, 4, 5, 3]
    batch = {"source": rows, "target": rows}
    return float(engine.step(engine.place(state), batch)[1]["loss"])
found["losses"] = [loss(device) for device in range(4)]
"""

VALIDATE = """
from training.test_hosts import COUNT, make_run, translated_texts
from jaxformer.evaluation.evaluate import make_validator
for count in (COUNT, 1):
    run, model, params = make_run(sys.argv[3], count)
    validate = make_validator(run, model)
    with translated_texts() as texts:
        found[f"validated {count}"] = [*validate(params, lambda: False), texts]
run, model, params = make_run(sys.argv[3], COUNT)
validate = make_validator(run, model)
found["stopped"] = validate(params, lambda: me == 1)
stop = refuse if me == 1 else lambda: False
found["failed"] = attempt(lambda: validate(params, stop))
"""

AFTER = """
print("found", json.dumps(found), flush=True)
jax.distributed.shutdown()
"""

COUNT = 9


def make_run(directory, count):
    """Return what a validator needs of the random run, with so many validation
    sentences, and parameters.
    """
    config = configuration.load(Path(directory) / "config.json")
    evaluation = dataclasses.replace(config.evaluation, max_sentences=count, samples=3)
    vocabularies = Vocabularies.load(Path(directory) / "vocabulary")
    run = SimpleNamespace(
        config=dataclasses.replace(config, evaluation=evaluation),
        valid=[pair for pair in runs.pairs() if len(pair.source) < 60][:20],
        vocabularies=vocabularies,
        valid_languages=("en", "de"),
        report=str,
    )
    return run, Transformer(config.model), runs.random_params(config.model)


@contextlib.contextmanager
def translated_texts():
    """Note what is translated meanwhile."""
    search, texts = Translator.search, []

    def noting(translator, given, **options):
        texts.extend(given)
        return search(translator, given, **options)

    with mock.patch.object(Translator, "search", noting):
        yield texts


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what two processes with two devices each have found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path_factory.mktemp("hosts") / "host.py"
    script.write_text(BEFORE + AGREE + DROPOUT + VALIDATE + AFTER)
    environment = runs.environment()
    environment["PYTHONPATH"] = f"{runs.ROOT}{os.pathsep}{runs.ROOT / 'tests'}"
    environment["XLA_FLAGS"] += " --xla_force_host_platform_device_count=2"
    hosts = [
        subprocess.Popen(
            [sys.executable, script, address, str(number), runs.random_run()],
            cwd=runs.ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        outputs = [host.communicate(timeout=240) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], [
        error[-2000:] for _, error in outputs
    ]
    words = [
        next(line for line in output.splitlines() if line.startswith("found "))
        for output, _ in outputs
    ]
    return [json.loads(line.removeprefix("found ")) for line in words]


@pytest.mark.slow
def test_hosts_agree(found):
    """The first trains the vocabulary, and the other gets the same bytes without any
    file. All get what each has, in order; where one fails all fail, and where they
    differ all say so. The same sentence on each device of each host has another loss.
    """
    refused, ours = "InputError: no file train.en", "ZeroDivisionError: ours"
    first, second = found
    assert (first["vocabulary"][0], second["vocabulary"][0]) == (1, 0)
    assert first["vocabulary"][1:] == second["vocabulary"][1:]
    assert first["vocabulary"][1] == 300
    assert first["made once"] == second["together, but for host 1"] == [refused, ours]
    for host, found_there in (
        (0, second["made once"]),
        (1, first["together, but for host 1"]),
    ):
        by_file = f"InputError: host {host}: no file train.en"
        assert found_there == [by_file, f"RuntimeError: host {host}: {ours}"]
    differ = "InputError: steps is 5 on host 0 and 6 on host 1: mend it"
    for number, host in enumerate(found):
        assert host["gathered"] == [{"host": 0, "word": "x"}, {"host": 1, "word": "xx"}]
        assert host["together"] == [number, refused]
        assert host["the same"] == [None, differ]
        assert host["any"] == [False, True, True, True]
        assert host["share"] == [4, number, 2]
    assert first["losses"] == second["losses"]
    assert len(set(first["losses"])) == 4


@pytest.mark.slow
def test_hosts_share_the_validation_set(found):
    """Each sentence is translated once, by one of the hosts; all get the scores and
    samples of a host that translates alone, even where there are fewer sentences than
    hosts. A signal on one gives no scores on any, and an error ends all.
    """
    for count in (COUNT, 1):
        run, model, params = make_run(runs.random_run(), count)
        with translated_texts() as texts:
            scores, samples = make_validator(run, model)(params, lambda: False)
        assert len(samples) == min(count, 3)
        assert len(texts) == count
        for number, host in enumerate(found):
            their_scores, their_samples, their_texts = host[f"validated {count}"]
            assert their_scores == pytest.approx(scores, rel=1e-9)
            assert their_samples == samples
            assert their_texts == texts[number::2]
        if count > 1:
            assert len({sample["translation"] for sample in samples}) > 1
            assert scores["chrf"] > 0.0
    assert [host["stopped"] for host in found] == [None, None]
    failed = ["InputError: host 1: no file train.en", "InputError: no file train.en"]
    assert [host["failed"] for host in found] == failed


def test_a_directory_that_is_not_shared(monkeypatch, tmp_path):
    """A host that does not see what the first has written says so after a while, and
    what to do.
    """
    monkeypatch.setattr(train, "VISIBLE_AFTER", 0.0)
    train._await(tmp_path)
    away = r"config.json, and here it is not: put --workdir on a file system that all"
    with pytest.raises(InputError, match=away):
        train._await(tmp_path / "config.json")
