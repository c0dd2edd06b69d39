"""Imports go downward only: the floors of the house, read from the source of every
module.
"""

import ast
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From the ground to the roof. A floor has rooms, and a room is a tuple of modules: `.*`
# stands for a folder and all that is in it. A module may import from its own room and
# from every floor below; not from above or from next door.
FLOORS = (
    (
        ("jaxformer.typing",),
        ("jaxformer.errors", "jaxformer.files", "jaxformer.table", "jaxformer.signals"),
    ),
    (("jaxformer.functional.*",), ("jaxformer.data.*",)),
    (("jaxformer.nn.*",),),
    (("jaxformer.models.*",), ("jaxformer.search.*",)),
    (("jaxformer",),),  # what `import jaxformer` offers
    (("jaxformer.runs.*",), ("jaxformer.checkpoints.*",)),
    (("jaxformer.training.*",), ("jaxformer.translation.*",)),
    (("jaxformer.interop.*",), ("jaxformer.evaluation.*",)),
    (("jaxformer.visualization.*",), ("jaxformer.serving.*",)),
    (("jaxformer.paper.*",),),
    (("jaxformer.diagnosis.*",),),
    (("jaxformer.cli.*", "jaxformer.__main__"),),
    (("configs.*",), ("scripts.*",)),
)

# What a room does not see although it lies below: search knows a step function and
# never a model.
HIDDEN = {("jaxformer.search.*",): ("jaxformer.nn.*", "jaxformer.data.*")}

# The only packages from outside, beyond Python's own, that these rooms import:
# arithmetic serves plain JAX, and data know nothing of what will learn from them.
OUTSIDE = {
    ("jaxformer.functional.*",): {"jax", "numpy"},
    ("jaxformer.data.*",): {"numpy"},
    ("jaxformer.search.*",): {"jax", "numpy"},
}

# What the top of the package imports when it is first asked for.
LAZY = {"jaxformer": {"jaxformer.translation.translator", "jaxformer.training"}}


@dataclass(frozen=True)
class Import:
    """One import: the module that imports, what it imports, the line, and whether it
    waits until a function runs.
    """

    module: str
    target: str
    line: int
    lazy: bool


