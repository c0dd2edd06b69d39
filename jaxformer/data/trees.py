"""Trees of constituents as symbols that a translation model writes, and back (Vaswani
et al. 2017, section 6.3).

The symbols are those of Vinyals et al. (2015, section 2 and figure 1): a constituent
begins with ``(NP`` and ends with ``)NP``. Punctuation is its part of speech, such as
``.``, since F1 leaves it out; every other word is ``XX``. The words are only on the
source side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxformer.errors import InputError

WORD = "XX"
"""The symbol of a word that is no punctuation."""

PUNCTUATION = frozenset([",", ":", "``", "''", "."])
"""Parts of speech that EVALB deletes by COLLINS.prm; each is its own symbol."""

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class LinearTree:
    """A tree in parts.

    Attributes:
        words: of the sentence: what a parser reads.
        tags: the part of speech of each word.
        symbols: what a parser writes, with one :data:`WORD` or symbol of
            :data:`PUNCTUATION` for each word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    symbols: tuple[str, ...]


def linearize(tree: str) -> LinearTree:
    """Take a bracketed tree apart.

    As EVALB sees trees: without empty elements (``-NONE-``), what they alone fill, and
    the functions and indices of labels (``NP-SBJ-1`` is ``NP``). A bracket without a
    label, as the Penn Treebank has around a tree, is left out.

    Args:
        tree: in the Penn Treebank's brackets, on one line or several.

    Raises:
        InputError: the brackets do not form one tree, or it has no word.

    Example:
        >>> linearize("( (S (NP-SBJ (NNP John)) (VP (VBZ sleeps)) (. .)))").symbols
        ('(S', '(NP', 'XX', ')NP', '(VP', 'XX', ')VP', '.', ')S')
    """
    leaves: list[tuple[str, str]] = []
    # Of each open bracket its plain words, label first, and the symbols of what is
    # closed within it.
    opened: list[tuple[list[str], list[str]]] = [([], [])]
    for token in _TOKEN.findall(tree):
        if token == "(":
            opened.append(([], []))
        elif token != ")":
            opened[-1][0].append(token)
        elif len(opened) == 1:
            raise _broken(tree)
        else:
            plain, within = opened.pop()
            opened[-1][1].extend(_close(plain, within, leaves, tree))
    (plain, symbols), *open_still = opened
    if open_still or plain or not leaves or not _is_one(symbols):
        raise _broken(tree)
    tags, words = zip(*leaves, strict=True)
    return LinearTree(words, tags, tuple(symbols))


def restore(
    symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
) -> str:
    """Put a tree together again, whatever a model wrote: one bracketed tree of exactly
    these words, for EVALB.

    Where symbols form no tree of the words, the least is mended: an end without its
    beginning is passed over; an end closes what is open inside it; words that are left
    stand at the end of what is open, or of the whole; constituents without words go;
    and what is not one constituent becomes one of ``S``.

    Args:
        symbols: what the model wrote, split at spaces.
        words: of the sentence.
        tags: the part of speech of each word; by default :data:`WORD`. EVALB leaves out
            punctuation by its tag, and then needs those of the reference.

    Raises:
        InputError: there is no word, or another number of tags.

    Example:
        >>> restore("(S (NP XX )NP (VP XX".split(), ["John", "sleeps"], ["NNP", "VBZ"])
        '(S (NP (NNP John)) (VP (VBZ sleeps)))'
    """
    tags = [WORD] * len(words) if tags is None else tags
    if not words or len(tags) != len(words):
        raise InputError(
            f"a tree has one tag a word and one word at least, not {len(tags)} tags and"
            f" {len(words)} words"
        )
    leaves = [f"({tag} {word})" for tag, word in zip(tags, words, strict=True)][::-1]
    opened: list[tuple[str, list[str]]] = [("", [])]
    for symbol in symbols:
        label = symbol[1:]
        if symbol.startswith("(") and label:
            opened.append((label, []))
        elif symbol.startswith(")"):
            if label in [name for name, _ in opened[1:]]:
                while _end(opened) != label:
                    pass
        elif leaves:
            opened[-1][1].append(leaves.pop())
    opened[-1][1].extend(leaves[::-1])
    while len(opened) > 1:
        _end(opened)
    trees = opened[0][1]
    whole = len(trees) == 1 and trees[0].count("(") > 1
    return trees[0] if whole else f"(S {' '.join(trees)})"


def read_brackets(
    symbols: Sequence[str],
) -> tuple[list[str], list[tuple[str, int, int]]] | None:
    """Read the constituents of a tree of symbols.

    Returns:
        The symbols of the words, and label, start and end (exclusive) of each
        constituent, counted in words. None where the symbols are not one whole tree: an
        end does not match what is open, or something is left open or follows.

    Example:
        >>> read_brackets("(S (NP XX )NP . )S".split())
        (['XX', '.'], [('NP', 0, 1), ('S', 0, 2)])
        >>> read_brackets("(S XX )NP".split()) is None
        True
    """
    leaves: list[str] = []
    opened: list[tuple[str, int]] = []
    found: list[tuple[str, int, int]] = []
    for symbol in symbols:
        kind, label = symbol[:1], symbol[1:]
        if kind == "(":
            opened.append((label, len(leaves)))
        elif kind != ")":
            leaves.append(symbol)
        elif not opened or opened[-1][0] != label:
            return None
        else:
            found.append((*opened.pop(), len(leaves)))
    whole = (
        leaves and not opened and all(label for label, *_ in found) and _is_one(symbols)
    )
    return (leaves, found) if whole else None


def _close(
    plain: Sequence[str],
    within: Sequence[str],
    leaves: list[tuple[str, str]],
    tree: str,
) -> list[str]:
    """Return the symbols of a bracket that ends, and keep its word if it is one."""
    if len(plain) == 2 and not within:
        tag, word = plain
        if tag == "-NONE-":
            return []
        leaves.append((tag, word))
        return [tag if tag in PUNCTUATION else WORD]
    if len(plain) > 1:
        raise _broken(tree)
    # without a label it is around the whole tree; without symbols nothing is left of it
    if not plain or not within:
        return list(within)
    label = re.split("[-=]", plain[0])[0] or plain[0]
    return [f"({label}", *within, f"){label}"]


def _end(opened: list[tuple[str, list[str]]]) -> str:
    """Close the innermost constituent, and give its label."""
    label, children = opened.pop()
    if children:
        opened[-1][1].append(f"({label} {' '.join(children)})")
    return label


def _is_one(symbols: Sequence[str]) -> bool:
    """Return whether symbols are one constituent, or one word: nothing follows where
    the first ends.
    """
    depth = 0
    for place, symbol in enumerate(symbols, start=1):
        depth += symbol.startswith("(") - symbol.startswith(")")
        if depth == 0:
            return place == len(symbols)
    return False


def _broken(tree: str) -> InputError:
    start = " ".join(tree.split())[:60]
    return InputError(
        "a line is one tree in brackets, such as (S (NP (NNP John)) (VP (VBZ"
        f" sleeps))), not {start!r}"
    )
