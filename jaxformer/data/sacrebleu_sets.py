"""The test sets of sacreBLEU, which it fetches itself."""

from __future__ import annotations

import socket
import urllib.error
from collections.abc import Iterator
from pathlib import Path

from jaxformer.data.files import open_parallel
from jaxformer.data.hub import quiet
from jaxformer.data.records import Pair, did_you_mean
from jaxformer.errors import InputError, first_line, require

_SECONDS = 60.0


def check_sacrebleu(test_set: str, source_language: str, target_language: str) -> None:
    """Check that sacreBLEU has a test set for a direction; nothing is fetched.

    Raises:
        InputError: no such test set (with the nearest name), or not for these languages
            (with those it has).
    """
    known = require("sacrebleu.dataset", "train").DATASETS
    if test_set not in known:
        near = did_you_mean(test_set, known)
        raise InputError(
            "sacreBLEU has no test set"
            f" {test_set!r}{near or '; `sacrebleu --list` shows them'}"
        )
    pairs = list(known[test_set].langpairs)
    if f"{source_language}-{target_language}" not in pairs:
        raise InputError(
            f"sacrebleu:{test_set} does not go from {source_language!r} to"
            f" {target_language!r}: it has {', '.join(pairs)}"
        )


def read_sacrebleu(
    test_set: str, source_language: str, target_language: str
) -> Iterator[Pair]:
    """Yield the pairs of a test set of sacreBLEU, with the first of its references.

    It is fetched unless it is in sacreBLEU's folder: ``SACREBLEU``, by default
    ``~/.sacrebleu``.

    Raises:
        InputError: no such test set or direction, or it cannot be fetched (with the
            addresses).
    """
    check_sacrebleu(test_set, source_language, target_language)
    sacrebleu = require("sacrebleu.utils", "train")
    pair = f"{source_language}-{target_language}"
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)  # sacreBLEU has no timeout
    try:
        with quiet("sacrebleu"):
            source = sacrebleu.get_source_file(test_set, pair)
            target = sacrebleu.get_reference_files(test_set, pair)[0]
    # Any failure in there is of the network, the disk or the archive; a wrong checksum
    # raises SystemExit.
    except (Exception, SystemExit) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it holds the connection
        reason = first_line(error)
        if isinstance(error, SystemExit):
            reason = "wrong checksum or certificate"
        folder = Path(sacrebleu.SACREBLEU_DIR) / test_set
        addresses = " and ".join(sacrebleu.DATASETS[test_set].data or ["its address"])
        raise InputError(
            f"cannot get sacrebleu:{test_set} from {addresses} ({reason}): check the"
            f" network, remove {folder} and try again, or copy that folder from a"
            " machine that has it"
        ) from None
    finally:
        socket.setdefaulttimeout(patience)
    yield from map(Pair._make, open_parallel([Path(source)], [Path(target)]))
