"""How a server listens, groups sentences into batches, and limits its clients."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import re
from collections.abc import Sequence

from jaxformer.errors import InputError, check_keys, key

MOST_SEARCHES = 64
"""Most batches that are searched at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingConfig:
    """The settings of a server.

    Raises:
        InputError: a value is out of range.
    """

    host: str = key("127.0.0.1", flag="ADDRESS", help="to listen on")
    port: int = key(
        5000, least=0, most=65535, flag="N", help="to listen on (default 5000); 0: any"
    )
    root_path: str = key(
        "", flag="PATH", help="of the server behind a proxy, such as /mt"
    )
    keys: str | None = key(
        None,
        flag="FILE",
        help="clients need a key; each line is a name, a colon and the key's SHA-256",
    )
    no_page: bool = key(False, help="no page, only the interfaces of programs")
    log: str = key(
        "json",
        choices=("json", "off"),
        flag="FORM",
        help="json (default): a line for each request on standard error; off: none",
    )
    log_addresses: bool = key(False, help="a line of the log has its client's address")
    rows: int = key(
        0,
        least=0,
        most=4096,
        flag="N",
        help="most sentences of a batch (default: 16 on a CPU, 64 on a GPU or TPU)",
    )
    searches: int = key(
        0,
        least=0,
        most=MOST_SEARCHES,
        flag="N",
        help="batches searched at a time (default: 2 on a CPU of two or more cores)",
    )
    queue: int = key(
        1024,
        least=1,
        flag="N",
        help="most sentences that wait; a client above its share then gets 503",
    )
    timeout: float = key(
        30.0,
        above=0,
        flag="SECONDS",
        help="a request that still waits after these ends with 504",
    )
    grace: float = key(
        30.0,
        above=0,
        flag="SECONDS",
        help="how long requests may continue after SIGTERM",
    )
    max_body: int = key(
        262_144, least=1024, flag="BYTES", help="most bytes of a request's body"
    )
    max_characters: int = key(
        5000, least=0, flag="N", help="most characters of a text; 0: no limit"
    )
    max_texts: int = key(50, least=1, flag="N", help="most texts of a request")
    connections: int = key(
        512, least=1, flag="N", help="most connections; 503 to requests above it"
    )
    rate: int = key(
        0,
        least=0,
        flag="N",
        help="most sentences a minute of a key, or else an address; 0: no limit",
    )
    cors: Sequence[str] = key(
        (), flag="ORIGIN", help="whose pages may read answers, or *; may be repeated"
    )
    allowed_host: Sequence[str] = key(
        (), flag="NAME", help="a name that clients may use; may be repeated"
    )
    trusted_proxy: Sequence[str] = key(
        (), flag="IP", help="X-Forwarded-For of it is believed; may be repeated"
    )
    glossary: Sequence[str] = key(
        (),
        flag="[PAIR:]FILE",
        help="terms that translations keep to, each on a line with a tab and its"
        " translation; of several pairs, once for each, as en-de:FILE",
    )

    def __post_init__(self) -> None:
        """Check the values."""
        check_keys("serving", self)
        if not re.fullmatch(r"(/[\w.~-]+)*", self.root_path):
            raise InputError(
                f"serving.root_path must be like /mt, not {self.root_path!r}: begin"
                " with a slash, and end without one"
            )
        # A value of another form would be believed, and match no request.
        for origin in self.cors:
            if not re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+", origin):
                raise InputError(
                    f"serving.cors must be like https://example.org, not {origin!r}: a"
                    " scheme and a name in lower case, without a path; or *"
                )
        for address in self.trusted_proxy:
            with contextlib.suppress(ValueError):
                if address == "*" or ipaddress.ip_network(address):
                    continue
            raise InputError(
                f"serving.trusted_proxy must be like 127.0.0.1, not {address!r}: an IP"
                " address or network; or *"
            )
