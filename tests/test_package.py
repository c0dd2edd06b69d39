"""The package as a whole: what importing it costs, and what every file of it has and
has not.
"""

import ast
import collections
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import jaxformer

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = sorted((ROOT / "jaxformer").rglob("*.py"))
MODULES = [
    *LIBRARY,
    *sorted((ROOT / "configs").rglob("*.py")),
    *sorted((ROOT / "scripts").rglob("*.py")),
]

CORE = {"jax", "flax", "optax", "numpy", "jaxtyping"}

# Flax imports rich and absl itself, so that these two cannot stay out; orbax, on which
# it depends, it leaves alone.
OPTIONAL = (
    "tensorflow",
    "tensorflow_datasets",
    "torch",
    "sentencepiece",
    "orbax",
    "sacrebleu",
    "matplotlib",
    "tensorboardX",
    "ml_collections",
    "array_record",
    "datasets",
    "py3langid",
)

# Put together here, so that this file does not hold them itself.
PATHS = tuple(
    "/" + name for name in ("home/", "root/", "Users/", "work/", "usr/local/")
)
HOSTS = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "download.pytorch" + ".org",
    "index" + "-url",
)


def name_of(path):
    return str(path.relative_to(ROOT))


def python(code, *options):
    """Run a line of Python with this interpreter, outside the strict settings of the
    tests.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, *options, "-c", code]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_brings_in_no_optional_package():
    """`import jaxformer` imports neither tensorflow nor torch nor any other optional
    package.
    """
    for used, has_flax in (
        ("jaxformer", False),
        ("jaxformer.Transformer, jaxformer.functional, jaxformer.nn", True),
    ):
        brought = python(
            f"import sys, jaxformer; {used}; print(*{{name.split('.')[0] for name in"
            " sys.modules})"
        ).split()
        assert "jaxformer" in brought
        assert ("flax" in brought) == has_flax
        assert sorted(set(brought) & set(OPTIONAL)) == []


def test_a_vocabulary_loads_neither_the_batches_nor_jax():
    """``jaxformer translate`` does not wait for the pipeline of training."""
    code = "import sys, jaxformer; jaxformer.data.Vocabulary; print(*sys.modules)"
    brought = set(python(code).split())
    assert "jaxformer.data.vocabulary" in brought
    assert not brought & {"jax", "jaxformer.data.pipeline", "jaxformer.data.corpus"}


def test_every_public_name_is_there():
    """Loaded when it is asked for, listed before; another is refused as Python does
    it.
    """
    code = """
import jaxformer
assert set(jaxformer.__all__) <= set(dir(jaxformer))
print(*(getattr(jaxformer, name).__name__ for name in jaxformer.__all__))
try:
    jaxformer.Transfomer
except AttributeError as error:
    print(error)
"""
    assert python(code).splitlines() == [
        (
            "InputError Transformer TransformerConfig Translator jaxformer.data"
            " jaxformer.functional jaxformer.models jaxformer.nn jaxformer.search"
            " jaxformer.training"
        ),
        "module 'jaxformer' has no attribute 'Transfomer'",
    ]


def test_import_needs_the_core_alone():
    """`import jaxformer` works, and its model computes shapes, where no optional
    package can be imported.
    """
    code = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None  # an import of it raises ModuleNotFoundError
import jax, jax.numpy as jnp, jaxformer
model = jaxformer.Transformer(jaxformer.TransformerConfig.tiny(vocabulary_size=50))
tokens = jnp.ones((2, 5), jnp.int32)
print(len(jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens))) > 0)
"""
    assert python(code) == "True\n"


def test_import_warns_of_nothing():
    """`import jaxformer` and its text part raise no warning of their own."""
    assert python("import jaxformer; jaxformer.Translator", "-W", "error") == ""


def required_extras(path):
    """Read the extras that a module names in `require`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "require":
            yield ast.literal_eval(node.args[1])


def test_extras_are_there():
    """Every extra that an error tells a user to install exists, and each extra that
    another takes in too; those that users need are explained in the README or the docs.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras = project["optional-dependencies"]
    asked = {extra for path in LIBRARY for extra in required_extras(path)}
    assert {"train", "moses", "hf", "langid", "tfds", "wandb"} <= asked <= set(extras)
    for packages in extras.values():
        for own in re.findall(r"jaxformer\[([^]]+)\]", " ".join(packages)):
            assert set(own.split(",")) <= set(extras)
    pages = "".join(
        page.read_text(encoding="utf-8")
        for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    )
    named = set(re.findall(r"\[([a-z]+)\]'|extra `([a-z]+)`", pages))
    assert asked <= {name for pair in named for name in pair}


