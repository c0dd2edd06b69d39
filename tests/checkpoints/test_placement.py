"""Several processes save and restore one checkpoint together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxformer.checkpoints.saved import SavedCheckpoints

ROOT = Path(__file__).resolve().parents[2]

PROCESS = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax
import numpy as np
from pathlib import Path
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.experimental.multihost_utils import sync_global_devices
from jaxformer import bucket
from jaxformer.checkpoints import manager as module
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.checkpoints.saved import SavedCheckpoints

changes = []
settle = module._settle
module._settle = lambda replaced: changes.append(replaced.name) or settle(replaced)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "fsdp"))
sharded, copied, both = (
    NamedSharding(mesh, PartitionSpec(*axes))
    for axes in (["fsdp"], [], ["data", "fsdp"])
)
table = np.arange(32, dtype=np.float32).reshape(8, 4)

def place(value, sharding):
    return jax.make_array_from_callback(value.shape, sharding, value.__getitem__)

def save(step, scores):
    params = {"table": place(table * step, sharded)}
    manager.save(step, params, {"step": place(np.int32([step]), copied)}, {}, scores)

directory = bucket.open_directory(sys.argv[3]) / "checkpoints"
manager = CheckpointManager(directory, keep_latest=2)
manager.remove_leftovers()
for step in (4, 8, 12):
    save(step, None)
# Saved again with its scores, and so replaced.
save(12, {"bleu": 3.0})
manager.wait()
like = {"table": jax.ShapeDtypeStruct((8, 4), np.float32, sharding=both)}
sync_global_devices("saved")
# Of a bucket, what it holds now.
again = SavedCheckpoints(bucket.open_directory(sys.argv[3]) / "checkpoints")
found = again.restore(12, params=like)["params"]["table"]
assert found.sharding == like["table"].sharding
shards = found.addressable_shards
right = all(np.array_equal(each.data, 12 * table[each.index]) for each in shards)
print(manager.steps, manager.best(), right, changes)
manager.close()
if jax.process_index() == 0:
    bucket.push(directory)
"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_two_processes_save_and_restore_together(tmp_path, scheme):
    """On a shared disk each process saves and restores its own shards, and only the
    first renames and removes folders while the other waits. In a bucket each process
    works in a mirror of its own. One process reads the result.
    """
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    if not scheme:
        (directory / "2.orbax-checkpoint-tmp").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PROCESS,
                address,
                str(number),
                f"{scheme}{tmp_path}",
            ],
            cwd=ROOT,
            # A bucket has no folders to be made.
            env={**os.environ, "FSSPEC_FILE_AUTO_MKDIR": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], [
        error.decode()[-2000:] for _, error in outputs
    ]
    first, second = (output.decode().splitlines()[-1] for output, _ in outputs)
    assert first == "[8, 12] 12 True ['12.replaced']"
    settled = "['12.replaced']" if scheme else "[]"
    assert second == f"[8, 12] 12 True {settled}"
    left = {path.relative_to(directory).parts[0] for path in directory.rglob("*.json")}
    assert left == {"12", "8"}
    like = {"table": np.zeros((8, 4), np.float32)}
    found = SavedCheckpoints(directory).restore(12, params=like)["params"]["table"]
    np.testing.assert_array_equal(found, 12.0 * np.arange(32).reshape(8, 4))
