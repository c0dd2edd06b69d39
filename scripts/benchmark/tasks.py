"""What the systems of a comparison of training share: the size of the model, and the
batches of its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxformer.data.batching import Batch
from jaxformer.data.store import Encoded, Sentences

PAD, UNK, BOS, EOS, FIRST = 0, 1, 2, 3, 4
"""Tokens, as a vocabulary of jaxformer has them, and the first one that is text."""


PACKED_LENGTH = 128
"""Slots of a row of several pairs."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A Transformer of the paper with tied embeddings, and batches of a fixed shape or
    of real text.

    Attributes:
        d_model, d_ff, num_heads, num_layers, vocabulary_size: of the model; as many
            layers on either side.
        rows: sentences of a batch of fixed shape.
        length: their tokens, on either side.
        tokens_per_batch: most slots of a batch of real text, on either side.
        dropout_rate: on sub-layer outputs and on the embeddings.
        label_smoothing: epsilon, shared among all tokens, as PyTorch does.
    """

    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    num_layers: int = 6
    vocabulary_size: int = 32_000
    rows: int = 32
    length: int = 32
    tokens_per_batch: int = 2048
    dropout_rate: float = 0.1
    label_smoothing: float = 0.1


class Learner(Protocol):
    """A model in any framework that learns and is measured."""

    def run(self, batches: Iterable[Batch]) -> None:
        """Update once with each batch, and wait until that is done."""
        ...

    def batches(self, pairs: Encoded) -> list[Batch]:
        """Make the batches of real text that suit it best."""
        ...


TASKS: Mapping[str, Task] = {
    "base": Task(),
    "big": Task(d_model=1024, d_ff=4096, num_heads=16),
    "tiny": Task(
        d_model=256,
        d_ff=1024,
        num_heads=4,
        num_layers=3,
        vocabulary_size=8_000,
        rows=64,
    ),
}
"""The paper's models on 32 sentences of 32 tokens, and a small one on 64."""


def fixed_batches(task: Task, count: int, seed: int = 0) -> list[Batch]:
    """Draw batches of one shape without any padding, each target with an end."""
    rng = np.random.default_rng(seed)
    shape = count, 2, task.rows, task.length
    tokens = rng.integers(FIRST, task.vocabulary_size, shape, dtype=np.int32)
    tokens[..., -1] = EOS
    return [{"source": source, "target": target} for source, target in tokens]


def sorted_batches(pairs: Encoded, tokens_per_batch: int, seed: int = 0) -> list[Batch]:
    """Cut pairs that are sorted by length into batches under the budget, padded to
    their longest, and shuffle those.

    With shapes that need not be few, this leaves the least padding; it is how fairseq
    and its like make batches.
    """
    source, target = pairs.source_lengths, pairs.target_lengths
    batches: list[Batch] = []
    rows: list[int] = []
    longest = (0, 0)
    for index in np.lexsort((source, target)):
        grown = max(longest[0], int(source[index])), max(longest[1], int(target[index]))
        if rows and max(grown) * (len(rows) + 1) > tokens_per_batch:
            batches.append(_pad(pairs, rows, longest))
            rows, grown = [], (int(source[index]), int(target[index]))
        rows.append(int(index))
        longest = grown
    batches.append(_pad(pairs, rows, longest))
    return [
        batches[number]
        for number in np.random.default_rng(seed).permutation(len(batches))
    ]


def _pad(pairs: Encoded, rows: Sequence[int], longest: tuple[int, int]) -> Batch:
    taken = pairs.take(np.asarray(rows))
    return {
        "source": taken.source.padded(len(rows), longest[0]),
        "target": taken.target.padded(len(rows), longest[1]),
    }


def real_tokens(batches: Sequence[Batch]) -> int:
    """Count the target's tokens without padding."""
    return sum(int((batch["target"] != PAD).sum()) for batch in batches)


def padding(batches: Sequence[Batch]) -> float:
    """Return the share of padding in the slots of both sides."""
    slots = sum(batch[side].size for batch in batches for side in ("source", "target"))
    real = sum(
        int((batch[side] != PAD).sum())
        for batch in batches
        for side in ("source", "target")
    )
    return 1.0 - real / slots


def save_pairs(path: Path, pairs: Encoded) -> None:
    """Write pairs for the processes that learn from them."""
    arrays: dict[str, Any] = {
        f"{side}_{name}": np.asarray(getattr(getattr(pairs, side), name))
        for side in ("source", "target")
        for name in ("tokens", "offsets")
    }
    np.savez(path, **arrays)


def load_pairs(path: Path) -> Encoded:
    """Read what :func:`save_pairs` wrote."""
    with np.load(path) as arrays:
        source, target = (
            Sentences(arrays[f"{side}_tokens"], arrays[f"{side}_offsets"], PAD)
            for side in ("source", "target")
        )
    return Encoded(source, target)
