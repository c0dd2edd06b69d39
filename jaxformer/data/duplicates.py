"""Pairs that repeat an earlier pair of their corpus, found in bounded memory
whatever the number of pairs.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.records import Pair
from jaxformer.errors import InputError

DEFAULT_MEMORY = 2**28
"""Bytes that the search for duplicates works in, besides one bit a pair."""

_DIGEST_BYTES = 16
# a record is three words of 64 bits: two of the hash, and the index of its pair
_RECORD_BYTES = 24
# what a record of a block costs while the block is sorted and split, with every copy
_PEAK_BYTES = 160


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Hold which pairs of a corpus repeat an earlier one, as one bit a pair; small
    enough to send to every worker.
    """

    bits: NDArray[np.uint8]
    """uint8 [ceil(pairs / 8)]: pair i is bit ``i % 8``, counted from the lowest, of
    byte ``i // 8``.
    """
    pairs: int
    """How many pairs the corpus has."""

    @property
    def count(self) -> int:
        """How many pairs repeat an earlier one."""
        return int(np.bitwise_count(self.bits).sum())

    def __contains__(self, index: int) -> bool:
        """Return whether the pair at this index of the corpus repeats an earlier one.

        Raises:
            InputError: the corpus has no such index: it grew since the search.
        """
        if not 0 <= index < self.pairs:
            raise InputError(
                f"the corpus had {self.pairs:,} pairs when duplicates were sought, and"
                f" now gives pair {index + 1:,}: leave its files alone while they are"
                " read"
            )
        return bool(self.bits[index >> 3] >> (index & 7) & 1)


def find_repeated(
    pairs: Iterable[Pair],
    *,
    memory: int = DEFAULT_MEMORY,
    directory: Path | str | None = None,
) -> Duplicates:
    """Find every pair whose two texts an earlier pair has; the first of its kind is
    none.

    White space around a text does not count. Texts are compared by a hash of 128 bits:
    among a billion different pairs the chance that any two are taken for one is about
    1e-21.

    Records of hash and index are sorted a block at a time. Where one block does not
    hold the corpus, they are split by the first byte of the hash into temporary files
    (24 bytes a pair), and each file is treated alike by the next byte. A block keeps
    one record of each hash, so a text that occurs a billion times ends too.

    Args:
        pairs: the corpus, read once; never held.
        memory: bytes to work in. One bit a pair comes on top, and the two texts at
            hand.
        directory: where the temporary files lie; None: where the system has them
            (``TMPDIR``), which on some machines is memory.

    Raises:
        InputError: the temporary files cannot be written.
    """
    capacity = max(2, memory // _PEAK_BYTES)
    marks = _Marks()
    try:
        folder = tempfile.TemporaryDirectory(
            prefix="jaxformer-duplicates-", dir=directory
        )
    except OSError as error:
        raise _unwritable(directory, error) from None
    with folder:
        _mark(
            _digest_blocks(pairs, capacity, marks),
            0,
            capacity,
            marks,
            Path(folder.name) / "part-",
        )
    return marks.duplicates()


class _Marks:
    """Gather the bits of the pairs that repeat an earlier one, while their number is
    not yet known.
    """

    def __init__(self) -> None:
        self.pairs = 0
        self._bits = np.zeros(1024, np.uint8)

    def add(self, indices: NDArray[np.int64]) -> None:
        """Mark the pairs at these indices."""
        needed = int(indices.max(initial=-1)) // 8 + 1
        if needed > len(self._bits):
            self._bits = np.concatenate(
                [self._bits, np.zeros(max(needed, len(self._bits)), np.uint8)]
            )
        np.bitwise_or.at(
            self._bits, indices >> 3, (1 << (indices & 7)).astype(np.uint8)
        )

    def duplicates(self) -> Duplicates:
        """Return what is marked, once every pair was read."""
        bits = np.zeros(-(-self.pairs // 8), np.uint8)
        known = self._bits[: len(bits)]
        bits[: len(known)] = known
        return Duplicates(bits, self.pairs)


def _digest(pair: Pair) -> bytes:
    # The length of the source in front keeps ("ab", "c") and ("a", "bc") apart, which
    # no separator does that a text may hold too. JSON may spell half a surrogate pair,
    # which plain UTF-8 refuses.
    source, target = (text.strip().encode("utf-8", "surrogatepass") for text in pair)
    content = len(source).to_bytes(8, "little") + source + target
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _digest_blocks(
    pairs: Iterable[Pair], capacity: int, marks: _Marks
) -> Iterator[NDArray[np.int64]]:
    """Return the records of the pairs, int64 [n, 3], in blocks of ``capacity``; count
    the pairs.
    """
    block = bytearray()
    for index, pair in enumerate(pairs):
        block += _digest(pair)
        block += index.to_bytes(8, "little")
        marks.pairs = index + 1
        if len(block) == capacity * _RECORD_BYTES:
            yield _records(bytes(block))
            block.clear()
    yield _records(bytes(block))


def _records(content: bytes) -> NDArray[np.int64]:
    return np.frombuffer(content, "<i8").reshape(-1, 3)


def _mark(
    blocks: Iterable[NDArray[np.int64]],
    depth: int,
    capacity: int,
    marks: _Marks,
    stem: Path,
) -> None:
    """Mark all records but the first of each hash, where all hashes agree in their
    first ``depth`` bytes.

    Within and between the blocks, records come in the order of their index, and every
    way through keeps it.
    """
    parts: set[Path] = set()
    for block in blocks:
        firsts = _firsts(block, marks)
        if len(block) < capacity and not parts:
            return  # nothing came before, and nothing follows a block that is not full
        parts |= _split(firsts, depth, stem)
    for part in sorted(parts):
        _mark(_read(part, capacity), depth + 1, capacity, marks, part)
        part.unlink()


def _firsts(block: NDArray[np.int64], marks: _Marks) -> NDArray[np.int64]:
    """Return the first record of each hash, and mark the others."""
    # stable: the first of a hash stays first
    order = np.lexsort((block[:, 1], block[:, 0]))
    hashes = block[order, :2]
    repeated = order[1:][(hashes[1:] == hashes[:-1]).all(axis=1)]
    marks.add(block[repeated, 2])
    first = np.ones(len(block), bool)
    first[repeated] = False
    return block[first]


def _split(block: NDArray[np.int64], depth: int, stem: Path) -> set[Path]:
    """Append each record to the file of byte ``depth`` of its hash; say which files
    these are.
    """
    # Hashes that agree in all their bytes are split no further; then blocks alone make
    # them fewer, a level at a time.
    values = block.view(np.uint8)[:, depth % _DIGEST_BYTES]
    order = np.argsort(values, kind="stable")
    block, values = block[order], values[order]
    found, starts, sizes = np.unique(values, return_index=True, return_counts=True)
    paths = [stem.with_name(f"{stem.name}{value:02x}") for value in found]
    for path, start, size in zip(paths, starts, sizes, strict=True):
        try:
            with path.open("ab") as file:
                file.write(block[start : start + size].tobytes())
        except OSError as error:
            raise _unwritable(path.parent, error) from None
    return set(paths)


def _read(part: Path, capacity: int) -> Iterator[NDArray[np.int64]]:
    with part.open("rb") as file:
        while content := file.read(capacity * _RECORD_BYTES):
            yield _records(content)


def _unwritable(directory: Path | str | None, error: OSError) -> InputError:
    return InputError(
        f"cannot write temporary files to {directory or tempfile.gettempdir()}:"
        f" {error.strerror}; set TMPDIR to a directory on a disk with room for 24 bytes"
        " a pair"
    )
