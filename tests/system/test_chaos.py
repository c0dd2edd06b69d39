"""``scripts/chaos.py``: a run that is killed again and again ends as if nothing had
happened.
"""

import re
import sys

import pytest
from system.processes import arguments
from training.little import assert_same_run, steps_of

import runs

SCRIPT = runs.ROOT / "scripts" / "chaos.py"
# It saves often, so that kills meet saves.
OFTEN = {"training.steps": 16, "training.log_every": 5, "training.evaluate_every": 5}
OFTEN |= {"training.checkpoint_every": 2, "training.ema_decay": 0.9}
OFTEN |= {"data.num_buckets": 1}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_chaos(processes, corpus, tmp_path):
    """Killed without warning, or asked to stop, while it starts, compiles, trains,
    evaluates and saves, a run with dropout and a moving average ends with the
    parameters, the average, the optimizer, the random key, the counters and the
    records of an undisturbed one, bit for bit.
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
