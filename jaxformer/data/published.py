"""A published translation task made into plain parallel text, with Python's own library
alone.

:func:`prepare_published` fetches the archives of a task such as ``wmt14.en-de``,
verifies them and writes

============================ =====================================================
``train.CORPUS.en``, ``.de`` one pair of files for each corpus, line by line
``valid.CORPUS.en``, ``.de`` the news test set of the year before
``test.CORPUS.en``, ``.de``  the news test set of the year
``published.json``           what came from where: addresses, checksums, pairs
``archives/``                what was fetched; to be removed when all is unpacked
============================ =====================================================

The text is as published, empty lines included: cleaning is a step of its own.
"""

from __future__ import annotations

import glob
import json
import os
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxformer.data.archives import unpack
from jaxformer.data.download import Patience, RemoteFile, Report, digest, fetch, on_disk
from jaxformer.data.releases import Release, Task, find_task
from jaxformer.errors import InputError
from jaxformer.files import hold, parse_json, write_whole

MANIFEST = "published.json"
ARCHIVES = "archives"


def prepare_published(
    name: str,
    directory: str | Path,
    *,
    mirrors: Sequence[str] = (),
    report: Report = lambda line: None,
) -> dict[str, str]:
    """Fetch and unpack a published task into ``directory``, and name the data set of
    each split.

    What is already whole is neither fetched nor written again, so an interrupted call
    is mended by the same call.

    Args:
        name: one of :func:`jaxformer.data.releases.task_names`, such as
            ``wmt14.en-de``.
        directory: where to; it is made.
        mirrors: folders that hold copies of the archives, by their address or path,
            each tried before the published addresses.
        report: gets one line for each thing worth telling.

    Returns:
        ``{"train": "text:DIR/train.*.en,DIR/train.*.de", "valid": ..., "test": ...}``.

    Raises:
        InputError: an unknown name; an archive that cannot be fetched, verified or
            unpacked; a directory that cannot be written, serves another task or another
            process, or holds files that this would overwrite.
    """
    return prepare(find_task(name), Path(directory), mirrors=mirrors, report=report)


def prepare(
    task: Task,
    directory: Path,
    *,
    mirrors: Sequence[str] = (),
    patience: Patience | None = None,
    report: Report = lambda line: None,
) -> dict[str, str]:
    """Do what :func:`prepare_published` does, for a task of the caller's own.

    Raises:
        InputError: see :func:`prepare_published`.
    """
    if "," in str(directory):
        raise InputError(
            f"the directory {str(directory)!r} has a comma, which separates the files"
            " of a data set's name"
        )
    mirrors = [_address(mirror) for mirror in mirrors]
    archives = directory / ARCHIVES
    with on_disk(directory):
        archives.mkdir(parents=True, exist_ok=True)
        lock = hold(
            directory,
            f"another process prepares {directory}: wait for it, or choose another one",
        )
    with lock:
        manifest = _read_manifest(directory, task)
        _check_strangers(directory, task)
        for split, releases in task.splits.items():
            for release in releases:
                key = f"{split}.{release.name}"
                if _is_whole(directory, task, key, release, manifest):
                    report(
                        f"{key}: {manifest['corpora'][key]['pairs']:,} pairs are there"
                    )
                    continue
                file = _with_mirrors(release.file, mirrors)
                archive = fetch(file, archives, patience=patience, report=report)
                _make(directory, task, key, release, archive, manifest, report)
    return {
        split: _data_set(directory, task, split, releases)
        for split, releases in task.splits.items()
    }


def _make(
    directory: Path,
    task: Task,
    key: str,
    release: Release,
    archive: Path,
    manifest: dict[str, Any],
    report: Report,
) -> None:
    """Unpack one corpus, note it in the manifest, and only then give its files their
    names.

    In this order every file of a final name is in the manifest, with its digest: what
    is not is somebody else's.
    """
    paths = _paths(directory, task, key)
    parts = {
        language: path.with_name(f"{path.name}.part")
        for language, path in paths.items()
    }
    report(f"unpacking {release.name} from {release.file.name}")
    unpacked = unpack(archive, release.form, parts)
    manifest["corpora"][key] = {
        "archive": release.file.name,
        "address": release.file.addresses[0],
        "checksum": release.file.checksum,
        "pairs": unpacked.pairs,
        "skipped": unpacked.skipped,
        "sha256": {
            path.name: unpacked.sha256[language] for language, path in paths.items()
        },
    }
    with on_disk(directory):
        _write_manifest(directory, manifest)
        for language, path in paths.items():
            os.replace(parts[language], path)
    skipped = (
        f", {unpacked.skipped:,} rows that are no pair skipped"
        if unpacked.skipped
        else ""
    )
    report(f"{key}: {unpacked.pairs:,} pairs{skipped}")


