#!/usr/bin/env python3
"""Turn trees of constituents into lines that a translation model writes, and back
(Vaswani et al. 2017, section 6.3).

    python scripts/trees.py linearize wsj23.mrg wsj23
    python scripts/trees.py restore wsj23.txt hypotheses.trees > hypotheses.mrg

The first reads bracketed trees, one a line, and writes the words of each to
``wsj23.txt`` and its symbols to ``wsj23.trees``. The second puts the trees of a model
together again, for EVALB.

The symbols are those of Vinyals et al. (2015, section 2 and figure 1): a constituent
begins with ``(NP`` and ends with ``)NP``. Punctuation is its part of speech, such as
``.``, because F1 ignores it; every other word is ``XX``. The words are only on the
source side.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.data.files import read_lines
from jaxformer.errors import InputError
from jaxformer.evaluation.bracketing import PUNCTUATION, is_one_tree
from jaxformer.files import write_whole

WORD = "XX"
"""The symbol of a word other than punctuation."""

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
    """Split a bracketed tree into words, tags and symbols.

    The tree is as EVALB sees it: without empty elements (``-NONE-``) and constituents
    of only these, and without the functions and indices of labels (``NP-SBJ-1`` is
    ``NP``). A bracket without a label around the tree is dropped.

    Args:
        tree: in the Penn Treebank's brackets, on one line or several.

    Raises:
        InputError: the brackets do not form one tree, or it has no word.

    Example:
        >>> linearize("( (S (NP-SBJ (NNP John)) (VP (VBZ sleeps)) (. .)))").symbols
        ('(S', '(NP', 'XX', ')NP', '(VP', 'XX', ')VP', '.', ')S')
    """
    leaves: list[tuple[str, str]] = []
    # For each open bracket its words, label first, and the symbols inside it.
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
    if open_still or plain or not leaves or not is_one_tree(symbols):
        raise _broken(tree)
    tags, words = zip(*leaves, strict=True)
    return LinearTree(words, tags, tuple(symbols))


def restore(
    symbols: Sequence[str], words: Sequence[str], tags: Sequence[str] | None = None
) -> str:
    """Build one bracketed tree of exactly these words from any output of a model.

    Symbols that are not a tree of the words are mended: an end without its beginning is
    ignored; an end closes what is open inside it; remaining words are appended to what
    is open, or to the whole; constituents without words are dropped; and several
    constituents become one of ``S``.

    Args:
        symbols: what the model wrote, split at spaces.
        words: of the sentence.
        tags: the part of speech of each word; by default :data:`WORD`. EVALB ignores
            punctuation by its tag, which must then be the reference's.

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


def _close(
    plain: Sequence[str],
    within: Sequence[str],
    leaves: list[tuple[str, str]],
    tree: str,
) -> list[str]:
    """Return the symbols of a bracket that ends; append its word to ``leaves``."""
    if len(plain) == 2 and not within:
        tag, word = plain
        if tag == "-NONE-":
            return []
        leaves.append((tag, word))
        return [tag if tag in PUNCTUATION else WORD]
    if len(plain) > 1:
        raise _broken(tree)
    # Without a label it is around the whole tree; without symbols it is empty.
    if not plain or not within:
        return list(within)
    label = re.split("[-=]", plain[0])[0] or plain[0]
    return [f"({label}", *within, f"){label}"]


def _end(opened: list[tuple[str, list[str]]]) -> str:
    """Close the innermost constituent and return its label."""
    label, children = opened.pop()
    if children:
        opened[-1][1].append(f"({label} {' '.join(children)})")
    return label


def _broken(tree: str) -> InputError:
    start = " ".join(tree.split())[:60]
    return InputError(
        "a line is one tree in brackets, such as (S (NP (NNP John)) (VP (VBZ"
        f" sleeps))), not {start!r}"
    )


def main() -> None:
    """Convert the files that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("linearize", help="trees to words and symbols")
    command.add_argument("trees", type=Path, help="bracketed trees, one a line")
    command.add_argument("stem", help="writes STEM.txt and STEM.trees")
    command = commands.add_parser("restore", help="words and symbols to trees")
    command.add_argument("words", type=Path, help="sentences, one a line")
    command.add_argument("symbols", type=Path, help="what a model wrote, one a line")
    options = parser.parse_args()
    if options.command == "restore":
        words, symbols = read_lines(options.words), read_lines(options.symbols)
        for sentence, line in zip(words, symbols, strict=True):
            print(restore(line.split(), sentence.split()))
        return
    parts = [linearize(line) for line in read_lines(options.trees)]
    for name, lines in (
        ("txt", [part.words for part in parts]),
        ("trees", [part.symbols for part in parts]),
    ):
        text = "".join(" ".join(line) + "\n" for line in lines)
        write_whole(Path(f"{options.stem}.{name}"), text)


if __name__ == "__main__":
    main()
