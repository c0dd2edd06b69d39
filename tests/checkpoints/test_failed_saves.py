"""Saves that fail: the last good checkpoint stays, and with space again the next
save works.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def arrays(step):
    table = np.random.default_rng(step).normal(size=(300, 300))
    return {"table": jnp.asarray(table, jnp.float32)}


def is_whole(manager, step):
    found = manager.restore(step, params=arrays(step))["params"]["table"]
    return np.array_equal(np.asarray(found), np.asarray(arrays(step)["table"]))


# A limit on the size of files fails the writes in the background, as a full disk does.
FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, "tests")
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import jax.numpy as jnp
from checkpoints.test_failed_saves import arrays, is_whole
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.errors import InputError

def space(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def save(step, scores=None):
    trees = arrays(step), {"step": jnp.int32(step)}
    try:
        manager.save(step, *trees, {"step": step}, scores)
    except InputError as error:
        told.append(str(error))

told = []
manager = CheckpointManager(Path(sys.argv[1]), keep_latest=2)
save(1)
save(2)
manager.wait()
space(20_000)
save(3)
save(4)
assert len(told) == 1, told
# Adding scores needs space too; the checkpoint without them stays.
save(2, {"bleu": 3.0})
assert len(told) == 2, told
assert manager.steps == [1, 2], manager.steps
assert all(is_whole(manager, step) for step in manager.steps)
assert manager.scores(2) == {}
space(resource.RLIM_INFINITY)
manager.remove_leftovers()
save(2, {"bleu": 3.0})
save(5)
manager.wait()
assert manager.steps == [2, 5], manager.steps
assert all(is_whole(manager, step) for step in manager.steps)
assert manager.scores(2) == {"bleu": 3.0}
manager.close()
for line in told:
    print(line)
"""


def test_a_disk_that_is_full_for_a_while(tmp_path):
    """Saves that fail in the background are told, each once in one line, nothing good
    is removed, and the next save with space works.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL, tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"could not save a checkpoint in {tmp_path}: ")
        assert line.endswith("; the last good checkpoint is step 2")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "5"]
