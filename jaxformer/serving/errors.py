"""The one kind of error that a request is answered with."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_SURROGATES = re.compile(r"[\ud800-\udfff]")


@dataclasses.dataclass(eq=False)
class ServingError(Exception):
    """A request that cannot be answered. Each protocol writes it in its own form.

    Attributes:
        status: of HTTP.
        code: a word for programs, such as ``text_too_long``.
        message: one line with the rule, the value and the cure.
        field: of the request that is wrong.
        limit: that was exceeded.
        given: what exceeded it.
        retry_after: seconds after which the same request may succeed.
    """

    status: int
    code: str
    message: str
    field: str | None = None
    limit: float | None = None
    given: Any = None
    retry_after: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as ``{"code", "message"}`` with ``field``, ``limit`` and ``given``
        where they are known.
        """
        names = "code", "message", "field", "limit", "given"
        facts = {name: getattr(self, name) for name in names}
        return {name: fact for name, fact in facts.items() if fact is not None}


def draining() -> ServingError:
    """Return the error of a request that comes as the server ends."""
    return ServingError(
        503, "draining", "the server ends: try again in a moment", retry_after=1
    )


def replace_surrogates(text: str) -> str:
    """Return a text with U+FFFD in place of each lone surrogate."""
    return _SURROGATES.sub("\ufffd", text)
