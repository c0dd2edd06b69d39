"""What the first host makes, all hosts get; what it cannot make, all hosts are told."""

import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jaxformer.errors import InputError
from jaxformer.training.hosts import make_once

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from jaxformer.data import DataConfig, TrainingText
from jaxformer.errors import InputError
from jaxformer.training.hosts import make_once
from jaxformer.training import run

trained = []
train = run._train_vocabularies
run._train_vocabularies = lambda text: trained.append(1) or train(text)
config = DataConfig(train="bundled:en-de/valid", vocabulary_size=300, shared_vocabulary=False)
vocabularies = make_once(lambda: run._train_vocabularies(TrainingText.open(config)))
def refuse():
    raise InputError("no file train.en")
def fail():
    raise ZeroDivisionError("ours")
told = []
for make in (refuse, fail):
    try:
        make_once(make)
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
print(len(trained), vocabularies.hash, vocabularies.source.size, told)
"""


@pytest.mark.slow
def test_one_host_trains_the_vocabulary(tmp_path):
    """The other waits and gets the same bytes without any file; an error reaches both (statement 83)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path / "host.py"
    script.write_text(textwrap.dedent(CODE))
    hosts = [
        subprocess.Popen(
            [sys.executable, script, address, str(number)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(2)
    ]
    try:
        outputs = [host.communicate(timeout=240) for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], [error.decode()[-2000:] for _, error in outputs]
    first, second = (output.decode().splitlines()[-1].split(" ", 3) for output, _ in outputs)
    assert (first[0], second[0]) == ("1", "0")
    assert first[1:3] == second[1:3]
    assert first[2] == "300"
    assert first[3].strip() == "['InputError: no file train.en', 'ZeroDivisionError: ours']"
    assert second[3].strip() == (
        "['InputError: no file train.en', 'RuntimeError: ZeroDivisionError on the first host: ours']"
    )


def test_a_single_host_makes_it_itself():
    assert make_once(lambda: 7) == 7
    with pytest.raises(InputError, match="mine"):
        make_once(lambda: (_ for _ in ()).throw(InputError("mine")))
