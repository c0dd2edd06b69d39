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

import jaxformer

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = sorted((ROOT / "jaxformer").rglob("*.py"))
MODULES = [
    path
    for folder in ("jaxformer", "configs", "scripts")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
CORE = {"jax", "flax", "optax", "numpy", "jaxtyping", "jaxformer"}

# The extra `train`, without which nothing of the package `serving` is used.
SERVING = {"fastapi", "limits", "prometheus_client", "pydantic", "pydantic_core"}
SERVING |= {"python_multipart", "starlette", "uvicorn"}

# Flax imports rich and absl itself, so that these two cannot stay out.
OPTIONAL = (
    *("tensorflow", "tensorflow_datasets", "torch", "sentencepiece", "orbax"),
    *("sacrebleu", "matplotlib", "tensorboardX", "ml_collections", "array_record"),
    *("datasets", "py3langid", "tokenizers"),
)

# In two parts, so that this file does not hold them itself.
FOREIGN = [
    *("/" + name for name in ("home/", "root/", "Users/", "work/", "usr/local/")),
    *("py" + "pi.org", "python" + "hosted.org", "download.pytorch" + ".org"),
    "index" + "-url",
]


def read(path):
    return path.read_text(encoding="utf-8")


def parse(path):
    return ast.parse(read(path))


def name_of(path):
    return str(path.relative_to(ROOT))


def python(code):
    """Run Python with warnings as errors, outside the settings of the tests."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_loads_only_what_is_used():
    """`import jaxformer` loads neither JAX nor an optional package, and a vocabulary
    waits for neither JAX nor the pipeline.
    """
    code = "import sys, jaxformer.data.vocabulary; print(*sys.modules)"
    loaded = set(python(code).split())
    assert "jaxformer.data.vocabulary" in loaded
    assert not loaded & {*OPTIONAL, "jax", "flax", "jaxformer.data.pipeline"}


def test_the_core_works_without_optional_packages():
    """Every public name but the Translator loads, and a model computes shapes, where
    no optional package can be imported.
    """
    code = f"""
import sys
sys.modules.update(dict.fromkeys({OPTIONAL!r}))  # importing None raises
import jax, jax.numpy as jnp, jaxformer
assert set(jaxformer.__all__) <= set(dir(jaxformer))
for name in set(jaxformer.__all__) - {{"Translator", "training"}}:
    getattr(jaxformer, name)
model = jaxformer.Transformer(jaxformer.TransformerConfig.tiny(vocabulary_size=50))
tokens = jnp.ones((2, 5), jnp.int32)
jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
try:
    jaxformer.Transfomer
except AttributeError as error:
    print(error)
"""
    assert python(code) == "module 'jaxformer' has no attribute 'Transfomer'\n"


def test_extras_exist_and_are_explained():
    """Each extra that an error or another extra names exists, and those that errors
    name are in the README or the docs.
    """
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    asked = {
        ast.literal_eval(node.args[1])
        for path in LIBRARY
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"
    }
    assert {"train", "data", "interop", "wandb"} <= asked <= set(extras)
    for packages in extras.values():
        for own in re.findall(r"jaxformer\[([^]]+)\]", " ".join(packages)):
            assert set(own.split(",")) <= set(extras)
    pages = "".join(map(read, (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))))
    named = re.findall(r"\[([a-z0-9]+)\]'|extra `([a-z0-9]+)`", pages)
    assert asked <= {name for pair in named for name in pair}


def imports_at_load(tree):
    """Yield the packages that a module imports as soon as it is loaded."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "jaxformer" if node.level else node.module.split(".")[0]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)


def test_modules_load_with_the_core_only():
    """An optional package is imported where it is used, through `require`; the
    package `serving` imports its own.
    """
    allowed = CORE | set(sys.stdlib_module_names)
    found = {name_of(path): {*imports_at_load(parse(path))} for path in LIBRARY}
    assert set().union(*found.values()) >= {"jax", "flax", "optax", "numpy"}
    for path, names in found.items():
        inside = path.startswith("jaxformer/serving/")
        assert names - allowed <= (SERVING if inside else set()), path


def definitions(tree, owner=""):
    """Yield the public functions, classes and methods of a module."""
    for node in tree.body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(node, kinds) and not node.name.startswith("_"):
            yield owner + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{owner}{node.name}.")


def test_public_names_are_documented():
    """Every module, public class, function and method has a docstring."""
    bare = []
    for path in MODULES:
        tree = parse(path)
        named = [("", tree)] if tree.body or path.name != "__init__.py" else []
        bare += [
            f"{name_of(path)}: {name}"
            for name, node in [*named, *definitions(tree)]
            if not ast.get_docstring(node)
        ]
    assert bare == []


def test_names_of_classes_are_unique():
    """But those of the bodies of requests and answers, a file a protocol."""
    names = collections.Counter(
        node.name
        for path in LIBRARY
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if path.parent.name != "protocols"
    )
    assert {name for name, count in names.items() if count > 1} == set()


def project_files():
    """List the text files of the project, wherever it was unpacked."""
    folders = ("jaxformer", "configs", "scripts", "tests", "docs", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    paths += [path for path in ROOT.iterdir() if path.name != ".git"]
    kinds = ["py", "toml", "md", "txt", "sh", "sbatch", "cfg", "yml", "yaml"]
    return [
        path
        for path in paths
        if path.is_file()
        and path.suffix.lstrip(".") in ["", *kinds]
        and "__pycache__" not in path.parts
    ]


def test_files_name_no_machine_and_no_registry():
    texts = {name_of(path): read(path) for path in project_files()}
    assert {"Makefile", "jaxformer/typing.py", ".ci/run"} <= set(texts)
    found = {(name, word) for name in texts for word in FOREIGN if word in texts[name]}
    assert found == set()


def test_the_version_and_licences_are_there():
    """The project is under Apache-2.0, the bundled corpus under MPL-2.0."""
    assert f"\n## {jaxformer.__version__} " in read(ROOT / "CHANGELOG.md")
    assert "Apache License\n" in read(ROOT / "LICENSE")
    corpus = ROOT / "jaxformer" / "data" / "bundled" / "en-de"
    assert "Mozilla Public License Version 2.0" in read(corpus / "LICENSE")
    assert read(corpus / "ATTRIBUTION.md").strip()
    assert (ROOT / "jaxformer" / "py.typed").is_file()
