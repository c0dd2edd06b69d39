"""Two processes of two devices each, which exchange arrays by gloo, against one
process of four.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from training.little import (
    LITTLE_RUN,
    assert_trees_close,
    read_checkpoint,
    read_records,
    steps_of,
    without_key_biases,
)
from training.little import write_corpus as write_little_corpus

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "scripts" / "launch_local.sh"

# One run after another in the same process, each as soon as a file is there that
# another process may write.
DRIVER = """
import json
import sys
import time
from pathlib import Path
from training.little import cached_make_engine, little_config
from jaxformer.evaluation.evaluate import make_validator
from jaxformer.training import train as training
from jaxformer.training.distributed import Cluster, run_together

training.make_engine = cached_make_engine
corpus, folder, jobs = json.loads(sys.argv[1])

def work():
    for name, changes, after, before in jobs:
        while after and not (Path(folder) / after).exists():
            time.sleep(0.05)
        outcome = training.train(little_config(corpus, changes), Path(folder) / name, make_validator)
        print("outcome", *outcome, flush=True)
        if before:
            (Path(folder) / before).touch()
    return 0

def report(error):
    raise error

if len(sys.argv) > 2:
    sys.exit(run_together(Cluster(sys.argv[2], 2, int(sys.argv[3])), 120.0, work, report))
