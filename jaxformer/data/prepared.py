"""A prepared folder: a corpus encoded once, with its vocabulary and a manifest.

============================== =====================================================
file                           content
============================== =====================================================
``source.bin``, ``target.bin`` token ids of each side, end to end, little-endian
``lengths.npy``                tokens of each pair, int32 [N, 2]; of texts of one
                               side, which have only ``target.bin``, int32 [N, 1]
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.cleaning import Counts
from jaxformer.data.config import EARLIER, ONE_SIDED, DataConfig
from jaxformer.data.store import LENGTHS, Encoded, map_pairs, token_files
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import parse_json, write_whole

FORMAT = 2
MANIFEST, VOCABULARY = "manifest.json", "vocabulary"

Report = Callable[[str], None]
"""Gets lines of progress."""


def digest(path: Path) -> str:
    """Compute the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@dataclass(frozen=True)
class Manifest:
    """What was prepared and how.

    Attributes:
        directory: the folder, which is not part of the file.
        request: the keys of the configuration that decide the tokens, and ``files``.
        vocabulary: hash of the vocabularies.
        counts: what was read and dropped, by data set.
        lengths: entry n is the number of source (target) sentences of n tokens,
            including those that are too long.
        hash: of the pairs.
        sha256: of each file of tokens and lengths.
    """

    directory: Path
    request: Mapping[str, Any]
    vocabulary: str
    counts: Mapping[str, Counts]
    lengths: tuple[list[int], list[int]]
    hash: str
    sha256: Mapping[str, str]

    def save(self) -> None:
        """Write the manifest, a line for each entry."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        del content["directory"]
        lines = [
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in content.items()
        ]
        write_whole(self.directory / MANIFEST, "{\n" + ",\n".join(lines) + "\n}\n")

    @classmethod
    def load(cls, directory: Path) -> Manifest:
        """Read the manifest of a prepared folder.

        Raises:
            InputError: it is not a prepared folder, it has another format, or the
                manifest is damaged.
        """
        path = directory / MANIFEST
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
            raise InputError(
                f"{path} is damaged ({error}): {_cure(directory)}"
            ) from None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise InputError(
                f"{directory} was prepared by another version, in a format that this"
                f" one does not read: {_cure(directory)}"
            )
        content.pop("manifest_sha256", None)  # of earlier versions
        # Of keys that are newer than the folder.
        defaults = DataConfig(**EARLIER).request
        try:
            content["request"] = {**defaults, **content["request"]}
            counts = content.pop("counts")
            counts = {name: Counts(**count) for name, count in counts.items()}
            found = cls(directory, counts=counts, **content)
        except (AttributeError, KeyError, TypeError):
            raise InputError(f"{path} is damaged: {_cure(directory)}") from None
        if found.sha256.keys() != {*found.names, LENGTHS}:
            raise InputError(f"{path} is damaged: {_cure(directory)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the files of tokens."""
        return token_files(self.request["kind"] in ONE_SIDED)

    def check_files(self) -> None:
        """Refuse a folder with a missing or damaged file.

        Raises:
            InputError: the line names the file.
        """
        for name, recorded in self.sha256.items():
            path = self.directory / name
            if not path.exists():
                raise InputError(
                    f"{path} is missing: put it back, or {_cure(self.directory)}"
                )
            if digest(path) != recorded:
                raise InputError(
                    f"{path} is damaged (its hash differs): {_cure(self.directory)}"
                )

    def check_request(self, config: DataConfig) -> None:
        """Refuse a folder that was prepared with other keys than the configuration's.

        Raises:
            InputError: the line has the values to set.
        """
        free = {"train"}
        if config.kind in ("pairs", "text", "documents"):  # others are cut to it
            free |= {"max_length"}
        others = [
            f"--config.data.{key}={shlex.quote(str(self.request.get(key)))}"
            for key, value in config.request.items()
            if key not in free and self.request.get(key) != value
        ]
        if others:
            raise InputError(
                f"{self.directory} was prepared with other values: set"
                f" {' '.join(others)}, or prepare the text in another folder with the"
                " values of this run"
            )
        longest = self.request["max_length"]
        if longest < config.max_length and not config.divides_later:
            raise InputError(
                f"{self.directory} was prepared with data.max_length={longest} and"
                f" lacks longer pairs: set --config.data.max_length={longest} or less,"
                " or prepare the text in another folder"
            )

    def open_pairs(self, vocabularies: Vocabularies) -> Encoded:
        """Check the files and map the tokens.

        Raises:
            InputError: a file is missing or damaged, or the vocabularies, those of a
                run, are other ones.
        """
        if self.vocabulary != vocabularies.hash:
            raise InputError(
                f"{self.directory} was encoded with another vocabulary (hash"
                f" {self.vocabulary[:12]}) than this run's ({vocabularies.hash[:12]}):"
                " remove it and prepare it again, or choose another --workdir"
            )
        self.check_files()
        files = [self.directory / name for name in self.names]
        lengths = np.load(self.directory / LENGTHS)
        return map_pairs(files, lengths, vocabularies, self.hash)

    def read_vocabularies(self) -> Vocabularies:
        """Read the vocabularies that the folder was encoded with.

        Raises:
            InputError: they are missing, damaged or other ones.
        """
        folder = self.directory / VOCABULARY
        cure = f"put it back, or {_cure(self.directory)}"
        if not Vocabularies.exist(folder):
            raise InputError(f"{folder} is missing: {cure}")
        found = Vocabularies.load(folder)
        if found.hash != self.vocabulary:
            raise InputError(
                f"{folder} is not the vocabulary of {self.directory}: {cure}"
            )
        return found


def _cure(directory: Path) -> str:
    return f"remove {directory} and prepare it again"
