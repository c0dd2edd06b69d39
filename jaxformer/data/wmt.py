"""Fetch the parallel text of WMT: the paper's tasks and their neighbours.

``wmt14.en-de`` is the task of 2014 from English to German. :func:`prepare_wmt` fetches
its archives, verifies them and writes

============================ ========================================================
``train.CORPUS.en``, ``.de`` a pair of files for each training corpus, line by line
``valid.CORPUS.en``, ``.de`` the news test set of the year before
``test.CORPUS.en``, ``.de``  the news test set of the year
``published.json``           the address, checksum and pairs of each
``archives/``                the downloads; may be removed afterwards
============================ ========================================================

The text is as published, empty lines included. Sizes and SHA-256 of the training
archives are those that TensorFlow Datasets 4.9.10 fetches; the MD5 of the test sets
those on which sacreBLEU 2.6.0 scores. Of 2014 it is the full test set of 3,003
segments, sacreBLEU's ``wmt14/full``.
"""

from __future__ import annotations

import glob
import gzip
import html
import html.entities
import json
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxformer.data import download
from jaxformer.data.download import RemoteFile, on_disk
from jaxformer.data.records import did_you_mean
from jaxformer.errors import InputError
from jaxformer.files import hold, parse_json, write_whole

MANIFEST = "published.json"
ARCHIVES = "archives"

_BOM = b"\xef\xbb\xbf"
_SEGMENT = re.compile(
    r"""<seg\b[^>]*?\bid\s*=\s*["']?([^"'\s>]+)[^>]*>(.*?)</seg\s*>""", re.DOTALL | re.I
)
_ENTITY = re.compile(r"&(#0*[1-9]\d*|#[xX]0*[1-9a-fA-F][0-9a-fA-F]*|\w+);")


class Release(NamedTuple):
    """A published corpus: its name, its archive, and the archive's member for each
    language, as plain text (also ``.gz``) or SGML (``.sgm``).
    """

    name: str
    file: RemoteFile
    members: dict[str, str]


class Task(NamedTuple):
    """A direction of translation and the corpora of each split."""

    name: str
    languages: tuple[str, str]
    splits: dict[str, list[Release]]


