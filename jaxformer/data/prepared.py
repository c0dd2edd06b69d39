"""A prepared folder: a corpus encoded once, with its vocabulary and a manifest.

============================== =====================================================
file                           content
============================== =====================================================
``source.bin``, ``target.bin`` token ids of each side, end to end, little-endian
``lengths.npy``                tokens of each pair, int32 [N, 2]
``vocabulary/``                as in the directory of a run
``manifest.json``              what was prepared and how, and the hash of each file
============================== =====================================================

Everything is written to a folder within and moves to its place at the end.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.cleaning import Counts
from jaxformer.data.config import DataConfig
from jaxformer.data.download import digest
from jaxformer.data.store import LENGTHS, TOKENS, Encoded, map_pairs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import parse_json, write_whole

FORMAT = 2
MANIFEST, VOCABULARY = "manifest.json", "vocabulary"


@dataclass(frozen=True)
class Manifest:
    """What was prepared and how.

    Attributes:
        request: the keys of the configuration that decide the tokens, and ``files``.
        vocabulary: hash of the vocabularies.
        counts: what was read and dropped, by data set.
        lengths: entry n is the number of source (target) sentences of n tokens,
            including those that are too long.
        hash: of the pairs.
        sha256: of each file of tokens and lengths.
    """

    request: Mapping[str, Any]
    vocabulary: str
    counts: Mapping[str, Counts]
    lengths: tuple[list[int], list[int]]
    hash: str
    sha256: Mapping[str, str]

    def save(self, directory: Path) -> None:
        """Write the manifest with its own SHA-256, a line for each entry."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        content["manifest_sha256"] = _checksum(content)
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in content.items()
        ]
        write_whole(directory / MANIFEST, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read the manifest of a prepared folder.

        Raises:
            InputError: it is not a prepared folder, it has another format, or the
                manifest is damaged.
        """
        path, cure = directory / MANIFEST, f"remove {directory} and prepare it again"
        try:
            content = parse_json(path.read_bytes())
        except NotADirectoryError:
            raise InputError(f"{directory} is a file, not a prepared folder") from None
        except FileNotFoundError:
            raise InputError(
                f"{directory} is not a prepared folder (it has no {MANIFEST}): make one"
                " with jaxformer prepare"
            ) from None
        except InputError as error:
            raise InputError(f"{path} is damaged ({error}): {cure}") from None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise InputError(
                f"{directory} was prepared by another version, in a format that this"
                f" one does not read: {cure}"
            )
        recorded = content.pop("manifest_sha256", None)
        if recorded != _checksum({"format": FORMAT, **content}):
            raise InputError(f"{path} is damaged (its hash differs): {cure}")
        counts = content.pop("counts")
        return cls(
            counts={name: Counts(**count) for name, count in counts.items()}, **content
        )

    def check_files(self, directory: Path) -> None:
        """Refuse a folder with a missing or damaged file.

        Raises:
            InputError: the line names the file.
        """
        cure = f"remove {directory} and prepare it again"
        for name, recorded in self.sha256.items():
            path = directory / name
            if not path.exists():
                raise InputError(f"{path} is missing: put it back, or {cure}")
            if digest(path) != recorded:
                raise InputError(f"{path} is damaged (its hash differs): {cure}")

    def check_request(self, directory: Path, config: DataConfig) -> None:
        """Refuse a folder that was prepared with other keys than the configuration's.

        Raises:
            InputError: the line has the values to set.
        """
        others = [
            f"--config.data.{key}={shlex.quote(str(self.request.get(key)))}"
            for key, value in config.request.items()
            if key not in ("train", "max_length") and self.request.get(key) != value
        ]
        if others:
            raise InputError(
                f"{directory} was prepared with other values: set {' '.join(others)},"
                " or prepare the text in another folder with the values of this run"
            )
        longest = self.request["max_length"]
        if longest < config.max_length:
            raise InputError(
                f"{directory} was prepared with data.max_length={longest} and lacks"
                f" longer pairs: set --config.data.max_length={longest} or less, or"
                " prepare the text in another folder"
            )

    def check_vocabulary(self, directory: Path, vocabularies: Vocabularies) -> None:
        """Refuse a folder that was encoded with another vocabulary than a run's.

        Raises:
            InputError: the hashes differ.
        """
        if self.vocabulary != vocabularies.hash:
            raise InputError(
                f"{directory} was encoded with another vocabulary (hash"
                f" {self.vocabulary[:12]}) than this run's ({vocabularies.hash[:12]}):"
                " remove it and prepare it again, or choose another --workdir"
            )


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_pairs(
    directory: Path, manifest: Manifest, vocabularies: Vocabularies
) -> Encoded:
    """Check the files of a folder and map its tokens.

    Raises:
        InputError: a file is missing or damaged.
    """
    manifest.check_files(directory)
    return map_pairs(
        [directory / name for name in TOKENS],
        np.load(directory / LENGTHS),
        pad_ids=vocabularies.pad_ids,
        dtype=vocabularies.token_dtype,
        known_hash=manifest.hash,
    )


def read_vocabularies(directory: Path, manifest: Manifest) -> Vocabularies:
    """Read the vocabularies that a folder was encoded with.

    Raises:
        InputError: they are missing, damaged or other ones.
    """
    folder = directory / VOCABULARY
    cure = f"put it back, or remove {directory} and prepare it again"
    if not any(folder.glob("*.model")):
        raise InputError(f"{folder} is missing: {cure}")
    found = Vocabularies.load(folder)
    if found.hash != manifest.vocabulary:
        raise InputError(f"{folder} is not the vocabulary of {directory}: {cure}")
    return found