def find_modules():
    """Map the dotted name of every module to its file."""
    modules = {}
    for folder in ("jaxformer", "configs", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


def find_imports(source, module, package, known):
    """Read the imports of a source text; ``package`` says whether it is an
    ``__init__``.
    """
    found = []

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            found.extend(
                Import(module, name.name, node.lineno, lazy) for name in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            base = resolve(node.module, node.level, module, package)
            for name in node.names:
                # `from a import b` imports the module a.b if there is one
                whole = f"{base}.{name.name}"
                found.append(
                    Import(module, whole if whole in known else base, node.lineno, lazy)
                )
        waits = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waits |= isinstance(node, ast.If) and ast.unparse(node.test).endswith(
            "TYPE_CHECKING"
        )
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or waits)

    visit(ast.parse(source), False)
    return found


def resolve(name, level, module, package):
    """Turn the name after `from` into an absolute one."""
    if level == 0:
        return name
    parts = module.split(".")
    kept = parts[: len(parts) - level + package]
    return ".".join([*kept, name] if name else kept)


def matches(module, patterns):
    """Return whether a module is one of a room's."""
    return any(
        module == pattern.removesuffix(".*")
        or (pattern.endswith(".*") and module.startswith(pattern[:-1]))
        for pattern in patterns
    )


def locate(module):
    """Return the floor and the room of a module, or None if it stands on no floor."""
    for floor, rooms in enumerate(FLOORS):
        for room in rooms:
            if matches(module, room):
                return floor, room
    return None


def judge(found, floor, room):
    """Say what is wrong with one import of a module that stands there, or None."""
    where = f"{found.module}, line {found.line}: imports {found.target}"
    top = found.target.split(".")[0]
    if top not in ("jaxformer", "configs", "scripts"):
        allowed = OUTSIDE.get(room)
        wrong = (
            allowed is not None
            and top not in allowed
            and top not in sys.stdlib_module_names
        )
        return (
            f"{where}, but this room takes only {sorted(allowed)} from outside"
            if wrong
            else None
        )
    target = locate(found.target)
    if target is None:
        return f"{where}, which stands on no floor"
    if found.lazy and found.target in LAZY.get(found.module, ()):
        return None
    if target[1] == room:
        return None
    if target[0] >= floor:
        return f"{where}, from {'above' if target[0] > floor else 'next door'}"
    if matches(found.target, HIDDEN.get(room, ())):
        return f"{where}, which this room does not see"
    return None


def check(source, module, package=False, known=()):
    """List what is wrong with the imports of a source text."""
    place = locate(module)
    if place is None:
        return [f"{module} stands on no floor"]
    verdicts = [
        judge(found, *place) for found in find_imports(source, module, package, known)
    ]
    return [verdict for verdict in verdicts if verdict]


def test_imports_go_downward():
    """No module of the house imports from above, from next door or from where it
    does not see.
    """
    modules = find_modules()
    wrong = []
    for module, path in modules.items():
        wrong += check(
            path.read_text(encoding="utf-8"),
            module,
            path.name == "__init__.py",
            modules,
        )
    assert not wrong, "\n".join(wrong)


def test_every_module_is_read():
    """The search for modules finds the rooms that exist, packages and plain files
    alike.
    """
    modules = find_modules()
    assert {
        "jaxformer",
        "jaxformer.typing",
        "jaxformer.nn",
        "jaxformer.search.beam",
    } <= set(modules)
    assert {module.split(".")[0] for module in modules} == {
        "jaxformer",
        "configs",
        "scripts",
    }
    assert all(path.is_file() for path in modules.values())


def test_no_module_has_two_places():
    """A module stands in one room."""
    rooms = [room for floor in FLOORS for room in floor]
    for module in find_modules():
        assert sum(matches(module, room) for room in rooms) == 1, module


KNOWN = {
    "jaxformer.training.loop",
    "jaxformer.nn.blocks",
    "jaxformer.data.sources",
    "jaxformer.translation.translator",
}


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        ("jaxformer.functional.layers", "from jaxformer.nn import blocks", "above"),
        (
            "jaxformer.functional.layers",
            "from jaxformer.nn.blocks import FeedForward",
            "above",
        ),
        ("jaxformer.functional.layers", "import jaxformer.nn.blocks", "above"),
        ("jaxformer.functional.layers", "import jaxformer", "above"),
        ("jaxformer.functional.layers", "from jaxformer import training", "above"),
        # no such submodule: the top itself
        ("jaxformer.functional.layers", "from jaxformer import data", "above"),
        (
            "jaxformer.functional.layers",
            "from jaxformer.data import sources",
            "next door",
        ),
        ("jaxformer.functional.layers", "import flax.linen as nn", "from outside"),
        (
            "jaxformer.data.sources",
            "def f():\n    import jax.numpy as jnp",
            "from outside",
        ),
        (
            "jaxformer.data.sources",
            "from jaxformer.models.config import TransformerConfig",
            "above",
        ),
        ("jaxformer.data.sources", "from ..training import loop", "above"),
        ("jaxformer.data.sources", "from .. import training", "above"),
        (
            "jaxformer.nn.blocks",
            "def f():\n    from jaxformer.models import config",
            "above",
        ),
        (
            "jaxformer.nn.blocks",
            (
                "try:\n    from jaxformer.cli.main import main\nexcept ImportError:\n  "
                "  pass"
            ),
            "above",
        ),
        (
            "jaxformer.nn.blocks",
            (
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import"
                " jaxformer.cli"
            ),
            "above",
        ),
        ("jaxformer.search.beam", "from jaxformer.nn import blocks", "does not see"),
        (
            "jaxformer.search.beam",
            "from jaxformer.models.seq2seq import Transformer",
            "next door",
        ),
        (
            "jaxformer.search.beam",
            "from jaxformer.translation.translator import Translator",
            "above",
        ),
        ("jaxformer.search.beam", "from ..translation import translator", "above"),
        (
            "jaxformer.translation.translator",
            "from jaxformer.training import config",
            "next door",
        ),
        ("jaxformer.search.beam", "import optax", "from outside"),
        (
            "jaxformer.checkpoints.manager",
            "from jaxformer.training.loop import train",
            "above",
        ),
        (
            "jaxformer.translation.translator",
            "from jaxformer.evaluation import metrics",
            "above",
        ),
        (
            "jaxformer.evaluation.metrics",
            "from jaxformer.interop import torch",
            "next door",
        ),
        ("jaxformer.cli.main", "import configs.quickstart", "above"),
        ("jaxformer.cli.main", "import jaxformer.attic", "no floor"),
        ("jaxformer.attic.old", "import os", "no floor"),
        ("jaxformer.attic.new", "", "no floor"),
        ("jaxformer", "from jaxformer.training.loop import train", "above"),
        (
            "jaxformer",
            "from jaxformer.translation.translator import Translator",
            "above",
        ),
        (
            "jaxformer",
            "def f():\n    from jaxformer.training.loop import train",
            "above",
        ),
    ],
)
def test_a_planted_import_is_caught(module, source, word):
    """The check fails for each kind of wrong import and each way of writing it."""
    known = KNOWN | {"jaxformer.training", "jaxformer.nn", "jaxformer.models"}
    wrong = check(source, module, package=module == "jaxformer", known=known)
    assert len(wrong) == 1
    assert word in wrong[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "jaxformer.functional.layers",
            "import math\nimport jax.numpy as jnp\nfrom jaxformer.typing import Array",
        ),
        (
            "jaxformer.functional.layers",
            "from . import masks\nfrom .masks import causal_mask",
        ),
        (
            "jaxformer.nn.blocks",
            "from jaxformer.functional import layers\nfrom ..functional import layers",
        ),
        ("jaxformer.search.beam", "from .scoring import length_penalty"),
        (
            "jaxformer.translation.translator",
            "from .batch import search_batch\nfrom jaxformer.models import Transformer",
        ),
        (
            "jaxformer.evaluation.evaluate",
            "from jaxformer.training import loop\nfrom . import metrics",
        ),
        (
            "jaxformer",
            "def f():\n    from jaxformer.translation.translator import Translator",
        ),
        ("jaxformer.cli.train", "from jaxformer import __version__\nimport rich"),
        ("scripts.train", "from jaxformer.cli.main import main"),
    ],
)
def test_a_downward_import_passes(module, source):
    """The check lets right imports pass."""
    known = KNOWN | {
        "jaxformer.functional",
        "jaxformer.functional.layers",
        "jaxformer.functional.masks",
    }
    assert check(source, module, package=module == "jaxformer", known=known) == []
