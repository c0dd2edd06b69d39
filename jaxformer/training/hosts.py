"""What hosts that train together exchange: JSON values, as bytes in arrays."""

from __future__ import annotations

import functools
import json
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
    """Call ``make`` on the first host, and return its result, a JSON value, on all.

    No file is shared. An error is raised on every host, so that none waits forever.

    Raises:
        InputError: ``make`` raised it, on the first host.
        RuntimeError: on the other hosts, if ``make`` raised any other error.
    """
    made = together(lambda: make() if jax.process_index() == 0 else None)
    return cast("Made", gather(made)[0])


def together(make: Callable[[], Made]) -> Made:
    """Call ``make`` on every host; if it fails on one, all hosts fail, so that none
    waits forever.

    Within ``make`` hosts must not exchange anything.

    Raises:
        InputError: ``make`` raised it, here or on another host.
    """
    if jax.process_count() == 1:
        return make()
    made, fault = None, None
    try:
        made = make()
    except BaseException as error:
        fault = error
    failures = gather(None if fault is None else _describe(fault))
    if fault is not None:
        raise fault
    for host, failure in enumerate(failures):
        if failure is not None:
            mendable, words = failure
            raise (InputError if mendable else RuntimeError)(f"host {host}: {words}")
    return cast("Made", made)


def check_same(facts: Mapping[str, object], cure: str) -> None:
    """Refuse hosts that differ in what must be the same on all.

    Args:
        facts: JSON values by name.
        cure: what to do about a difference.

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
    """Return the JSON values of all hosts, in the order of the hosts."""
    if jax.process_count() == 1:
        return [value]
    message = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = np.asarray(
        multihost_utils.process_allgather(np.array([len(message)], np.int32))
    ).reshape(-1)
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(message)] = message
    messages = np.asarray(multihost_utils.process_allgather(padded))
    return [
        json.loads(row[:length].tobytes())
        for row, length in zip(messages.reshape(len(lengths), -1), lengths, strict=True)
    ]


def any_host(flag: bool) -> Any:
    """Return whether the flag is set on any host, all of which must ask. ``bool`` of
    the answer waits for it.

    With several hosts the devices compute the answer after the work they have.
    """
    if jax.process_count() == 1:
        return flag
    mesh = Mesh(np.array(jax.devices()), "devices")
    own = np.full(jax.local_device_count(), flag, np.int32)
    flags = jax.make_array_from_process_local_data(
        NamedSharding(mesh, PartitionSpec("devices")), own
    )
    return _most(mesh)(flags)


class StopVote:
    """Whether any host is to stop, on all hosts at the same turn of the loop.

    With several hosts a call returns the answer to the call before, for which nobody
    has to wait; with one host, its own flag.
    """

    def __init__(self) -> None:
        """Begin without a vote."""
        self._before: Any = False

    def __call__(self, flag: bool) -> bool:
        """Vote, and return whether to stop."""
        if jax.process_count() == 1:
            return flag
        before, self._before = self._before, any_host(flag)
        return bool(before)


@functools.cache
def _most(mesh: Mesh) -> Any:
    return jax.jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _describe(fault: BaseException) -> tuple[bool, str]:
    """Return whether a person can mend an error, and its words."""
    mendable = isinstance(fault, (InputError, OSError))
    return mendable, str(fault) if mendable else f"{type(fault).__name__}: {fault}"
