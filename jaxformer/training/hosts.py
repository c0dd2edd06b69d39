"""What one host does for all of a run on several: the others wait, and get the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxformer.errors import InputError

Made = TypeVar("Made")


def make_once(make: Callable[[], Made]) -> Made:
    """Call ``make`` on the first host alone and give its result to all; what can be pickled can be given.

    No file is shared. An error that a person can mend is raised on every host, so that none waits for ever.

    Raises:
        InputError: ``make`` raised it, on the first host.
    """
    if jax.process_count() == 1:
        return make()
    message, fault = b"", None
    if jax.process_index() == 0:
        try:
            message = pickle.dumps(("made", make()))
        except InputError as error:
            message = pickle.dumps(("refused", str(error)))
        except BaseException as error:  # the other hosts must not wait for what will not come
            message, fault = pickle.dumps(("failed", f"{type(error).__name__} on the first host: {error}")), error
    kind, value = pickle.loads(_from_first(message))
    if fault is not None:
        raise fault
    if kind == "refused":
        raise InputError(value)
    if kind == "failed":
        raise RuntimeError(value)
    return value


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
