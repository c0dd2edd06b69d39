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

import numpy as np
import pytest
from system.processes import arguments
from training.little import (
    assert_trees_close,
    read_checkpoint,
    read_records,
    steps_of,
    without_key_biases,
)

import runs

LAUNCH = runs.ROOT / "scripts" / "launch_local.sh"

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
        config = little_config(corpus, changes)
        outcome = training.train(config, Path(folder) / name, make_validator)
        print("outcome", *outcome, flush=True)
        if before:
            (Path(folder) / before).touch()
    return 0

def report(error):
    raise error

if len(sys.argv) > 2:
    cluster = Cluster(sys.argv[2], 2, int(sys.argv[3]))
    sys.exit(run_together(cluster, 120.0, work, report))
sys.exit(work())
"""

# Without dropout: on another number of hosts a device may have other rows.
PMAP = {"training.engine": "pmap", "training.steps": 6, "training.log_every": 2}
PMAP |= {"training.evaluate_every": 6, "data.num_buckets": 1, "model.dropout_rate": 0.0}
MESH = {**PMAP, "training.engine": "mesh", "training.mesh_fsdp": 2}


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def assert_records_close(found, expected, tolerance):
    assert [list(record) for record in found] == [list(record) for record in expected]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=tolerance)


@pytest.mark.slow
def test_two_hosts_equal_one(processes, corpus):
    """Every line of the log with its losses, gradients, validation loss, BLEU and chrF,
    the translations, and the parameters of every checkpoint are those of one host with
    as many devices, by pmap and on a mesh. A checkpoint of two hosts restores on one
    and back, with the same examples in the same order. The second host shows nothing.
    """
    folder = processes.folder

    def jobs(who, *turns):
        names = (("pmap", PMAP), ("mesh", MESH))
        straight = [(f"{name} {who}", keys, None, None) for name, keys in names]
        return json.dumps([corpus, str(folder), [*straight, *turns]])

    def turn(steps, after=None, before=None):
        return ("in turns", {**PMAP, "training.steps": steps}, after, before)

    address = free_address()
    two = jobs("two", turn(2, None, "two"), turn(6, "four"))
    one = jobs("one", turn(4, "two", "four"))
    driver = [sys.executable, "-c", DRIVER]
    started = [
        *(processes.start(*driver, two, address, n, devices=2) for n in range(2)),
        processes.start(*driver, one, devices=4),
    ]
    said = []
    for (process, file), turns in zip(started, ((2, 6), (2, 6), (4,)), strict=True):
        assert process.wait(timeout=400) == 0, file.read_text()[-3000:]
        lines = file.read_text().splitlines()
        said.append([line for line in lines if not line.startswith("outcome ")])
        outcomes = [line for line in lines if line.startswith("outcome ")]
        assert outcomes == [f"outcome {step} True None" for step in (6, 6, *turns)]
    assert any("parameters on 4 cpu devices" in line for line in said[0])
    assert [line for line in said[1] if not _is_of_gloo(line)] == []

    for name in ("pmap", "mesh"):
        two, one = folder / f"{name} two", folder / f"{name} one"
        assert_records_close(read_records(two), read_records(one), 1e-5)
        assert [record["step"] for record in read_records(two)] == [2, 4, 6, 6]
        assert {"valid/nll", "valid/bleu", "valid/chrf"} <= read_records(two)[-1].keys()
        assert read_records(two, "samples.jsonl") == read_records(one, "samples.jsonl")
        assert steps_of(two) == steps_of(one)
        for step in steps_of(one):
            assert_parameters_close(two, one, step, 1e-5)
    turns, straight = folder / "in turns", folder / "pmap two"
    found, expected = read_records(turns), read_records(straight)
    training = [record for record in found if "train/loss" in record]
    assert_records_close(training, expected[:3], 1e-4)
    assert [record["step"] for record in training] == [2, 4, 6]
    assert [r["train/tokens"] for r in training] == [
        r["train/tokens"] for r in expected[:3]
    ]
    assert found[-1] == pytest.approx(expected[-1], rel=1e-4)
    assert_parameters_close(turns, straight, 6, 1e-4)


def assert_parameters_close(run, other, step, atol):
    found, expected = (
        without_key_biases(read_checkpoint(each, step)["params"])
        for each in (run, other)
    )
    assert_trees_close(found, expected, atol=atol, rtol=0)


def _is_of_gloo(line: str) -> bool:
    """Return whether a line is made of the words of Gloo's own, which its threads
    write in pieces.
    """
    words = (
        "[Gloo] Rank 1 is connected to 1 peer ranks. Expected number of connected peer"
        " ranks is : 1"
    )
    return set(re.findall("[A-Za-z]+", line)) <= set(re.findall("[A-Za-z]+", words))


@pytest.mark.slow
def test_stopped_and_killed(processes, corpus, tmp_path):
    """SIGTERM to one of two hosts stops both after the same step, with a checkpoint and
    exit code 130. When one is then killed, the launcher ends the other, and the
    checkpoint stays.
    """
    run = tmp_path / "run"
    metrics = run / "metrics.jsonl"
    seldom = dict.fromkeys(("steps", "evaluate_every", "checkpoint_every"), 100_000)
    keys = {**corpus, **PMAP, **{f"training.{name}": v for name, v in seldom.items()}}
    line = [LAUNCH, 2, 2, "--", *arguments(run, keys)]

    def signal_second(number, lines):
        """Send a signal to the second process as soon as the log has so many lines."""
        script, said = processes.start("env", "GRACE=2", *line)
        while script.poll() is None and not (
            metrics.exists() and metrics.read_text().count("\n") >= lines
        ):
            time.sleep(0.02)
        children = ["pgrep", "-P", str(script.pid), "-f", "process_id=1"]
        found = subprocess.run(children, capture_output=True, check=True).stdout
        os.kill(int(found), number)
        return script.wait(timeout=200), said.read_text()

    code, words = signal_second(signal.SIGTERM, 2)
    assert code == 130, words
    (stopped,) = steps_of(run)
    assert stopped >= 4
    assert read_records(run)[-1]["step"] <= stopped
    ending = f"saved at step {stopped}; the same command continues from there"
    assert f"[0] another host: {ending}" in words
    code, words = signal_second(signal.SIGKILL, len(read_records(run)) + 1)
    assert code == 128 + signal.SIGKILL, words
    assert f"[0] resuming at step {stopped} of" in words
    assert steps_of(run) == [stopped]
    table = read_checkpoint(run, stopped)["params"]["embedding"]["table"]
    assert np.isfinite(table).all()


@pytest.mark.slow
def test_one_host_is_started_wrongly(processes, corpus, tmp_path):
    """What is wrong on one host ends all with the same line, and leaves nothing. The
    host with the wrong command line ends with 2.
    """
    run = tmp_path / "run"
    good = arguments(run, {**corpus, **PMAP})
    missing = ["train", f"--config={tmp_path / 'not.py'}", *good[2:]]
    seed, no_file = "training.seed is 0 on host 0 and 5 on host 1", "no configuration"
    other = [*good, "--config.training.seed=5"]
    for second, reason in ((other, seed), (missing, no_file)):
        cluster = [f"--coordinator={free_address()}", "--num_processes=2"]
        started = [
            processes.start(
                *(sys.executable, "-m", "jaxformer.cli.main", *words, *cluster),
                f"--process_id={number}",
            )
            for number, words in enumerate((good, second))
        ]
        for number, (process, said) in enumerate(started):
            usage = number == 1 and reason == no_file
            assert process.wait(timeout=120) == 1 + usage, said.read_text()
            error, *_ = (
                line
                for line in said.read_text().splitlines()
                if not line.startswith("[Gloo]")
            )
            other = "host 1: " if number == 0 and reason == no_file else ""
            assert error.startswith(f"jaxformer: error: {other}{reason}")
    assert not run.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_host_that_nobody_joins(processes, corpus, tmp_path, number):
    """A process whose others do not come ends in time, with one line."""
    process, said = processes.start(
        *(sys.executable, "-m", "jaxformer.cli.main"),
        *arguments(tmp_path / "run", corpus),
        *(f"--coordinator={free_address()}", "--num_processes=2"),
        *(f"--process_id={number}", "--distributed_timeout=1"),
    )
    assert process.wait(timeout=120) == 1
    (words,) = said.read_text().splitlines()
    assert words.startswith("jaxformer: error: ")
    assert "answer within 1 s: look at what the other processes said" in words
    assert not (tmp_path / "run").exists()


# Stands in for the interpreter: $PYTHON -c finds a port; otherwise it is a process.
STUB = """#!/usr/bin/env bash
[[ $1 == -c ]] && { echo 4321; exit; }
trap 'echo stopped; exit 130' TERM
trap 'echo interrupted; exit 130' INT
touch "$FOLDER/${*: -1}"
while true; do sleep 0.05; done
"""


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGTERM, "stopped"), (signal.SIGINT, "interrupted")]
)
def test_the_launcher_passes_signals_on(processes, tmp_path, number, word):
    stub = tmp_path / "stub"
    stub.write_text(STUB)
    stub.chmod(0o755)
    variables = f"PYTHON={stub}", f"FOLDER={tmp_path}", "GRACE=0"
    process, said = processes.start("env", *variables, LAUNCH, "2", "--", "train")
    while not all((tmp_path / f"--process_id={host}").exists() for host in "01"):
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    assert {f"[0] {word}", f"[1] {word}"} <= set(said.read_text().splitlines())
