"""How a server listens, groups sentences into batches, and limits its clients."""

from __future__ import annotations

import dataclasses

from jaxformer.errors import check_keys, key


@dataclasses.dataclass(frozen=True)
class ServingConfig:
    """The settings of a server.

    Raises:
        InputError: a value is out of range.
    """

    rows: int = key(
        0,
        least=0,
        most=4096,
        flag="N",
        help="most sentences of a batch (default: 16 on a CPU, 64 on a GPU or TPU)",
    )
    queue: int = key(
        1024, least=1, flag="N", help="most sentences that wait; further ones get 503"
    )
    timeout: float = key(
        30.0,
        above=0,
        flag="SECONDS",
        help="a request that still waits after these ends with 504",
    )
    body_timeout: float = key(
        10.0,
        above=0,
        flag="SECONDS",
        help="a request whose body takes longer to arrive ends with 408",
    )
    drain: float = key(
        0.0,
        least=0,
        flag="SECONDS",
        help="how long to accept requests after SIGTERM, while /ready says no",
    )
    grace: float = key(
        30.0,
        above=0,
        flag="SECONDS",
        help="how long requests may go on after that",
    )
    max_body: int = key(
        262_144, least=1024, flag="BYTES", help="most bytes of a request's body"
    )
    max_characters: int = key(
        5000, least=0, flag="N", help="most characters of a text; 0: no limit"
    )
    max_texts: int = key(50, least=1, flag="N", help="most texts of a request")
    connections: int = key(
        512, least=1, flag="N", help="most connections; further ones get 503"
    )
    rate: int = key(
        0,
        least=0,
        flag="N",
        help="most sentences a minute of a key, or else an address; 0: no limit",
    )

    def __post_init__(self) -> None:
        """Check the values."""
        check_keys("serving", self)
