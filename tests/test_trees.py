"""Bracketed trees become lines of symbols and come back; whatever a model writes
becomes a tree of the same words.
"""

import doctest
import importlib.util
import subprocess
import sys

import numpy as np
import pytest

import runs
from jaxformer.errors import InputError
from jaxformer.evaluation.bracketing import F1

SCRIPT = runs.ROOT / "scripts" / "trees.py"
spec = importlib.util.spec_from_file_location("trees_script", SCRIPT)
trees = importlib.util.module_from_spec(spec)
sys.modules["trees_script"] = trees  # dataclasses look it up
spec.loader.exec_module(trees)
WORD, linearize, restore = trees.WORD, trees.linearize, trees.restore

LABELS = ("S", "NP", "VP", "PP", "SBAR", "-LRB-X")


def draw_tree(generator, depth=0):
    """Draw a random tree: a word, or a constituent of some."""
    if depth == 4 or (depth and generator.random() < 0.4):
        return f"(T{generator.integers(9)} w{generator.integers(99)})"
    children = [
        draw_tree(generator, depth + 1) for _ in range(generator.integers(1, 4))
    ]
    return f"({generator.choice(LABELS)} {' '.join(children)})"


def leaves_of(tree):
    """Return tags and words by another road: the innermost brackets."""
    flat = [part.split(")")[0].split() for part in tree.split("(")]
    return [tuple(part) for part in flat if len(part) == 2]


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(trees).failed == 0


def test_there_and_back_is_the_identity():
    """A tree without functions and empty elements comes back as it was, and its
    symbols hold one word for each leaf.
    """
    generator = np.random.default_rng(0)
    for _ in range(60):
        tree = draw_tree(generator)
        parts = linearize(f"( {tree} )")
        assert restore(parts.symbols, parts.words, parts.tags) == tree
        assert list(zip(parts.tags, parts.words, strict=True)) == leaves_of(tree)
        assert parts.symbols.count(WORD) == len(parts.words)
        assert linearize(tree) == parts  # the outer bracket says nothing


def test_what_evalb_does_not_see_goes():
    """Functions, indices and empty elements go, with the constituents that they
    alone fill.
    """
    tree = """( (S (NP-SBJ-1 (DT The) (NN man))
        (VP (VBD was) (VP (VBN seen) (NP (-NONE- *-1))
        (PP=2 (-LRB- -LRB-) (NP (NN x))))))) """
    parts = linearize(tree)
    assert (
        " ".join(parts.symbols)
        == "(S (NP XX XX )NP (VP XX (VP XX (PP XX (NP XX )NP )PP )VP )VP )S"
    )
    assert parts.words == ("The", "man", "was", "seen", "-LRB-", "x")
    assert parts.tags == ("DT", "NN", "VBD", "VBN", "-LRB-", "NN")
    # The punctuation that F1 ignores is kept apart.
    tree = "( (S (NP-SBJ (NNP John)) (, ,) (VP (VBZ sleeps) (`` ``) (NN x)) (. .)))"
    line = " ".join(linearize(tree).symbols)
    assert line == "(S (NP XX )NP , (VP XX `` XX )VP . )S"
    assert tuple(F1.statistics([line], [line]).rows[0]) == (3, 3, 3)


def test_anything_becomes_a_tree_of_the_words():
    """Of random symbols: one tree, of exactly the words and tags, in their order;
    mended once, it stays as it is.
    """
    generator = np.random.default_rng(1)
    alphabet = ["(S", ")S", "(NP", ")NP", "XX", "XX", "(", ")", "word"]
    for _ in range(100):
        words = [f"w{i}" for i in range(generator.integers(1, 8))]
        tags = [f"T{i}" for i in range(len(words))]
        tree = restore(
            list(generator.choice(alphabet, generator.integers(0, 20))), words, tags
        )
        assert leaves_of(tree) == list(zip(tags, words, strict=True))
        parts = linearize(tree)
        assert restore(parts.symbols, parts.words, parts.tags) == tree


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("(S (NP XX )NP (VP XX )VP )S", "(S (NP (XX a)) (VP (XX b)))"),
        ("(S (NP XX )VP (VP XX", "(S (NP (XX a) (VP (XX b))))"),
        ("(S (NP XX )S", "(S (S (NP (XX a))) (XX b))"),
        ("(S (NP )NP (VP XX XX XX )VP )S", "(S (VP (XX a) (XX b)))"),
        ("(NP XX )NP (VP XX )VP", "(S (NP (XX a)) (VP (XX b)))"),
        ("", "(S (XX a) (XX b))"),
    ],
)
def test_the_least_is_mended(symbols, tree):
    """Each kind of fault, and what becomes of it."""
    assert restore(symbols.split(), ["a", "b"]) == tree


def test_what_is_no_tree_is_refused():
    """In one line that shows a tree. There is one tag a word, and a word at least."""
    for tree in ("", "word", "(S (NN a)", "(S (NN a)))", "(S (-NONE- *))", "(S a b c)"):
        with pytest.raises(
            InputError, match=r"^a line is one tree in brackets, such as"
        ):
            linearize(tree)
    for words, tags in (([], None), (["a"], ["X", "Y"])):
        with pytest.raises(InputError, match="one tag a word and one word at least"):
            restore(["(S", "XX", ")S"], words, tags)


def test_files_of_trees_become_lines_and_trees_again(tmp_path):
    """As a user calls the script, once each way."""
    generator = np.random.default_rng(2)
    written = [draw_tree(generator) for _ in range(5)]
    (tmp_path / "a.mrg").write_text("".join(f"( {tree} )\n" for tree in written))
    for arguments in (["linearize", "a.mrg", "a"], ["restore", "a.txt", "a.trees"]):
        done = subprocess.run(
            [sys.executable, SCRIPT, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            env=runs.environment(),
        )
    for tree, line in zip(written, done.stdout.splitlines(), strict=True):
        assert linearize(line).symbols == linearize(tree).symbols
