"""Where to cut a sentence that is longer than a model takes."""

from __future__ import annotations

from collections.abc import Sequence

_WORD = "▁"
# A cut after the first kind is better than one after the second, and that than one between any two words.
_FULL_WIDTH = "。！？"
_ENDS = (".!?…。！？।؟", ",;:–—、，；：،")


def split(pieces: Sequence[str], limit: int) -> list[tuple[int, int]]:
    """Cut the pieces of a sentence into runs of at most ``limit``, each as ``(start, stop)``.

    A run ends before the last word that follows the end of a sentence, or else another mark, or else before the last
    word that begins, always in the second half of what it may hold; or, where no word begins there, at the limit.

    Example:
        >>> split(["▁One", ".", "▁Two", "▁and", "▁three", "."], 4)
        [(0, 4), (4, 6)]
    """
    runs, start = [], 0
    while len(pieces) - start > limit:
        stop = start + _length(pieces[start : start + limit + 1], limit)
        runs.append((start, stop))
        start = stop
    runs.append((start, len(pieces)))
    return runs


def _length(pieces: Sequence[str], limit: int) -> int:
    """Choose how many of the first ``limit`` pieces to take, given one more than these."""
    places = range(limit, limit // 2, -1)
    words = [index for index in places if pieces[index].startswith(_WORD)]
    # In scripts without spaces a mark ends a sentence wherever it stands.
    for ends, allowed in ((_FULL_WIDTH, places), *((ends, words) for ends in _ENDS)):
        for index in allowed:
            if pieces[index - 1].endswith(tuple(ends)):
                return index
    return words[0] if words else limit
