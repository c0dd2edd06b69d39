"""A folder that one process at a time works in."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TextIO

from jaxformer.errors import InputError

LOCK = ".lock"
"""The empty file by which a folder is held."""


def hold(directory: Path, refusal: str) -> TextIO:
    """Hold a folder for this process, or refuse at once where another holds it.

    File systems without locks, as some networks have, hold nothing and refuse nothing.

    Args:
        directory: the folder; it is there.
        refusal: the one line for whoever comes second, with the cure.

    Returns:
        An open file. The folder is held until it is closed or the process ends, however it ends.

    Raises:
        InputError: ``refusal``, where another process, or this one, holds the folder.
    """
    lock = (directory / LOCK).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InputError(refusal) from None
    except OSError:
        pass  # a file system without locks
    return lock
