"""A prepared folder: a corpus tokenised once, as ArrayRecord shards with an index, its
vocabulary and what it is.

===================
====================================================================================
file                holds
===================
====================================================================================
``manifest.json``   what was prepared and how, the text's files and the vocabulary with their hashes, the shards
``lengths.npy``     tokens of each pair, int32 [N, 2]: the index from which batches are planned
``00000.records``   ArrayRecord; a record is a pair: its source tokens, then its target tokens, little-endian
``vocabulary/``     as in the directory of a run
===================
====================================================================================

The manifest comes last: a folder without one was not finished, and says so in
``unfinished.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.files import check_folder, make_folder
from jaxformer.data.manifests import FILES, find_fault
from jaxformer.data.store import offsets_of, token_dtype
from jaxformer.data.transforms import Encoded, Fingerprint, Sentences
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError, require
from jaxformer.files import (
    LOCK,
    TEMPORARY,
    check_writable,
    hold,
    parse_json,
    write_whole,
)

FORMAT = 1
PAIRS_PER_SHARD = 1_000_000
MANIFEST, UNFINISHED, LENGTHS, VOCABULARY = (
    "manifest.json",
    "unfinished.json",
    "lengths.npy",
    "vocabulary",
)

# Batches come in random order: every pair can be read without its neighbours, and
# nothing ahead of it.
_WRITE, _READ = "group_size:1,uncompressed", "readahead_buffer_size:0,max_parallelism:0"


class ShardWriter:
    """Writes a prepared folder, in order; :meth:`finish` makes it one."""

    def __init__(
        self,
        directory: Path,
        request: Mapping[str, Any],
        *,
        pairs_per_shard: int = PAIRS_PER_SHARD,
    ) -> None:
        """Take an empty folder, or one that was not finished; ``request`` is what is
        prepared and how, as JSON.

        Raises:
            InputError: the folder holds something else.
        """
        self._directory, self._request, self._per_shard = (
            directory,
            dict(request),
            pairs_per_shard,
        )
        self._module = _array_record()
        self._made = not directory.exists()
        self._lock = _claim(directory, self._request)
        self._lengths: list[NDArray[np.int32]] = []
        self._shards: list[dict[str, Any]] = []
        self._fingerprint = Fingerprint()
        self._writer: Any = None
        self._in_shard = 0

    def add(self, pairs: Encoded, vocabulary_size: int) -> None:
        """Add pairs after those that were added before."""
        dtype = token_dtype(vocabulary_size)
        source, target = pairs.source, pairs.target
        for index in range(len(pairs)):
            if self._writer is None:
                name = f"{len(self._shards):05}.records"
                self._writer = self._module.ArrayRecordWriter(
                    str(self._directory / name), _WRITE
                )
                self._in_shard = 0
                self._shards.append({"file": name})
            self._writer.write(
                source[index].astype(dtype).tobytes()
                + target[index].astype(dtype).tobytes()
            )
            self._in_shard += 1
            if self._in_shard == self._per_shard:
                self._close_shard()
        self._lengths.append(np.stack([source.lengths, target.lengths], axis=1))
        self._fingerprint.add(pairs)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the index, and the manifest last; ``facts`` go into it beside what
        is known here.
        """
        if self._writer is not None:
            self._close_shard()
        lengths = np.concatenate([np.zeros((0, 2), np.int32), *self._lengths])
        np.save(self._directory / LENGTHS, lengths)
        manifest = {
            "format": FORMAT,
            "request": self._request,
            **facts,
            "pairs": len(lengths),
            "lengths_hash": hashlib.sha256(lengths.astype("<i4").tobytes()).hexdigest(),
            "hash": self._fingerprint.hex(),
            "shards": self._shards,
        }
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        # Histograms on one line each. A string holds no line end of its own in JSON.
        text = re.sub(
            r"\[\n[\d,\s]*\]",
            lambda found: "".join(found[0].split()).replace(",", ", "),
            text,
        )
        write_whole(self._directory / MANIFEST, text + "\n")
        (self._directory / UNFINISHED).unlink()
        (self._directory / LOCK).unlink()

    def close(self) -> None:
        """Close the shard at hand, and let the folder go."""
        if self._writer is not None:
            self._close_shard()
        self._lock.close()

    def abandon(self) -> None:
        """Remove what was written, and the folder if it was made for it: it is of no
        use to another call.
        """
        if self._writer is not None:
            self._close_shard()
        for path in (
            *_leftovers(self._directory),
            *(self._directory / VOCABULARY).glob("*.model"),
        ):
            path.unlink(missing_ok=True)
        for name in (UNFINISHED, LOCK):
            (self._directory / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something else lies there
            (self._directory / VOCABULARY).rmdir()
        with contextlib.suppress(OSError):
            if self._made:
                self._directory.rmdir()
        self._lock.close()

    def _close_shard(self) -> None:
        self._writer.close()
        self._writer = None
        shard = self._shards[-1]
        shard["pairs"] = self._in_shard
        shard["bytes"] = (self._directory / shard["file"]).stat().st_size


@dataclass(frozen=True, eq=False)
class Prepared:
    """The pairs of a prepared folder; lengths in memory, tokens on disk."""

    directory: Path
    manifest: Mapping[str, Any]
    pad_id: tuple[int, int]
    """Padding id of the source and of the target."""
    dtype: str
    numbers: NDArray[np.int32]
    """Which records are used, int32 [N]."""
    lengths: NDArray[np.int32]
    """Their tokens, int32 [N, 2]."""

    @classmethod
    def open(
        cls, directory: Path, *, pad_id: tuple[int, int], vocabulary_size: int
    ) -> Prepared:
        """Open a folder whose vocabularies have these padding ids, the larger of them
        this size.

        Raises:
            InputError: the folder is not finished, or a part of it is missing or
                damaged.
        """
        manifest = read_manifest(directory)
        lengths = _read_lengths(directory, manifest)
        numbers = np.arange(len(lengths), dtype=np.int32)
        return cls(
            directory, manifest, pad_id, token_dtype(vocabulary_size), numbers, lengths
        )

    def limited(self, max_length: int) -> Prepared:
        """Return the pairs of which neither side has more tokens than this."""
        kept = (self.lengths <= max_length).all(axis=1)
        if kept.all():
            return self
        return Prepared(
            self.directory,
            self.manifest,
            self.pad_id,
            self.dtype,
            self.numbers[kept],
            self.lengths[kept],
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def source_lengths(self) -> NDArray[np.int32]:
        """Tokens of each source sentence, int32 [N]."""
        return self.lengths[:, 0]

    @property
    def target_lengths(self) -> NDArray[np.int32]:
        """Tokens of each target sentence, int32 [N]."""
        return self.lengths[:, 1]

    @property
    def hash(self) -> str:
        """SHA-256 in hex: that of the same pairs in memory, where all are used."""
        recorded = self.manifest["hash"]
        if len(self) == self.manifest["pairs"]:
            return recorded
        return hashlib.sha256(
            recorded.encode() + np.ascontiguousarray(self.numbers, "<i4").tobytes()
        ).hexdigest()

    def take(self, indices: NDArray[np.integer]) -> Encoded:
        """Return the pairs at these indices, in this order.

        Raises:
            InputError: a shard does not hold what the index says.
        """
        numbers, lengths = self.numbers[indices], self.lengths[indices]
        owners = np.searchsorted(self._starts, numbers, side="right") - 1
        order = np.argsort(owners, kind="stable")
        records: list[bytes] = []
        with self._lock:  # a reader stands at one place
            for owner in np.unique(owners):
                records += self._read(
                    int(owner),
                    (numbers[owners == owner] - self._starts[owner]).tolist(),
                )
        tokens = np.frombuffer(b"".join(records), self.dtype)
        offsets = offsets_of(lengths[order].reshape(-1))
        if len(tokens) != offsets[-1]:
            raise InputError(
                f"the shards of {self.directory} do not fit their index: remove it and"
                " prepare it again"
            )
        # Sides lie in turns in the order of the shards; put each pair back to where it
        # was asked for.
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        sides = Sentences(tokens, offsets, 0)
        taken = [sides.take(2 * places + side) for side in range(2)]
        return Encoded(
            *(
                Sentences(s.tokens, s.offsets, pad_id)
                for s, pad_id in zip(taken, self.pad_id, strict=True)
            )
        )

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return offsets_of(
            np.array([shard["pairs"] for shard in self.manifest["shards"]], np.int64)
        )

    @cached_property
    def _lock(self) -> threading.Lock:
        return threading.Lock()

    @cached_property
    def _readers(self) -> dict[int, Any]:
        return {}

    def _read(self, shard: int, places: list[int]) -> list[bytes]:
        path = self.directory / self.manifest["shards"][shard]["file"]
        try:
            if shard not in self._readers:
                self._readers[shard] = _array_record().ArrayRecordReader(
                    str(path), _READ
                )
            reader, records = self._readers[shard], []
            # One by one: a call that asks for many records first walks over the index
            # of all.
            for place in places:
                reader.seek(place)
                records.append(reader.read())
            return records
        except (IndexError, RuntimeError, ValueError) as error:
            raise InputError(
                f"{path} is damaged ({error}): remove {self.directory} and prepare it"
                " again"
            ) from None


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read what a prepared folder says of itself.

    Raises:
        InputError: it is no prepared folder, it was not finished, or it is of another
            version.
    """
    try:
        manifest = parse_json((directory / MANIFEST).read_bytes())
    except NotADirectoryError:
        raise InputError(f"{directory} is a file, and no prepared folder") from None
    except FileNotFoundError:
        if (directory / UNFINISHED).exists():
            raise InputError(
                f"{directory} was not finished: give the same `jaxformer prepare`"
                " command again"
            ) from None
        raise InputError(
            f"{directory} is no prepared folder (it has no {MANIFEST}): make one by"
            " jaxformer prepare"
        ) from None
    except InputError as error:
        raise InputError(
            f"{directory / MANIFEST} is damaged ({error}): remove {directory} and"
            " prepare it again"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(
            f"{directory} has another format than {FORMAT}, which this version reads:"
            " remove it and prepare it again"
        )
    if fault := find_fault(manifest):
        raise InputError(
            f"{directory / MANIFEST} is damaged ({fault}): remove {directory} and"
            " prepare it again"
        )
    return manifest


def check_whole(directory: Path) -> None:
    """Refuse a folder of which a part is missing or damaged, as far as names, sizes and
    the vocabulary's hash tell.

    Raises:
        InputError: it is not whole; the line names the part.
    """
    manifest = read_manifest(directory)
    _read_lengths(directory, manifest)
    read_vocabularies(directory, manifest)


def read_vocabularies(directory: Path, manifest: Mapping[str, Any]) -> Vocabularies:
    """Read the vocabularies that a folder was tokenised with.

    Raises:
        InputError: they are missing, damaged or not those.
    """
    folder, cure = (
        directory / VOCABULARY,
        f"put it back, or remove {directory} and prepare it again",
    )
    if not any(folder.glob("*.model")):
        raise InputError(f"{folder} is missing: {cure}")
    found = Vocabularies.load(folder)
    if found.hash != manifest["vocabulary"]:
        raise InputError(f"{folder} is not the vocabulary of {directory}: {cure}")
    return found


def _read_lengths(directory: Path, manifest: Mapping[str, Any]) -> NDArray[np.int32]:
    """Read the index, once all shards are found to be there."""
    cure = f"put it back, or remove {directory} and prepare it again"
    for shard in manifest["shards"]:
        path = directory / shard["file"]
        if not path.exists():
            raise InputError(f"{path} is missing: {cure}")
        if path.stat().st_size != shard["bytes"]:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes, and {shard['bytes']:,} when"
                f" it was written: {cure}"
            )
    path = directory / LENGTHS
    try:
        lengths = np.load(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {cure}") from None
    except (OSError, ValueError, EOFError):
        raise InputError(f"{path} is damaged: {cure}") from None
    if lengths.shape != (manifest["pairs"], 2) or lengths.dtype != np.int32:
        raise InputError(f"{path} is of another folder: {cure}")
    found = hashlib.sha256(lengths.astype("<i4").tobytes()).hexdigest()
    if manifest.get("lengths_hash", found) != found:  # earlier versions recorded none
        raise InputError(f"{path} has changed since it was written: {cure}")
    return lengths


def is_finished(directory: Path, request: Mapping[str, Any]) -> bool:
    """Return whether a folder is the finished one of this request.

    Raises:
        InputError: it is that of another, or of the same on text that was another then.
    """
    if not (directory / MANIFEST).exists():
        return False
    done = read_manifest(directory)["request"]
    changed = [key for key in {**done, **request} if done.get(key) != request.get(key)]
    others = [
        f"{key}={done.get(key)!r}, not {request.get(key)!r}"
        for key in changed
        if key != FILES
    ]
    if others:
        raise InputError(
            f"{directory} was prepared with {' and '.join(others)}: choose another"
            " --output, or remove it"
        )
    if changed:
        _refuse_changed(directory, done.get(FILES, {}), request.get(FILES, {}))
    return True


def _refuse_changed(
    directory: Path, then: Mapping[str, str], now: Mapping[str, str]
) -> None:
    """Name the first of the files that are not as they were."""
    name = next(name for name in {**then, **now} if then.get(name) != now.get(name))
    what = (
        "has changed"
        if name in then and name in now
        else "is new"
        if name in now
        else "is gone"
    )
    more = sum(then.get(other) != now.get(other) for other in {**then, **now}) - 1
    raise InputError(
        f"{name} {what}{f' (and {more} more)' if more else ''} since {directory} was"
        f" prepared: remove {directory} and prepare it again, choose another --output,"
        " or put the text back as it was"
    )


def _claim(directory: Path, request: dict[str, Any]) -> TextIO:
    """Make the folder ours, and clear what a process that was killed left of the same
    request.

    Returns:
        An open file; until it is closed no other process can claim the folder.
    """
    _check_free(directory, request)
    make_folder(directory, "--output")
    lock = hold(
        directory,
        f"another process prepares {directory}: wait until it ends, or choose another"
        " folder",
    )
    try:
        _check_free(directory, request)  # another process may have held it until now
    except InputError:
        lock.close()
        raise
    for path in _leftovers(directory):
        path.unlink(missing_ok=True)
    write_whole(directory / UNFINISHED, json.dumps(request))
    return lock


def _leftovers(directory: Path) -> list[Path]:
    """Name what an unfinished folder holds besides its vocabulary."""
    shards, temporary = (
        directory.glob("[0-9][0-9][0-9][0-9][0-9].records"),
        directory.glob(f".*{TEMPORARY}"),
    )
    return [*shards, directory / LENGTHS, *temporary]


def _check_free(directory: Path, request: dict[str, Any]) -> None:
    """Refuse a folder that is neither empty nor left unfinished by the same request."""
    check_folder(directory, "--output")
    if directory.exists():
        check_writable(directory, VOCABULARY)
    if (directory / MANIFEST).exists():
        raise InputError(
            f"{directory} is prepared: choose another folder, or remove it"
        )
    try:
        left = parse_json((directory / UNFINISHED).read_bytes())
    except FileNotFoundError:
        if directory.exists() and any(
            path.name != LOCK for path in directory.iterdir()
        ):
            raise InputError(
                f"{directory} holds other files: choose an empty --output"
            ) from None
        return
    except InputError:
        return  # cut off while it was written
    if left != request:
        raise InputError(
            f"{directory} was begun for something else, or from text that has changed,"
            " and not finished: remove it, or choose another --output"
        )


def _array_record() -> ModuleType:
    return require("array_record.python.array_record_module", "train")