# Each corpus: name, address, checksum, size where it was published (else 0), and the
# members of its archive. {pair} is such as de-en, {direction} as translated, {side} src
# or ref.
_TABLE = """
europarl-v7 www.statmt.org/wmt13/training-parallel-europarl-v7.tgz
    sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7 657632379
    training/europarl-v7.{pair}.{language}
commoncrawl www.statmt.org/wmt13/training-parallel-commoncrawl.tgz
    sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5 918311367
    commoncrawl.{pair}.{language}
un www.statmt.org/wmt13/training-parallel-un.tgz
    sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47 2365634246
    un/undoc.2000.{pair}.{language}
giga-fren www.statmt.org/wmt10/training-giga-fren.tar
    sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a 2595102720
    giga-fren.release2.fixed.{language}.gz
news-commentary-v8 www.statmt.org/wmt13/training-parallel-nc-v8.tgz
    sha256:df5801d6776190ea48e7241ee97100d81e2f89d7c352c9cd11432c8855c73c28 92821866
    training/news-commentary-v8.{pair}.{language}
news-commentary-v9 www.statmt.org/wmt14/training-parallel-nc-v9.tgz
    sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485 80418416
    training/news-commentary-v9.{pair}.{language}
news-commentary-v10 www.statmt.org/wmt15/training-parallel-nc-v10.tgz
    sha256:11e053e7ea29e87e69a1ad05e61cb559820947ecec144ea8c1d6cf05017c9602 125136590
    news-commentary-v10.{pair}.{language}
news-commentary-v11 data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz
    sha256:cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a 75178032
    training-parallel-nc-v11/news-commentary-v11.{pair}.{language}
news-commentary-v12 data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz
    sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2 168591139
    training/news-commentary-v12.{pair}.{language}
news-commentary-v13 data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz
    sha256:17992b7e919cfb754c60f4e754148bc23b80706ad0ed7b34150831a554b40c91 113157482
    training-parallel-nc-v13/news-commentary-v13.{pair}.{language}
paracrawl-v1 s3.amazonaws.com/web-language-models/paracrawl/release1/paracrawl-release1.en-de.zipporah0-dedup-clean.tgz
    sha256:435ce65e26ed2d44dd0d627f0b558d25bfe31d9ccb35caef050938745c23ea8c 1918708277
    paracrawl-release1.en-de.zipporah0-dedup-clean.{language}
rapid-2016 data.statmt.org/wmt18/translation-task/rapid2016.tgz
    sha256:41557dd5d8f0ed3a6d98bce3b798b1a9d3b68361eb99d902329ddbb943a6b55a 161050516
    rapid2016.{pair}.{language}
newstest2012 statmt.org/wmt12/test.tgz
    md5:608232d34ebc4ba2ff70fead45674e47 0
    test/newstest2012-src.{language}.sgm
newstest2013 statmt.org/wmt13/test.tgz
    md5:48eca5d02f637af44e85186847141f67 0
    test/newstest2013-src.{language}.sgm
newstest2014 statmt.org/wmt14/test-full.tgz
    md5:a8cd784e006feb32ac6f3d9ec7eb389a 0
    test-full/newstest2014-{other}en-{side}.{language}.sgm
newstest2015 statmt.org/wmt15/test.tgz
    md5:67e3beca15e69fe3d36de149da0a96df 0
    test/newstest2015-{direction}-{side}.{language}.sgm
newstest2016 data.statmt.org/wmt16/translation-task/test.tgz
    md5:3d809cd0c2c86adb2c67034d15c4e446 0
    test/newstest2016-{direction}-{side}.{language}.sgm
newstest2017 data.statmt.org/wmt17/translation-task/test.tgz
    md5:86a1724c276004aa25455ae2a04cef26 0
    test/newstest2017-{direction}-{side}.{language}.sgm
newstest2018 data.statmt.org/wmt18/translation-task/test.tgz
    md5:f996c245ecffea23d0006fa4c34e9064 0
    test/newstest2018-{direction}-{side}.{language}.sgm
"""  # noqa: E501
_CORPORA = {
    name: (address, checksum, int(size) or None, member)
    for name, address, checksum, size, member in map(
        str.split, re.split(r"\n(?! )", _TABLE.strip())
    )
}

# The training corpora of each year and language other than English, both ways. The
# test set is newstest of that year, the validation set that of the year before.
_EUROPEAN = ("europarl-v7", "commoncrawl")
_TASKS = {
    (13, "de"): (*_EUROPEAN, "news-commentary-v8"),
    (14, "de"): (*_EUROPEAN, "news-commentary-v9"),
    (14, "fr"): (*_EUROPEAN, "news-commentary-v9", "un", "giga-fren"),
    (15, "de"): (*_EUROPEAN, "news-commentary-v10"),
    (16, "de"): (*_EUROPEAN, "news-commentary-v11"),
    (17, "de"): (*_EUROPEAN, "news-commentary-v12", "rapid-2016"),
    (18, "de"): (*_EUROPEAN, "news-commentary-v13", "rapid-2016", "paracrawl-v1"),
}


DIRECTIONS = {
    f"wmt{year}.{source}-{target}": (year, source, target)
    for year, other in _TASKS
    for source, target in (("en", other), (other, "en"))
}
"""The year, source and target of each task by its name."""


def find_task(name: str) -> Task:
    """Find a task by its name.

    Raises:
        InputError: there is none; with the nearest name.
    """
    if name not in DIRECTIONS:
        raise InputError(
            f"no published task {name!r}: there are {', '.join(DIRECTIONS)}; for other"
            " text fetch plain files with mtdata or OpusTools and name them as"
            f" text:SOURCE,TARGET{did_you_mean(name, DIRECTIONS)}"
        )
    year, source, target = DIRECTIONS[name]
    corpora = {
        "train": _TASKS[year, source if target == "en" else target],
        "valid": (f"newstest20{year - 1}",),
        "test": (f"newstest20{year}",),
    }
    splits = {
        split: [_release(corpus, source, target) for corpus in names]
        for split, names in corpora.items()
    }
    return Task(name, (source, target), splits)


