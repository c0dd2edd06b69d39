"""Text becomes batches: data sets by name, vocabularies, length buckets, and a stream
that resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxformer.errors import lazy_names

if TYPE_CHECKING:
    from jaxformer.data.batching import (
        assign,
        cover,
        group,
        make_batch,
        plan_buckets,
    )
    from jaxformer.data.packing import (
        make_packed_batch,
        pack,
        plan_rows,
    )
    from jaxformer.data.store import Encoded, Sentences

__all__ = [
    "Encoded",
    "Sentences",
    "assign",
    "cover",
    "group",
    "make_batch",
    "make_packed_batch",
    "pack",
    "plan_buckets",
    "plan_rows",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batching": "assign cover group make_batch plan_buckets",
        "packing": "make_packed_batch pack plan_rows",
        "store": "Encoded Sentences",
    },
)