def _is_whole(
    directory: Path, task: Task, key: str, release: Release, manifest: dict[str, Any]
) -> bool:
    """Return whether a corpus is there as it was made; refuse files that this would
    have to overwrite.
    """
    entry = manifest["corpora"].get(key, {"checksum": None, "sha256": {}})
    there = [path for path in _paths(directory, task, key).values() if path.exists()]
    for path in there:
        with on_disk(path):
            same = entry["sha256"].get(path.name) == digest(path)
        if not same or entry["checksum"] != release.file.checksum:
            raise InputError(
                f"{path} is not what {task.name} gives: move or remove it, and it is"
                " made anew"
            )
    return len(there) == len(_paths(directory, task, key))


def _check_strangers(directory: Path, task: Task) -> None:
    """Refuse files that the pattern of a split would match although they are not of
    this task.
    """
    for split, releases in task.splits.items():
        if len(releases) == 1:
            continue  # named by its files
        ours = {
            path
            for release in releases
            for path in _paths(directory, task, f"{split}.{release.name}").values()
        }
        for language in (task.source_language, task.target_language):
            for path in sorted(set(directory.glob(f"{split}.*.{language}")) - ours):
                raise InputError(
                    f"{path} is no file of {task.name} but would be read with it: move"
                    " or remove it"
                )


def _paths(directory: Path, task: Task, key: str) -> dict[str, Path]:
    return {
        language: directory / f"{key}.{language}"
        for language in (task.source_language, task.target_language)
    }


def _data_set(
    directory: Path, task: Task, split: str, releases: Sequence[Release]
) -> str:
    """Name a split for :func:`jaxformer.data.load`: by its files where there is one
    pair, else by a pattern.
    """
    corpus = releases[0].name if len(releases) == 1 else "*"
    folder = glob.escape(str(directory))
    return f"text:{folder}/{split}.{corpus}.{task.source_language},{folder}/{split}.{corpus}.{task.target_language}"


def _read_manifest(directory: Path, task: Task) -> dict[str, Any]:
    path = directory / MANIFEST
    with on_disk(path):
        if not path.exists():
            return {"task": task.name, "corpora": {}}
        content = path.read_bytes()
    try:
        manifest = parse_json(content)
        name = manifest["task"]
        whole = all(
            isinstance(entry["sha256"], dict)
            and entry["checksum"]
            and type(entry["pairs"]) is int
            for entry in manifest["corpora"].values()
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        manifest, name, whole = {}, None, False
    if not whole:
        raise InputError(
            f"{path} is no manifest of a published task: choose an empty directory"
        )
    if name != task.name:
        raise InputError(
            f"{directory} holds {name}: choose another directory for {task.name}"
        )
    return manifest


def _write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    write_whole(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _with_mirrors(file: RemoteFile, mirrors: Sequence[str]) -> RemoteFile:
    return replace(
        file,
        addresses=(
            *(f"{mirror.rstrip('/')}/{file.name}" for mirror in mirrors),
            *file.addresses,
        ),
    )


def _address(mirror: str) -> str:
    """Return the address of a mirror that may be named by a path of this machine.

    Raises:
        InputError: it is neither an address of the web nor a folder.
    """
    scheme, separator, _ = mirror.partition("://")
    if separator and scheme in ("http", "https"):
        return mirror
    folder = Path(
        urllib.request.url2pathname(mirror.removeprefix("file://"))
        if separator
        else mirror
    ).expanduser()
    if (separator and scheme != "file") or not folder.is_dir():
        raise InputError(
            f"the mirror {mirror} is no folder: give https://..., or a folder of this"
            " machine"
        )
    return folder.absolute().as_uri()
