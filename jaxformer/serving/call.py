"""A request on its way, for its limits, its log line and metrics.

Handlers, and what they call, reach it by :func:`current`::

    call = current()
    call.authorize(fields)         # once the fields of the request are read
    call.spend(len(lines))         # before there is work
    call.owe(len(sentences) - len(lines))    # once the sentences are known
    call.note(kind="plain", queue_seconds=0.2)
    call.refused(error)            # where an error becomes an answer
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from jaxformer.serving.access import Keys, Rates, name_client
from jaxformer.serving.errors import ServingError

# Where a client may have its key, but for a header.
KEY_FIELDS = ("api_key", "auth_key")


@dataclasses.dataclass
class Call:
    """What is known of a request.

    Attributes:
        id: of the request, a word.
        method: of HTTP, or ``other``.
        route: the path's template, once the request has ended.
        address: of the client.
        key: the name of the client's key, once that is known.
        status: of the answer; 499: the client left before its end.
        seconds: until the answer ended.
        code: of the error that is the answer.
        fault: what caused an error 500.
        facts: for the log, see :meth:`note`.
    """

    id: str = ""
    method: str = ""
    route: str = "other"
    address: str = ""
    key: str | None = None
    status: int = 0
    seconds: float = 0.0
    code: str | None = None
    fault: BaseException | None = None
    facts: dict[str, float | str] = dataclasses.field(default_factory=dict)
    authorization: str = dataclasses.field(default="", repr=False)
    keys: Keys | None = dataclasses.field(default=None, repr=False)
    rates: Rates | None = dataclasses.field(default=None, repr=False)

    @property
    def client(self) -> str:
        """Who asks, see :func:`~jaxformer.serving.access.name_client`."""
        return name_client(self.key, self.address)

    def authorize(self, fields: Mapping[str, Any]) -> None:
        """Find out whose request this is, by a key in ``Authorization`` (``Bearer`` or
        ``DeepL-Auth-Key``) or in the field ``api_key`` or ``auth_key``.

        Without a file of keys every request is authorized.

        Raises:
            ServingError: 403 ``key``: no key is given, or none that is known.
        """
        if self.keys is None:
            return
        scheme, _, header = self.authorization.strip().partition(" ")
        candidates = [fields.get(name) for name in KEY_FIELDS]
        if scheme.lower() in ("bearer", "deepl-auth-key"):
            candidates.append(header.strip())
        given = [each for each in candidates if isinstance(each, str) and each]
        for key in given:
            self.key = self.key or self.keys.find(key)
        if self.key is None:
            raise ServingError(
                403,
                "key",
                "the API key is not known: ask the operator of the server for one"
                if given
                else "an API key is needed: send Authorization: Bearer KEY, or ask the"
                " operator of the server for one",
            )

    def spend(self, sentences: int) -> None:
        """Count the sentences of the request against the rate of its client.

        Raises:
            ServingError: 429 ``rate``: too many, with ``retry_after``; 403 ``key``: the
                server has keys and the request none.
        """
        if self.keys is not None and self.key is None:
            self.authorize({})
        if self.rates is not None:
            self.rates.spend(self.key, self.address, sentences)

    def owe(self, sentences: int) -> None:
        """Count further sentences of a request without refusing it: the next one waits
        for them.
        """
        if self.rates is not None:
            self.rates.spend(self.key, self.address, sentences, owed=True)

    def note(self, **facts: float | str) -> None:
        """Keep facts for the log, see :mod:`jaxformer.serving.log` for those known."""
        self.facts.update(facts)

    def refused(self, error: BaseException) -> None:
        """Keep the code of an error that becomes the answer, and the cause of 500."""
        is_known = isinstance(error, ServingError)
        self.code = error.code if is_known else "internal"
        if self.code == "internal":
            self.fault = error.__cause__ or error


CALL: ContextVar[Call] = ContextVar("call")


def current() -> Call:
    """Return the call that is being answered; outside of a guard one without limits."""
    return CALL.get(None) or Call()
