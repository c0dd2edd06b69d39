"""The examples run and use only public names; docs/reuse.md shows parts of them and
what they print.
"""

import ast
import re
import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from name_uses import private_uses

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted((DOCS / "examples").glob("*.py"))
TEXT = (DOCS / "reuse.md").read_text(encoding="utf-8")
BLOCKS = re.findall(
    r'^```(\w+) title="([^"]+)"\n(.*?)^```$', TEXT, re.MULTILINE | re.DOTALL
)
SLOW = ("nnx_translation",)
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
    for own, other in zip(
        NUMBER.finditer(found), NUMBER.finditer(expected), strict=True
    ):
        rounded = "." in own[0] + other[0] or found[own.end() : own.end() + 1] == "%"
        tolerance = 0.05 if "." in own[0] else 5
        if rounded:
            np.testing.assert_allclose(
                float(own[0]), float(other[0]), atol=tolerance, rtol=0.05
            )
        else:
            assert own[0] == other[0]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem in SLOW), id=path.stem)
        for path in EXAMPLES
    ],
)
def test_example_prints_what_is_shown(path, capsys):
    """An example runs under JAX's default rules and prints what docs/reuse.md shows."""
    (expected,) = [
        text for name, text in shown("text") if name == f"docs/examples/{path.name}"
    ]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        runpy.run_path(str(path), run_name="__main__")
    assert_same_output(capsys.readouterr().out, expected)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_uses_public_names(path):
    """An example needs only public names of jaxformer, and says how to run it."""
    source = path.read_text(encoding="utf-8")
    assert private_uses(source) == []
    assert f"    python docs/examples/{path.name}" in (
        ast.get_docstring(ast.parse(source)) or ""
    )


def test_snippets_are_parts_of_the_examples():
    """Each block of docs/reuse.md that names an example is part of it; every example
    has one.
    """
    blocks = shown("python")
    assert {name for name, _ in blocks} == {
        f"docs/examples/{path.name}" for path in EXAMPLES
    }
    for name, text in blocks:
        assert contains((DOCS.parent / name).read_text(encoding="utf-8"), text), (
            f"{name} does not hold:\n{text}"
        )


def test_other_blocks_use_public_names():
    """The other blocks of docs/reuse.md need only public names."""
    others = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert others
    for text in others:
        assert private_uses(text) == []


def test_a_changed_snippet_is_seen():
    """The comparisons fail on changed lines, order, words and numbers."""
    source = "def f():\n    a = 1\n    b = 2\n"
    assert contains(source, "a = 1\nb = 2\n")
    assert not contains(source, "a = 1\nb = 3\n")
    assert not contains(source, "b = 2\na = 1\n")
    assert_same_output(
        "loss 1.32, 200 steps, 97% right", "loss 1.30, 200 steps, 99% right"
    )
    for wrong in (
        "loss 1.52, 200 steps, 97% right",
        "loss 1.32, 201 steps, 97% right",
        "loss 1.32, 200 steps, 80% right",
    ):
        with pytest.raises(AssertionError):
            assert_same_output(wrong, "loss 1.30, 200 steps, 99% right")