def prepare_wmt(
    task: Task,
    directory: Path,
    *,
    mirrors: Sequence[str] = (),
    patience: download.Patience = download.PATIENCE,
    report: download.Report = lambda line: None,
) -> dict[str, str]:
    """Fetch and unpack a task into ``directory``, and return the data set of each
    split.

    Corpora that are complete are neither fetched nor written again, so the same call
    continues an interrupted one.

    Args:
        task: as :func:`find_task` returns it.
        directory: made where it is missing.
        mirrors: addresses or paths of folders with copies of the archives, tried first.
        patience: when an address is given up.
        report: called with each line of progress.

    Raises:
        InputError: an archive cannot be fetched or unpacked, or the directory cannot be
            written, belongs to another task or process, or has files of its own.
    """
    if "," in str(directory):
        raise InputError(
            f"the directory {str(directory)!r} has a comma: choose another one"
        )
    mirrors = [download.mirror_address(mirror) for mirror in mirrors]
    archives = directory / ARCHIVES
    busy = f"another process prepares {directory}: wait for it, or choose another one"
    with on_disk(directory):
        archives.mkdir(parents=True, exist_ok=True)
        lock = hold(directory, busy)
    with lock:
        manifest = _read_manifest(directory, task)
        _check_strangers(directory, task, manifest)
        for split, releases in task.splits.items():
            for release in releases:
                key = f"{split}.{release.name}"
                paths = {side: directory / f"{key}.{side}" for side in task.languages}
                if not all(path.exists() for path in paths.values()):
                    file = release.file.with_mirrors(mirrors)
                    archive = download.fetch(
                        file, archives, patience=patience, report=report
                    )
                    report(f"unpacking {release.name} from {file.name}")
                    with on_disk(directory):
                        manifest["corpora"][key] = _unpack(archive, release, paths)
                        _keep(directory, manifest, paths.values())
                report(f"{key}: {manifest['corpora'][key]['pairs']:,} pairs")
    return {
        split: _data_set(directory, task, split, releases)
        for split, releases in task.splits.items()
    }


def read_segments(content: str) -> list[tuple[str, str]]:
    """Read the ids and texts of an SGML test set, in order.

    The test sets are not well-formed XML (a bare ``&`` occurs). Complete entities
    (``&amp;``, ``&#233;``) are decoded once, and line ends in a segment become spaces.
    """

    def decode(match: re.Match[str]) -> str:
        name = match[1]
        known = name.startswith("#") or f"{name};" in html.entities.html5
        return html.unescape(match[0]) if known else match[0]

    return [
        (identifier, re.sub(r"[ \t\r\n]+", " ", _ENTITY.sub(decode, text)).strip(" "))
        for identifier, text in _SEGMENT.findall(content)
    ]


def _release(corpus: str, source: str, target: str) -> Release:
    path, checksum, size, pattern = _CORPORA[corpus]
    other = source if target == "en" else target
    members = {
        language: pattern.format(
            language=language,
            side=side,
            other=other,
            pair=f"{other}-en",
            direction=f"{source}{target}",
        )
        for side, language in (("src", source), ("ref", target))
    }
    # The archives of test sets have one name. statmt.org answers on both protocols.
    name = path.rsplit("/", 1)[1] if size else f"{corpus}.tgz"
    schemes = ("https", "http") if "statmt.org/" in path else ("https",)
    addresses = tuple(f"{scheme}://{path}" for scheme in schemes)
    return Release(corpus, RemoteFile(name, addresses, checksum, size), members)


