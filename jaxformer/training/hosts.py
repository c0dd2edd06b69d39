"""What hosts that train together tell each other."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.errors import InputError

Made = TypeVar("Made")


def make_once(make: Callable[[], Made]) -> Made:
    """Call ``make`` on the first host alone and give its result to all; what can be
    pickled can be given.

    No file is shared. An error that a person can mend is raised on every host, so that
    none waits for ever.

    Raises:
        InputError: ``make`` raised it, on the first host.
        RuntimeError: on the other hosts, where ``make`` failed by any other error on
            the first.
    """
    if jax.process_count() == 1:
        return make()
    message, fault = b"", None
    if jax.process_index() == 0:
        try:
            message = pickle.dumps(("made", make()))
        except InputError as error:
            message = pickle.dumps(("refused", str(error)))
        # the other hosts must not wait for what will not come
        except BaseException as error:
            message, fault = (
                pickle.dumps(
                    ("failed", f"{type(error).__name__} on the first host: {error}")
                ),
                error,
            )
    kind, value = pickle.loads(_from_first(message))
    if fault is not None:
        raise fault
    if kind == "refused":
        raise InputError(value)
    if kind == "failed":
        raise RuntimeError(value)
    return value


def together(make: Callable[[], Made]) -> Made:
    """Call ``make`` on every host, each for itself; where it fails on one, all hosts
    fail, so that none waits for ever.

    Within ``make`` hosts must not tell each other anything.

    Raises:
        InputError: ``make`` raised it, here or on another host.
    """
    if jax.process_count() == 1:
        return make()
    made, fault = None, None
    try:
        made = make()
    except Exception as error:
        fault = error
    told = gather(None if fault is None else (_is_mendable(fault), _words(fault)))
    if fault is not None:
        raise fault
    for host, failure in enumerate(told):
        if failure is not None:
            mendable, words = failure
            raise (InputError if mendable else RuntimeError)(f"host {host}: {words}")
    return cast("Made", made)


def check_same(facts: Mapping[str, object], cure: str) -> None:
    """Refuse hosts that differ in what must be the same on all.

    Args:
        facts: values that can be pickled, by what they are called.
        cure: what to do about it.

    Raises:
        InputError: they differ; on every host, with the first fact that does.
    """
    first, *others = gather(dict(facts))
    for host, other in enumerate(others, start=1):
        for name in dict.fromkeys([*first, *other]):
            ours, theirs = first.get(name), other.get(name)
            if ours != theirs:
                raise InputError(
                    f"{name} is {ours} on host 0 and {theirs} on host {host}: {cure}"
                )


def gather(value: Made) -> list[Made]:
    """Give every host the values of all, in the order of the hosts; what can be
    pickled can be given.
    """
    if jax.process_count() == 1:
        return [value]
    message = np.frombuffer(pickle.dumps(value), np.uint8)
    lengths = np.asarray(_all(np.array([len(message)], np.int32))).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(message)] = message
    messages = np.asarray(_all(padded)).reshape(len(lengths), -1)
    return [
        pickle.loads(row[:length].tobytes())
        for row, length in zip(messages, lengths, strict=True)
    ]


def any_host(flag: bool) -> Any:
    """Ask whether the flag is set on any host, all of which must ask; ``bool`` of the
    answer waits for it.

    On several hosts the answer comes from the devices in its turn, so that a loop that
    reads it a step late does not wait.
    """
    if jax.process_count() == 1:
        return flag
    mesh = Mesh(np.array(jax.devices()), "devices")
    own = np.full(jax.local_device_count(), flag, np.int32)
    flags = jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("devices")), own
    )
    return _most(mesh)(flags)


@functools.cache
def _most(mesh: Mesh) -> Any:
    return jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _is_mendable(fault: Exception) -> bool:
    return isinstance(fault, (InputError, OSError))


def _words(fault: Exception) -> str:
    return str(fault) if _is_mendable(fault) else f"{type(fault).__name__}: {fault}"


def _all(array: np.ndarray) -> Any:
    return multihost_utils.process_allgather(array)


def _from_first(message: bytes) -> bytes:
    """Give every host the first one's bytes."""
    length = _broadcast(np.array([len(message)], np.int32))
    content = np.zeros(int(length[0]), np.uint8)
    if jax.process_index() == 0:
        content[:] = np.frombuffer(message, np.uint8)
    return _broadcast(content).tobytes()


def _broadcast(array: np.ndarray) -> np.ndarray:
    received: Any = multihost_utils.broadcast_one_to_all(array)
    return np.asarray(received)