sys.exit(work())
"""

# Without dropout: on another number of hosts a device may have other rows.
PMAP = {"training.engine": "pmap", "data.num_buckets": 1, "model.dropout_rate": 0.0}
ENGINES = {
    "pmap": PMAP,
    "mesh": {**PMAP, "training.engine": "mesh", "training.mesh_fsdp": 2},
}


def write_corpus(folder):
    names = write_little_corpus(folder)
    for file in names["data.test"].removeprefix("text:").split(","):
        Path(file).write_text("a b\n")
    return names


def environment(devices, compiled):
    """Give a process so many devices, and quick rather than good code."""
    flags = (
        f"--xla_force_host_platform_device_count={devices}"
        " --xla_backend_optimization_level=0"
    )
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "JAX_COMPILATION_CACHE_DIR": str(compiled),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "PYTHON": sys.executable,
        "GRACE": "2",
    }


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Processes:
    """Processes with their output in files; what is still there in the end is
    killed.
    """

    def __init__(self, folder):
        self.folder, self.all = folder, []

    def start(self, line, devices):
        said = self.folder / f"{len(self.all)}.said"
        with said.open("wb") as file:
            process = subprocess.Popen(
                [str(word) for word in line],
                cwd=ROOT,
                env=environment(devices, self.folder / "compiled"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.all.append(process)
        return process, said

    def pair(self, arguments):
        """Start the command as two processes, the second with its own arguments."""
        address = free_address()
        return [
            self.start(
                [
                    *(sys.executable, "-m", "jaxformer.cli.main", *arguments[number]),
                    *(
                        f"--coordinator={address}",
                        "--num_processes=2",
                        f"--process_id={number}",
                    ),
                ],
                2,
            )
            for number in range(2)
        ]

    def end(self):
        for process in self.all:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """Return what starts processes."""
    made = Processes(tmp_path_factory.mktemp("hosts"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return the data sets of the little run."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def trained(processes, corpus):
    """Return the folder of the runs that two hosts and one have made, some of them in
    turns.
    """
    folder = processes.folder

    def jobs(who, *turns):
        straight = [
            (f"{name} {who}", changes, None, None) for name, changes in ENGINES.items()
        ]
        return json.dumps([corpus, str(folder), [*straight, *turns]])

    def turn(steps, after=None, before=None):
        return ("in turns", {**PMAP, "training.steps": steps}, after, before)

    address = free_address()
    two = jobs("two", turn(3, None, "three"), turn(12, "six"))
    one = jobs("one", turn(6, "three", "six"))
    started = [
        processes.start([sys.executable, "-c", DRIVER, two, address, number], 2)
        for number in range(2)
    ]
    started.append(processes.start([sys.executable, "-c", DRIVER, one], 4))
    for process, said in started:
        assert process.wait(timeout=400) == 0, said.read_text()[-3000:]
    for (_, said), steps in zip(
        started, ((12, 12, 3, 12), (12, 12, 3, 12), (12, 12, 6)), strict=True
    ):
        outcomes = [
            line
            for line in said.read_text().splitlines()
            if line.startswith("outcome ")
        ]
        assert outcomes == [f"outcome {step} True None" for step in steps]
    return folder, started


def assert_records_close(found, expected, tolerance):
    assert [list(record) for record in found] == [list(record) for record in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINES)
def test_two_hosts_equal_one(trained, name):
    """Every line of the log with its losses, gradients, validation loss, BLEU and chrF,
    the translations, and the parameters of every checkpoint are those of one host with
    as many devices.
    """
    folder, _ = trained
    two, one = folder / f"{name} two", folder / f"{name} one"
    assert_records_close(read_records(two), read_records(one), 1e-5)
    assert {"valid/nll", "valid/bleu", "valid/chrf"} <= read_records(two)[-1].keys()
    assert [record["step"] for record in read_records(two)] == [3, 6, 6, 9, 12, 12]
    assert read_records(two, "samples.jsonl") == read_records(one, "samples.jsonl")
    assert steps_of(two) == steps_of(one)
    for step in steps_of(one):
        found, expected = (read_checkpoint(run, step)["params"] for run in (two, one))
        assert_trees_close(
            without_key_biases(found), without_key_biases(expected), atol=1e-5, rtol=0
        )


@pytest.mark.slow
def test_hosts_in_turns(trained):
    """A checkpoint of two hosts restores on one and back: the same examples in the same
    order, and the loss curve of a run on two.
    """
    folder, _ = trained
    found, expected = (
        read_records(folder / "in turns"),
        read_records(folder / "pmap two"),
    )

    def training(records):
        return [record for record in records if "train/loss" in record]

    assert [record["step"] for record in training(found)] == [3, 6, 9, 12]
    assert_records_close(training(found), training(expected), 1e-4)
    assert [r["train/tokens"] for r in training(found)] == [
        r["train/tokens"] for r in training(expected)
    ]
    assert [record["train/epoch"] for record in training(found)] == [0.0] * 4
    last, wanted = (
        read_checkpoint(folder / run, 12)["params"] for run in ("in turns", "pmap two")
    )
    assert_trees_close(
        without_key_biases(last), without_key_biases(wanted), atol=1e-4, rtol=0
    )
    assert found[-1] == pytest.approx(expected[-1], rel=1e-4)


@pytest.mark.slow
def test_the_first_host_speaks_for_all(trained):
    """Of two hosts the second shows nothing of its own."""
    _, started = trained
    first, second = (said.read_text().splitlines() for _, said in started[:2])
    assert any("parameters on 4 cpu devices" in line for line in first)
    assert [
        line
        for line in second
        if not (line.startswith("outcome ") or _is_of_gloo(line))
    ] == []


def _is_of_gloo(line: str) -> bool:
    """Whether a line is made of the words of Gloo's own, which its threads write in
    pieces, one between another's.
    """
    words = (
        "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer"
        " ranks is : 1"
    )
    return set(re.findall("[A-Za-z]+", line)) <= set(re.findall("[A-Za-z]+", words))


def test_what_is_of_gloo():
    """Its pieces are, and lines of ours are not."""
    assert all(
        _is_of_gloo(line)
        for line in (
            "[Gloo] Rank 1 is connected",
            "1",
            " to 1 peer ranks. Expected number",
            "",
        )
    )
    assert not any(
        _is_of_gloo(line)
        for line in ("step 1", "[Gloo] Rank 1 is connected and parameters on 4 devices")
    )


def arguments(corpus, directory, changes):
    keys = {**LITTLE_RUN, **corpus, **PMAP, **changes}
    overrides = [f"--config.{key}={value}" for key, value in keys.items()]
    return [
        "train",
        f"--config={ROOT / 'configs' / 'reverse.py'}",
        f"--workdir={directory}",
        *overrides,
    ]


@pytest.mark.slow
def test_stopped_and_killed(processes, corpus, tmp_path):
    """SIGTERM to one of two hosts stops both after the same step, with a checkpoint
    there and exit code 130. When one is then killed without a warning, the launcher
    ends the other, and the checkpoint stays.
    """
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    seldom = {
        f"training.{name}": 100_000
        for name in ("steps", "evaluate_every", "checkpoint_every")
    }
    line = [LAUNCH, 2, 2, "--", *arguments(corpus, run, seldom)]

    def signal_second(number, lines):
        """Send a signal to the second process as soon as the log has so many lines."""
        script, said = processes.start(line, 1)
        while script.poll() is None and not (
            metrics.exists() and metrics.read_text().count("\n") >= lines
        ):
            time.sleep(0.02)
        children = ["pgrep", "-P", str(script.pid), "-f", "process_id=1"]
        os.kill(
            int(subprocess.run(children, capture_output=True, check=True).stdout),
            number,
        )
        return script.wait(timeout=200), said.read_text()

    code, words = signal_second(signal.SIGTERM, 2)
    assert code == 130, words
    (stopped,) = steps_of(run)
    assert stopped >= 6
    assert read_records(run)[-1]["step"] <= stopped
    assert (
        f"[0] another host: saved at step {stopped}; the same command continues from"
        " there" in words
    )
    code, words = signal_second(signal.SIGKILL, len(read_records(run)) + 1)
    assert code == 128 + signal.SIGKILL, words
    assert f"[0] resuming at step {stopped} of" in words
    assert steps_of(run) == [stopped]
    assert np.isfinite(
        read_checkpoint(run, stopped)["params"]["embedding"]["table"]
    ).all()


@pytest.mark.slow
def test_one_host_is_started_wrongly(processes, corpus, tmp_path):
    """What is wrong on one host alone ends all with exit code 1 and the same line,
    and nothing is left behind.
    """
    run = tmp_path / "run"
    good = arguments(corpus, run, {})
    missing = [
        f"--config={tmp_path / 'not.py'}" if word.startswith("--config=") else word
        for word in good
    ]
    for second, reason in (
        (
            arguments(corpus, run, {"training.seed": 5}),
            "training.seed is 0 on host 0 and 5 on host 1: give every host",
        ),
        (missing, f"no configuration file {tmp_path / 'not.py'}"),
    ):
        started = processes.pair([good, second])
        for number, (process, said) in enumerate(started):
            assert process.wait(timeout=120) == 1, said.read_text()
            errors = [
                line
                for line in said.read_text().splitlines()
                if not line.startswith("[Gloo]")
            ]
            assert len(errors) == 1, said.read_text()
            assert errors[0].startswith("jaxformer: error: ")
            assert reason in errors[0]
            assert errors[0].startswith("jaxformer: error: host 1: ") == (
                number == 0 and "seed" not in reason
            )
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_host_that_nobody_joins(processes, corpus, tmp_path, number):
    """A process whose others do not come ends in time, with one line."""
    line = [
        *arguments(corpus, tmp_path / "run", {}),
        *(
            f"--coordinator={free_address()}",
            "--num_processes=2",
            f"--process_id={number}",
        ),
        "--distributed_timeout=1",
    ]
    process, said = processes.start(
        [sys.executable, "-m", "jaxformer.cli.main", *line], 1
    )
    assert process.wait(timeout=120) == 1
    (words,) = said.read_text().splitlines()
    assert words.startswith("jaxformer: error: ")
    assert words.endswith(
        "answer within 1 s: look at what the other processes said and whether the port"
        " is open, or set --distributed_timeout"
    )
    assert not (tmp_path / "run").exists()


STUB = """#!/usr/bin/env bash
# Stands in for the interpreter: $PYTHON -c finds a port; $PYTHON -m jaxformer.cli.main is a process.
[[ $1 == -c ]] && { echo 4321; exit; }
number=${*: -1}; number=${number#--process_id=}
echo "$XLA_FLAGS $JAX_PLATFORMS $*"
echo "to be read" >&2
trap 'echo stopped; exit 130' TERM
trap 'echo interrupted; exit 130' INT
touch "$FOLDER/$number"
case $MODE in
    done) exit 0 ;;
    fail) ((number == 1)) && exit 7 ;;
