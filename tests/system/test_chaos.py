"""``scripts/chaos.py``: a run that is killed again and again ends as if nothing had
happened; else it says so.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from training.little import assert_same_run, steps_of

from jaxformer.runs.training import TrainingConfig

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "chaos.py"


@pytest.fixture(scope="module")
def chaos():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("chaos", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["chaos"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Return the directory that the runs of this file share: the straight one is made
    once.
    """
    return tmp_path_factory.mktemp("chaos")


@pytest.fixture
def kill(command, workdir):
    """Return a function that runs the script: its exit code and its lines."""

    def run(number, kills, *changes):
        _, config, _, *overrides = command.arguments(workdir)
        done = subprocess.run(
            [
                *(
                    sys.executable,
                    SCRIPT,
                    config,
                    f"--workdir={workdir}",
                    f"--kills={kills}",
                    f"--signal={number}",
                ),
                *(*overrides, "--config.training.ema_decay=0.9", *changes),
            ],
            cwd=ROOT,
            env=command.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()

    return run


def hits(lines):
    """Read the phase and the exit code of each kill."""
    found = (
        re.match(
            r"kill +\d+  SIG\w+ +aimed at \w+ +hit (\w+) +at step +\d+  exit code"
            r" (-?\d+)",
            x,
        )
        for x in lines
    )
    return [(match[1], int(match[2])) for match in found if match]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("name", "kills", "codes", "phases"),
    [("KILL", 20, {-9}, 5), ("TERM", 6, {130, -15}, 3)],
)
def test_chaos(kill, workdir, name, kills, codes, phases):
    """Killed without warning, or asked to stop, while it starts, compiles, trains,
    evaluates and saves, and often, a run with dropout and a moving average ends with
    the parameters, the average, the optimizer, the random key, the counters and the
    records of one that nobody disturbed, bit for bit.
    """
    code, lines = kill(name, kills)
    assert code == 0, "\n".join(lines)
    found = hits(lines)
    assert len(found) == kills
    assert len({phase for phase, _ in found}) >= phases, "\n".join(lines)
    assert {exit_code for _, exit_code in found} <= codes
    assert (
        lines[-1]
        == f"{workdir / f'killed-{name}-0'} ended as {workdir / 'straight'} did, bit"
        " for bit and line for line"
    )
    assert_same_run(workdir / f"killed-{name}-0", workdir / "straight")
    checkpoints = workdir / f"killed-{name}-0" / "checkpoints"
    assert [
        path.name for path in checkpoints.iterdir() if not path.name.isdecimal()
    ] == []


def test_exit_codes(chaos):
    """Only SIGKILL may end at once a process that has something to save; what else
    comes is a fault.
    """
    kill, stop = chaos.SIGNALS["KILL"], chaos.SIGNALS["TERM"]
    for stoppable in (True, False):
        assert [
            code
            for code in (-15, -9, 0, 1, 130)
            if chaos.is_known(code, kill, stoppable)
        ] == [-9]
    assert [
        code for code in (-15, -9, 0, 1, 130) if chaos.is_known(code, stop, True)
    ] == [130]
    assert [
        code for code in (-15, -9, 0, 1, 130) if chaos.is_known(code, stop, False)
    ] == [-15, 0, 130]


@pytest.fixture
def pair(straight, tmp_path):
    """Return two copies of a finished run."""
    return [
        Path(shutil.copytree(straight, tmp_path / name))
        for name in ("found", "expected")
    ]


@pytest.mark.slow
def test_what_differs_is_named(chaos, pair, tmp_path):
    """Equal runs have no differences, whatever the machine measured; one number of the
    log, one missing line, another step and another seed are each found.
    """
    found, expected = pair
    metrics = found / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]

    def write(changed):
        metrics.write_text("".join(json.dumps(line) + "\n" for line in changed))

    write(
        [
            {**line, "train/tokens_per_second": 1.0} if "train/loss" in line else line
            for line in lines
        ]
    )
    assert chaos.compare(found, expected) == []
    write([*lines[:2], {**lines[2], "valid/nll": 1.0}, *lines[3:]])
    assert chaos.compare(found, expected) == ["metrics.jsonl, line 3: valid/nll"]
    write(lines[:-1])
    assert chaos.compare(found, expected) == [
        f"metrics.jsonl: {len(lines) - 1} and {len(lines)} lines"
    ]
    write(lines)
    shutil.rmtree(found / "checkpoints" / "40")
    step, *rest = chaos.compare(found, expected)
    assert step == f"step: {steps_of(found)[-1]} and 40"
    assert any(
        line.startswith("['params']['embedding']") and line.endswith("numbers differ")
        for line in rest
    )
    assert any(line.startswith("['training']['optimizer']") for line in rest)
    assert any(line.startswith("counter position: ") for line in rest)


def test_kills_are_drawn_from_the_seed(chaos):
    """The same seed draws the same kills; all phases come equally often, in the order
    of the run's steps, early enough and within the time that the phase lasts.
    """
    durations = {"starting": 3.0, "training": 0.5, "evaluating": 1.0, "saving": 0.1}

    class Options:
        kills, seed, signal = 40, 3, "ANY"

    config = TrainingConfig(steps=1_000, evaluate_every=100)
    kills = chaos.plan(Options, config, durations)
    assert kills == chaos.plan(Options, config, durations)
    assert {
        phase: sum(kill.phase == phase for kill in kills) for phase in durations
    } == dict.fromkeys(durations, 10)
    assert [kill.step for kill in kills] == sorted(kill.step for kill in kills)
    assert all(
        0 <= kill.step <= 800 and 0.0 <= kill.seconds <= durations[kill.phase]
        for kill in kills
    )
    assert {kill.signal.name for kill in kills} == {"SIGKILL", "SIGTERM", "SIGINT"}


def test_a_run_that_is_there(command, kill, workdir):
    """The script makes a killed run once; it does not touch one that is there."""
    (workdir / "killed-INT-0").mkdir()
    code, lines = kill("INT", 1)
    assert code == 1
    assert lines == [
        f"chaos: error: {workdir / 'killed-INT-0'} is there already: choose another"
        " --seed, or remove it"
    ]
