"""Imports go downward only, read from the source of every module."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("jaxformer", "configs", "scripts")

# From the ground to the roof: a module imports from its own room and from the floors
# below, not from above and not from next door.
FLOORS = """
typing errors
bucket
files table signals
functional data
kernels
nn
models search
jaxformer
runs checkpoints
training translation
interop evaluation
visualization serving
paper
diagnosis
cli
configs scripts
"""
FLOOR = {
    room: number
    for number, line in enumerate(FLOORS.split("\n"))
    for room in line.split()
}

# Lower rooms that a room does not see: search knows a step function, never a model.
HIDDEN = {"search": {"nn", "data"}}

# The only packages, beyond Python's own, that these rooms import.
OUTSIDE = {
    "functional": {"jax", "jaxtyping", "numpy"},
    "data": {"numpy"},
    "search": {"jax", "numpy"},
}

# What belongs in kernels, not among the equations.
FASTER = ("custom_jvp", "custom_vjp", "platform_dependent", "backend", "pallas")

# What `import jaxformer` offers from above loads when it is first used.
OFFERED = {"jaxformer.translation.translator", "jaxformer.training"}


def room_of(module):
    """Return the room of a module: the first folder or file in the package."""
    parts = module.replace("__main__", "cli").split(".")
    return parts[1] if parts[0] == "jaxformer" and len(parts) > 1 else parts[0]


def find_modules():
    """Map the dotted name of every module to its file."""
    found = {}
    for path in sorted(path for top in TOPS for path in (ROOT / top).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def find_imports(source, module, is_package, known):
    """Yield the modules that a text imports, and whether the import waits for a call
    or for a type checker.
    """
    package = module if is_package else module.rpartition(".")[0]
    pending = [(ast.parse(source), False)]
    while pending:
        node, waits = pending.pop()
        if isinstance(node, ast.Import):
            yield from ((name.name, waits) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(name, package)
            for name in node.names:
                whole = f"{base}.{name.name}"
                yield (whole if whole in known else base), waits
        waits |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waits |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        pending += [(child, waits) for child in ast.iter_child_nodes(node)]


def faults(source, module, is_package=False, known=()):
    """List what is wrong with the imports of a module."""
    room = room_of(module)
    if room not in FLOOR:
        return [f"{module} stands on no floor"]
    found = []
    for target, waits in find_imports(source, module, is_package, known):
        top, other = target.split(".")[0], room_of(target)
        if top not in TOPS:
            allowed = OUTSIDE.get(room, {top}) | set(sys.stdlib_module_names)
            fault = top not in allowed and "from outside"
        elif other not in FLOOR:
            fault = "on no floor"
        elif other == room or (module == "jaxformer" and waits and target in OFFERED):
            fault = None
        elif FLOOR[other] >= FLOOR[room]:
            fault = "from above" if FLOOR[other] > FLOOR[room] else "from next door"
        else:
            fault = other in HIDDEN.get(room, ()) and "which it does not see"
        if fault:
            found.append(f"{module} imports {target}, {fault}")
    return found


def test_imports_go_downward():
    modules = find_modules()
    assert {"jaxformer", "jaxformer.typing", "jaxformer.search.beam"} <= set(modules)
    assert {module.split(".")[0] for module in modules} == set(TOPS)
    wrong = [
        fault
        for module, path in modules.items()
        for fault in faults(
            path.read_text(encoding="utf-8"), module, path.stem == "__init__", modules
        )
    ]
    assert wrong == []


def test_equations_are_plain():
    """functional has no rule of differentiation, platform or backend of its own."""
    texts = [
        path.read_text(encoding="utf-8")
        for path in (ROOT / "jaxformer" / "functional").rglob("*.py")
    ]
    assert texts
    assert [word for word in FASTER if word in "".join(texts)] == []


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("functional.layers", "from jaxformer.nn import blocks", "from above"),
        ("functional.layers", "from jaxformer.data import load", "from next door"),
        ("functional.layers", "import flax.linen as nn", "from outside"),
        ("data.sources", "def f():\n import jax", "from outside"),
        ("data.sources", "from .. import training", "from above"),
        ("nn.blocks", "def f():\n from jaxformer.models import config", "from above"),
        ("nn.blocks", "try:\n import jaxformer.cli\nexcept A:\n 1", "from above"),
        ("nn.blocks", "if TYPE_CHECKING:\n import jaxformer.cli", "from above"),
        ("search.beam", "from jaxformer.nn import blocks", "which it does not see"),
        ("search.beam", "import jaxformer.models.config", "from next door"),
        ("cli.main", "import jaxformer.attic", "on no floor"),
        ("attic.old", "", "on no floor"),
        ("", "def f():\n import jaxformer.training.loop", "from above"),
    ],
)
def test_a_planted_import_is_found(module, source, fault):
    """Each kind of wrong import is found, in each way of writing it."""
    module = f"jaxformer.{module}".rstrip(".")
    (found,) = faults(source, module, module == "jaxformer", {"jaxformer.training"})
    assert found.endswith(fault)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("functional.layers", "import math, jax\nfrom jaxformer.typing import Array"),
        ("functional.layers", "from . import masks\nfrom .masks import causal_mask"),
        ("nn.blocks", "from ..functional import layers\nimport flax"),
        ("", "def f():\n from jaxformer.translation.translator import Translator"),
        ("cli.train", "from jaxformer import __version__\nimport rich"),
    ],
)
def test_a_downward_import_passes(module, source):
    module = f"jaxformer.{module}".rstrip(".")
    assert faults(source, module, module == "jaxformer") == []


# Files of a room that import each other. A circle that is gone leaves the list; none
# comes.
CIRCLES = """
data.frame data.vocabulary data.vocabulary_labels data.vocabulary_sentencepiece \
data.vocabulary_table data.vocabulary_tokenizer data.vocabulary_training
data.labelled data.sources data.texts
serving.languages serving.service
translation.batch translation.shortlist
"""


def find_circles(graph):
    """List the strongly connected components of more than one node."""
    reached = {}
    for start in graph:
        pending, found = [start], set()
        while pending:
            new = graph[pending.pop()] - found
            found |= new
            pending += new
        reached[start] = found
    circles = {
        frozenset(other for other in found if node in reached[other])
        for node, found in reached.items()
        if node in found
    }
    return sorted(" ".join(sorted(circle)) for circle in circles)


def test_no_new_circle_of_files():
    """The files of a room import each other in one direction, but for those listed."""
    modules = find_modules()
    graph = {
        module: {
            target
            for target, _ in find_imports(
                path.read_text(encoding="utf-8"),
                module,
                path.stem == "__init__",
                modules,
            )
            if target in modules.keys() - {module}
            and room_of(target) == room_of(module)
        }
        for module, path in modules.items()
    }
    found = [circle.replace("jaxformer.", "") for circle in find_circles(graph)]
    assert found == CIRCLES.strip().split("\n")


def test_a_circle_is_found_through_several_files():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert find_circles(graph) == ["a b c"]