def test_the_version_is_in_one_place():
    """The metadata reads the package's version, and the changelog has a section for it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["project"]["dynamic"] == ["version"]
    found = settings["tool"]["setuptools"]["dynamic"]["version"]
    assert found == {"attr": "jaxformer.__version__"}
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {jaxformer.__version__} " in changelog


def imports_at_load(tree):
    """Read the packages that a module imports as soon as it is loaded."""
    nodes = list(tree.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (
                "jaxformer"
                if node.level or not node.module
                else node.module.split(".")[0]
            )
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.stmt | ast.ExceptHandler)
            ]


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_modules_load_with_the_core_alone(path):
    """An optional package is imported where it is used, through `require`, which
    names the extra.
    """
    packages = set(imports_at_load(ast.parse(path.read_text(encoding="utf-8"))))
    assert packages - CORE - {"jaxformer"} - set(sys.stdlib_module_names) == set()


def test_imports_at_load_are_told_from_later_ones():
    """The reading of imports sees those inside `try`, `if` and classes, and not
    those that wait.
    """
    source = """
import a.b
try:
    from c import d
except ImportError:
    import e
if TYPE_CHECKING:
    import f
else:
    import g
class C:
    import h
    def method(self):
        import i
from . import j
"""
    assert set(imports_at_load(ast.parse(source))) == {
        "a",
        "c",
        "e",
        "g",
        "h",
        "jaxformer",
    }


def public_definitions(tree):
    """Find the public functions, classes and methods of a module; what overrides or
    is private does not count.
    """
    nodes = [(node, "") for node in tree.body]
    while nodes:
        node, owner = nodes.pop()
        if not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) or node.name.startswith("_"):
            continue
        yield owner + node.name, node
        if isinstance(node, ast.ClassDef):
            nodes += [(child, f"{owner}{node.name}.") for child in node.body]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_names_are_documented(path):
    """Every module, public class, function and method has a docstring; an empty
    `__init__` needs none.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if tree.body or path.name != "__init__.py":
        assert ast.get_docstring(tree), "the module has no docstring"
    bare = [
        name for name, node in public_definitions(tree) if not ast.get_docstring(node)
    ]
    assert bare == []


# Classes that still share their name with another; to become empty.
SHARED = {"Line", "Memory", "Table"}


def test_names_of_classes_are_unique():
    """A class of the package has its name alone: who reads it knows which is meant."""
    names = collections.Counter(
        node.name
        for path in LIBRARY
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} <= SHARED


def project_files():
    """List the text files of the project, wherever it was unpacked and whatever was
    built in it.
    """
    folders = ("jaxformer", "configs", "scripts", "tests", "docs", ".ci")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    ]
    files += [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    kinds = {
        ".py",
        ".toml",
        ".md",
        ".txt",
        ".sh",
        ".sbatch",
        ".cfg",
        ".yml",
        ".yaml",
        "",
    }
    return sorted(
        path
        for path in files
        if path.suffix in kinds and "__pycache__" not in path.parts
    )


def test_files_name_no_machine_and_no_registry():
    """No file holds a path of one person's machine or the address of a package
    registry.
    """
    files = project_files()
    assert {"Makefile", "pyproject.toml", "jaxformer/typing.py", ".ci/run"} <= {
        name_of(path) for path in files
    }
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{name_of(path)}: {word}" for word in (*PATHS, *HOSTS) if word in text
        ]
    assert found == []


def test_licences_are_there():
    """The project is under Apache-2.0, and the bundled corpus under MPL-2.0 with its
    attribution.
    """
    assert "Apache License\n                           Version 2.0" in (
        ROOT / "LICENSE"
    ).read_text(encoding="utf-8")
    corpus = ROOT / "jaxformer" / "data" / "bundled" / "en-de"
    assert "Mozilla Public License Version 2.0" in (corpus / "LICENSE").read_text(
        encoding="utf-8"
    )
    assert (corpus / "ATTRIBUTION.md").read_text(encoding="utf-8").strip()
    assert (ROOT / "jaxformer" / "py.typed").is_file()
