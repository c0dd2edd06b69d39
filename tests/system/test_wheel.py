"""The wheel and the sdist: what is in them, and that they work in an environment
that never saw a checkout.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import jaxformer
import runs
from jaxformer.cli import config_file

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
VERSION = jaxformer.__version__
# What the project consists of; a checkout also holds what tools leave there.
PROJECT = (
    *(".ci", "configs", "docs", "jaxformer", "scripts", "tests"),
    *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md"),
    *("constraints.txt", "mkdocs.yml", "pyproject.toml", "setup.py"),
)


def run(*line: object, cwd: Path) -> str:
    """Run a program where no checkout can be found, and return what it prints."""
    variables = runs.environment().items()
    kept = {k: v for k, v in variables if k not in ("PYTHONPATH", "PYTHONHOME")}
    command = [str(part) for part in line]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=kept, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def project_files(folder: Path) -> dict[str, bytes]:
    """Read the files of a checkout, or of an unpacked sdist."""
    roots = [folder / name for name in PROJECT]
    paths = [path for root in roots for path in (root, *root.rglob("*"))]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build the ``wheel`` or the ``sdist`` by the build backend itself, which needs
    no network.
    """
    folder.mkdir(parents=True, exist_ok=True)
    code = (
        "import setuptools.build_meta as backend;"
        f" backend.build_{kind}({str(folder)!r})"
    )
    run(sys.executable, "-c", code, cwd=source)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Build both in a copy of the project: the wheel of the checkout, the sdist, and
    the wheel of the sdist.
    """
    folder = tmp_path_factory.mktemp("wheel")
    for name, content in project_files(ROOT).items():
        path = folder / "checkout" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    sdist = build("sdist", folder / "checkout", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    build("wheel", source, folder / "wheel-of-sdist")
    build("wheel", folder / "checkout", folder / "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(folder) -> Path:
    """Return the wheel that the sdist makes."""
    return next((folder / "wheel-of-sdist").iterdir())


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_what_is_in_the_wheel_and_the_sdist(folder, wheel):
    """The wheel holds every module, the mark of types, the bundled corpus with its
    licence and every configuration, and no test or script. Its metadata has licences,
    Python versions, extras, the command and the README. The sdist is the project, and
    makes the wheel that the checkout makes.
    """
    assert wheel.name == f"jaxformer-{VERSION}-py3-none-any.whl"
    files, information = contents(wheel), f"jaxformer-{VERSION}.dist-info/"
    found = {name for name in files if not name.startswith(information)}
    package = {name for name in project_files(ROOT) if name.startswith("jaxformer/")}
    configs = {f"jaxformer/configs/{name}.py" for name in config_file.shipped()}
    assert found == package | configs
    corpus = {
        f"jaxformer/data/bundled/en-de/{name}" for name in ("LICENSE", "train.en")
    }
    assert {"jaxformer/py.typed", *corpus} <= found

    metadata = files[f"{information}METADATA"].decode()
    for line in (
        "License-Expression: Apache-2.0 AND MPL-2.0",
        f"Version: {VERSION}",
        "Requires-Python: >=3.11",
        *(f"Provides-Extra: {extra}" for extra in SETTINGS["optional-dependencies"]),
        (ROOT / "README.md").read_text(encoding="utf-8").strip(),
    ):
        assert f"{line}\n" in metadata
    start = b"[console_scripts]\njaxformer = jaxformer.cli.main:start\n"
    assert files[f"{information}entry_points.txt"] == start
    for name in SETTINGS["license-files"]:
        assert files[f"{information}licenses/{name}"] == (ROOT / name).read_bytes()

    (source,) = (folder / "unpacked").iterdir()
    assert project_files(source) == project_files(ROOT)
    made = {"PKG-INFO", "build", "jaxformer.egg-info", "setup.cfg"}
    assert {path.name for path in source.iterdir()} - made == set(PROJECT)
    (direct,) = (folder / "wheel").iterdir()
    assert contents(direct) == files


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """Install the wheel into a fresh environment, which borrows all other packages
    from that of the tests.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment")
    python = folder / "environment" / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install")
    run(*install, "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    (own,) = (folder / "environment" / "lib").glob("python*/site-packages")
    # As a folder of modules, whose own .pth files are not read: an editable install
    # leads back to the checkout.
    borrowed = dict.fromkeys(
        sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")
    )
    (own / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    return folder


@pytest.mark.slow
def test_the_wheel_trains_translates_and_evaluates(installed):
    """Outside any checkout, the shipped configurations, also those that build on
    others, and the bundled corpus are all that a first run needs.
    """
    python, command = (
        installed / "environment" / "bin" / name for name in ("python", "jaxformer")
    )
    show = "import jaxformer; print(jaxformer.__file__)"
    where = run(python, "-c", show, cwd=installed)
    assert Path(where.strip()).is_relative_to(installed)
    keys = """model.d_model=8 model.num_heads=2 model.d_ff=16 data.num_buckets=1
        model.num_encoder_layers=1 model.num_decoder_layers=1 training.steps=2
        data.train=bundled:en-de/valid data.vocabulary_size=300
        evaluation.max_sentences=2 decoding.max_extra_length=2"""
    overrides = [f"--config.{key}" for key in keys.split()]
    work = "--workdir=run"
    run(command, "train", "--config=quickstart", work, *overrides, cwd=installed)
    config = json.loads((installed / "run" / "config.json").read_text())
    assert config["version"] == VERSION
    (installed / "source").write_text("Open the file.\n\nDelete the row.\n")
    out = run(command, "translate", work, "--input=source", cwd=installed)
    assert out.count("\n") == 3
    files = ["--source=source", "--reference=source"]
    record = json.loads(run(command, "evaluate", work, *files, cwd=installed))
    assert record["sentences"] == 3
    assert record["versions"]["jaxformer"] == VERSION
    row = ["--config=paper/table3:b_dk16", "--devices=1"]
    record = json.loads(run(command, "info", *row, cwd=installed))
    assert record["parameters"]["total"] == 55_990_784


@pytest.mark.slow
def test_every_extra_can_be_installed(wheel, tmp_path):
    """A resolver finds versions for all extras together; nothing is installed. Only
    a registry can say so. Those of devices are JAX's own, whose versions it pins: a
    resolver would download gigabytes.
    """
    extras = SETTINGS["optional-dependencies"]
    devices = importlib.metadata.metadata("jax").get_all("Provides-Extra") or []
    (jax,) = (each for each in SETTINGS["dependencies"] if each.startswith("jax>"))
    for name in ("tpu", "cuda12"):
        assert name in devices
        assert extras[name] == [jax.replace("jax", f"jax[{name}]")]
    found = importlib.metadata.distributions()
    torch = [each.version for each in found if each.metadata["Name"] == "torch"]
    constraints = tmp_path / "constraints.txt"
    # not gigabytes of another build
    constraints.write_text(f"torch=={torch[0]}\n" if torch else "", encoding="utf-8")
    install = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet"]
    wanted = f"{wheel}[{','.join(extras.keys() - {'tpu', 'cuda12'})}]"
    # It takes 20 seconds; a conflict may keep the resolver busy without end.
    done = subprocess.run(
        [*install, f"--constraint={constraints}", wanted],
        capture_output=True,
        text=True,
        check=False,
        env=runs.environment(),
        timeout=240,
    )
    if "(from versions: none)" in done.stderr:
        pytest.skip("needs a registry of packages")
    assert done.returncode == 0, done.stderr
