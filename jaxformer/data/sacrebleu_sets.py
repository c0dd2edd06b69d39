"""The test sets of sacreBLEU, which it fetches itself."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path

from jaxformer.data.files import open_parallel
from jaxformer.data.hub import quiet
from jaxformer.data.language_codes import find_language
from jaxformer.data.records import Pair
from jaxformer.errors import InputError, did_you_mean, first_line, require


def find_direction(test_set: str, languages: tuple[str, str]) -> str:
    """Return sacreBLEU's name of a direction, ``en-de`` also for ``eng_Latn`` and
    ``deu_Latn``; nothing is fetched.

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
    sides = zip(*(pair.split("-") for pair in pairs), strict=True)
    found = map(find_language, languages, map(set, sides))
    direction = "-".join(map(str, found))
    if direction not in pairs:
        raise InputError(
            f"sacrebleu:{test_set} does not go from {languages[0]!r} to"
            f" {languages[1]!r}: it has {', '.join(pairs)}"
        )
    return direction


def read_sacrebleu(test_set: str, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yield the pairs of a test set of sacreBLEU, with the first of its references.

    It is fetched unless it is in sacreBLEU's folder: ``SACREBLEU``, by default
    ``~/.sacrebleu``.

    Raises:
        InputError: no such test set or direction, or it cannot be fetched (with the
            addresses).
    """
    pair = find_direction(test_set, languages)
    sacrebleu = require("sacrebleu.utils", "train")
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
    yield from map(Pair._make, open_parallel([Path(source)], [Path(target)]))
