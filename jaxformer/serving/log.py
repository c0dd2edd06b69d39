"""The log of requests: one line of JSON each, without texts, keys and addresses."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from jaxformer.serving.call import Call

# The facts of a call that are written, see Call.note.
_FACTS = ("kind", "queue_seconds", "sentences", "characters")


class RequestLog:
    """Writes a line for each request that has ended; a guard calls it.

    A line has ``time`` (UTC), ``id``, ``method``, ``route`` (a template, without the
    query), ``status`` (499: the client left), ``seconds``, and where they are known
    ``queue_seconds``, ``sentences``, ``characters``, ``kind`` and the ``code`` of an
    error. An error 500 has ``fault``, the name of its class, and ``trace``, the places
    in the code; its message may show a text and is not written.

    Lines that cannot be written, as on a full disk, are lost.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        addresses: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Write to a stream.

        Args:
            stream: such as ``sys.stderr``.
            addresses: whether a line has the ``address`` of the client.
            clock: seconds since 1970.
        """
        self._stream, self._addresses, self._clock = stream, addresses, clock

    def __call__(self, call: Call) -> None:
        """Write the line of a call."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(self._clock(), UTC).isoformat(
                timespec="milliseconds"
            ),
            "id": call.id,
            "method": call.method,
            "route": call.route,
            "status": call.status,
            "seconds": round(call.seconds, 4),
        }
        for name in _FACTS:
            fact = call.facts.get(name)
            if fact is not None:
                line[name] = round(fact, 4) if isinstance(fact, float) else fact
        if call.code is not None:
            line["code"] = call.code
        if call.fault is not None:
            line |= {"fault": type(call.fault).__name__, "trace": _trace(call.fault)}
        if self._addresses:
            line["address"] = call.address
        with contextlib.suppress(OSError, ValueError):  # a full disk; a closed stream
            self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._stream.flush()


def _trace(fault: BaseException) -> list[str]:
    """Return where an error came from, the innermost place last."""
    return [
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(fault.__traceback__)
    ]