def _unpack(
    archive: Path, release: Release, paths: Mapping[str, Path]
) -> dict[str, str | int]:
    """Write both sides of a corpus as ``NAME.part``, and return its record."""
    languages = {member: language for language, member in release.members.items()}
    counts, identifiers = {}, []
    for member, content in _members(archive, set(languages)):
        lines = _lines(content)
        if member.endswith(".sgm"):
            segments = read_segments(b"\n".join(lines).decode())
            identifiers.append([identifier for identifier, _ in segments])
            lines = (text.encode() for _, text in segments)
        counts[member] = _write(Path(f"{paths[languages[member]]}.part"), lines)
    if len(set(counts.values())) != 1 or identifiers[:1] != identifiers[1:]:
        found = " and ".join(f"{name} has {count:,}" for name, count in counts.items())
        raise InputError(
            f"{archive}: both files must have the same lines and segments, but {found}"
            " lines; report it"
        )
    return {
        "archive": release.file.name,
        "address": release.file.addresses[0],
        "checksum": release.file.checksum,
        "pairs": min(counts.values()),
    }


def _keep(directory: Path, manifest: dict[str, Any], paths: Iterable[Path]) -> None:
    """Record files in the manifest, and then give them their final names.

    In this order every file with a final name is in the manifest; any other file is not
    ours to overwrite.
    """
    write_whole(directory / MANIFEST, json.dumps(manifest, indent=2) + "\n")
    for path in paths:
        os.replace(f"{path}.part", path)


def _members(archive: Path, missing: set[str]) -> Iterator[tuple[str, Iterable[bytes]]]:
    """Yield the name and the lines of each member, in the order of the archive.

    The lines are read before the next member. Nothing is written under a name that the
    archive chooses.
    """
    mode = "r|gz" if archive.suffix == ".tgz" else "r|"  # seeking would unpack again
    with tarfile.open(archive, mode) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name not in missing or not member.isfile():
                continue
            missing.remove(name)
            stream = tar.extractfile(member)
            assert stream is not None
            packed = name.endswith(".gz")
            yield name, gzip.GzipFile(fileobj=stream) if packed else stream
    if missing:
        raise InputError(f"{archive} has no member {', '.join(sorted(missing))}")


def _lines(content: Iterable[bytes]) -> Iterator[bytes]:
    """Take line ends and a byte order mark off."""
    for number, line in enumerate(content):
        line = line if number else line.removeprefix(_BOM)
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _write(path: Path, lines: Iterable[bytes]) -> int:
    """Write lines to the disk and return their number."""
    count = 0
    with path.open("wb") as output:
        for count, line in enumerate(lines, start=1):  # noqa: B007
            output.write(line + b"\n")
        output.flush()
        os.fsync(output.fileno())
    return count


def _read_manifest(directory: Path, task: Task) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.exists():
        return {"task": task.name, "corpora": {}}
    try:
        manifest = parse_json(path.read_bytes())
        name, _ = manifest["task"], [x["pairs"] for x in manifest["corpora"].values()]
    except (ValueError, KeyError, TypeError, AttributeError):
        manifest, name = {}, f"other files ({path.name})"
    if name != task.name:
        raise InputError(
            f"{directory} holds {name}: choose another directory for {task.name}"
        )
    return manifest


def _check_strangers(directory: Path, task: Task, manifest: dict[str, Any]) -> None:
    """Refuse files that would be overwritten, or read with the task's own."""
    for split, releases in task.splits.items():
        for language in task.languages:
            pattern = f"{split}.{_corpus(releases)}.{language}"
            for path in sorted(directory.glob(pattern)):
                if path.name.removesuffix(f".{language}") not in manifest["corpora"]:
                    raise InputError(
                        f"{path} is not a file of {task.name}, but would be read or"
                        " overwritten with it: move or remove it"
                    )


def _data_set(
    directory: Path, task: Task, split: str, releases: Sequence[Release]
) -> str:
    """Name a split for :func:`jaxformer.data.load`."""
    stem = f"{glob.escape(str(directory))}/{split}.{_corpus(releases)}"
    source, target = task.languages
    return f"text:{stem}.{source},{stem}.{target}"


def _corpus(releases: Sequence[Release]) -> str:
    return releases[0].name if len(releases) == 1 else "*"
