"""The examples run and use only public names; pages show parts of them and what they
print.
"""

import ast
import re
import runpy
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from name_uses import private_uses

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
PAGES = ("reuse.md", "attention-before.md")
TEXT = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(
    r'^```(\w+) title="([^"]+)"\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL
)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def shown(kind):
    """Return the blocks of a kind, with the example that each names."""
    return [(name, text) for found, name, text in BLOCKS if found == kind]


def contains(source, part):
    """Return whether a text contains lines of code, in whatever form the formatter gave
    them for their depth.
    """
    return squeeze(part) in squeeze(source)


def squeeze(code):
    """Remove white space, and commas before closing brackets."""
    return re.sub(r",?\s*([)\]}])|\s+", lambda found: found[1] or "", code)


def assert_same_output(found, expected):
    """Compare words and integers exactly; numbers with a point and percentages depend
    on the processor.
    """
    assert NUMBER.sub("#", found).split() == NUMBER.sub("#", expected).split()
    pairs = zip(NUMBER.finditer(found), NUMBER.finditer(expected), strict=True)
    for own, other in pairs:
        if "." in own[0] + other[0] or found[own.end() : own.end() + 1] == "%":
            tolerance = 0.05 if "." in own[0] else 5
            assert float(own[0]) == pytest.approx(
                float(other[0]), rel=0.05, abs=tolerance
            )
        else:
            assert own[0] == other[0]


SLOW = (
    "earlier_attention linen_language_model nnx_translation vision_transformer"
    " ngram_language_model"
)


def example(path):
    marks = [pytest.mark.slow] * (path.stem in SLOW.split())
    return pytest.param(path, marks=marks, id=path.stem)


@pytest.mark.parametrize("path", [*map(example, EXAMPLES)])
def test_example_prints_what_is_shown(path, capsys):
    """An example runs under JAX's default rules and prints what a page shows."""
    name = f"docs/examples/{path.name}"
    (expected,) = [text for file, text in shown("text") if file == name]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        runpy.run_path(str(path), run_name="__main__")
    assert_same_output(capsys.readouterr().out, expected)


def kneser_ney(orders, words, last, size):
    """Compute the probability of a word after others from counts of n-grams, the
    longest first (Chen and Goodman 1998, section 3).
    """
    if not orders:
        return 1 / size
    counts, *lower = orders
    rest = kneser_ney(lower, words[1:], last, size)
    n = Counter(counts.values())
    y = n[1] / (n[1] + 2 * n[2])
    discounts = [k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3)]
    after = {gram: count for gram, count in counts.items() if gram[:-1] == words}
    taken = {gram: discounts[min(count, 3) - 1] for gram, count in after.items()}
    own = after.get((*words, last), 0) - taken.get((*words, last), 0)
    return (own + sum(taken.values()) * rest) / sum(after.values()) if after else rest


def test_kneser_ney_is_its_formula():
    """Probabilities of the example's n-grams are those of the formula on dictionaries,
    and sum to 1 in float64, also after words that did not occur.
    """
    example = runpy.run_path(str(DOCS / "examples" / "ngram_language_model.py"))
    size = 300
    draws = np.random.default_rng(0).zipf(1.3, (900, 3)) % size
    grams = [*map(tuple, draws.tolist())]
    orders = [Counter(grams), Counter(x[1:] for x in {*grams})]
    orders.append(Counter(x[1:] for x in orders[1]))
    digits = size ** np.arange(2, -1, -1)
    model = example["KneserNey"](draws @ digits, 3, size)
    for words in ((299, 298), *(x[:2] for x in grams[:7])):
        asked = np.array([(*words, last) for last in range(size)])
        found = model.probability(asked @ digits)
        assert found.sum() == pytest.approx(1, rel=1e-12)
        expected = [kneser_ney(orders, words, last, size) for last in range(40)]
        np.testing.assert_allclose(found[:40], expected, rtol=1e-9)
    assert (299, 298) not in {x[:2] for x in grams}


def test_examples_and_snippets_use_public_names():
    """Each says how to run it. Each block of a page that names an example is
    part of it; every example has one.
    """
    for path in EXAMPLES:
        source = path.read_text(encoding="utf-8")
        assert private_uses(source) == []
        said = ast.get_docstring(ast.parse(source)) or ""
        assert f"    python docs/examples/{path.name}" in said
    blocks = shown("python")
    names = {f"docs/examples/{path.name}" for path in EXAMPLES}
    assert {name for name, _ in blocks} == names
    for name, text in blocks:
        assert contains((DOCS.parent / name).read_text(encoding="utf-8"), text), text
    others = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert others
    assert [private_uses(text) for text in others if private_uses(text)] == []