esac
while true; do sleep 0.05; done
"""


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts the launcher with processes that do what ``mode``
    says.
    """
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    started = []

    def start(mode, *arguments):
        process = subprocess.Popen(
            [LAUNCH, *arguments],
            env={
                **os.environ,
                "PYTHON": str(stub),
                "MODE": mode,
                "FOLDER": str(tmp_path),
                "GRACE": "0",
                "XLA_FLAGS": "",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_the_launcher_starts_processes(launch):
    """Each gets its number, its devices and the port, and what it says has its
    number before it.
    """
    out, err = launch("done", "2", "3", "--", "train", "--workdir=a b").communicate(
        timeout=60
    )
    line = (
        "-m jaxformer.cli.main train --workdir=a b --coordinator=127.0.0.1:4321"
        " --num_processes=2 --process_id="
    )
    devices = " --xla_force_host_platform_device_count=3 cpu "
    assert sorted(out.splitlines()) == [
        f"[{number}] {devices}{line}{number}" for number in range(2)
    ]
    assert sorted(err.splitlines()) == ["[0] to be read", "[1] to be read"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_launcher_passes_signals_on(launch, number, tmp_path):
    process = launch("wait", "2", "--", "train")
    while not all((tmp_path / name).exists() for name in "01"):
        time.sleep(0.02)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    word = "stopped" if number == signal.SIGTERM else "interrupted"
    assert {f"[0] {word}", f"[1] {word}"} <= set(out.splitlines())


def test_the_launcher_ends_all_when_one_fails(launch):
    process = launch("fail", "3", "--", "train")
    process.communicate(timeout=60)
    assert process.returncode == 7


@pytest.mark.parametrize(
    "arguments",
    [(), ("2",), ("2", "2"), ("0", "--", "train"), ("x", "--", "train"), ("2", "--")],
)
def test_the_launcher_explains_itself(launch, arguments):
    process = launch("done", *arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "scripts/launch_local.sh N [DEVICES] -- train" in err
