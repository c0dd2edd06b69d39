"""``scripts/chaos.py``: a run that is killed again and again ends as if nothing had
happened; otherwise it says so.
"""

import argparse
import importlib.util
import json
import re
import shutil
import sys

import pytest
from system.processes import arguments
from training.little import assert_same_run, steps_of

import runs
from jaxformer.errors import InputError

SCRIPT = runs.ROOT / "scripts" / "chaos.py"
# It saves often, so that kills meet saves.
OFTEN = {"training.steps": 16, "training.log_every": 5, "training.evaluate_every": 5}
OFTEN |= {"training.checkpoint_every": 2, "training.ema_decay": 0.9}
OFTEN |= {"data.num_buckets": 1}


@pytest.fixture(scope="module")
def chaos():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("chaos", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["chaos"] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec.loader.exec_module(module)
    yield module
    del sys.modules["chaos"]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_chaos(processes, corpus, chaos, tmp_path):
    """Killed without warning, or asked to stop, while it starts, compiles, trains,
    evaluates and saves, a run with dropout and a moving average ends with the
    parameters, the average, the optimizer, the random key, the counters and the
    records of an undisturbed one, bit for bit. Of two other runs each difference is
    named.
    """
    straight, killed = tmp_path / "straight", tmp_path / "killed-ANY-0"
    _, config, _, *overrides = arguments(tmp_path, {**corpus, **OFTEN})
    options = [f"--workdir={tmp_path}", "--kills=5", "--signal=ANY"]
    process, said = processes.start(
        sys.executable, SCRIPT, config, *options, *overrides
    )
    assert process.wait() == 0, said.read_text()
    lines = said.read_text().splitlines()
    hits = re.findall(r"(?m)^kill .* hit (\w+) .* exit code (-?\d+)", "\n".join(lines))
    assert len(hits) == 5
    assert len({phase for phase, _ in hits}) >= 4, lines
    assert {code for _, code in hits} <= {"-9", "-15", "-2", "130"}
    ending = f"{killed} ended as {straight} did, bit for bit and line for line"
    assert lines[-1] == ending
    assert_same_run(killed, straight)
    assert steps_of(killed) == steps_of(straight)
    assert all(path.name.isdecimal() for path in (killed / "checkpoints").iterdir())

    metrics = killed / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]

    def compare(*changed):
        metrics.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return sys.modules["chaos_runs"].compare_records(
            metrics, straight / "metrics.jsonl"
        )

    assert compare({**lines[0], "train/tokens_per_second": 1.0}, *lines[1:]) == []
    changed = compare(lines[0], {**lines[1], "valid/nll": 1.0}, *lines[2:])
    assert changed == ["metrics.jsonl, line 2: valid/nll"]
    few = f"metrics.jsonl: {len(lines) - 1} and {len(lines)} lines"
    assert compare(*lines[:-1]) == [few]
    shutil.rmtree(killed / "checkpoints" / "16")
    step, *rest = chaos.compare(killed, straight)
    assert step == f"step: {steps_of(killed)[-1]} and 16"
    arrays = {line.partition("]")[0] for line in rest if line.endswith("differ")}
    assert arrays >= {"['params'", "['training'"}
    assert any(line.startswith("counter position: ") for line in rest)
    assert rest[-1] == few


def test_an_existing_run_is_not_touched(chaos, corpus, tmp_path):
    (tmp_path / "killed-INT-0").mkdir()
    _, config, _, *overrides = arguments(tmp_path, corpus)
    file = config.removeprefix("--config=")
    options = argparse.Namespace(config=file, workdir=tmp_path, signal="INT", seed=0)
    with pytest.raises(InputError, match=r"killed-INT-0 is there already: choose"):
        chaos.chaos(options, overrides)
    assert [path.name for path in tmp_path.iterdir()] == ["killed-INT-0"]
