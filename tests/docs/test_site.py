"""The site builds without a warning and without the network, and its reference has
every public name.
"""

import dataclasses
import html
import importlib
import json
import os
import re
import subprocess
import sys
import urllib.parse

import pytest
from documented_names import ROOMS, documented_names
from pages import ROOT, WIDEST

from jaxformer.cli.main import COMMANDS
from jaxformer.data.config import DataConfig
from jaxformer.models.config import TransformerConfig
from jaxformer.runs.config import EvaluationConfig
from jaxformer.runs.training import TrainingConfig
from jaxformer.search.config import DecodingConfig

pytestmark = pytest.mark.slow

# Build, and refuse the network.
BUILD = """
import socket
def refuse(*arguments):
    raise OSError("no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; return its folder."""
    folder = tmp_path_factory.mktemp("site")
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
    }
    line = [
        sys.executable,
        "-c",
        BUILD,
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Return the HTML of every page by its name."""
    return {
        str(path.relative_to(site)): path.read_text(encoding="utf-8")
        for path in sorted(site.rglob("*.html"))
    }


@pytest.fixture(scope="module")
def anchors(pages):
    """Return all anchors of the reference."""
    return {
        anchor
        for name, text in pages.items()
        if name.startswith("reference/")
        for anchor in re.findall(r'\bid="([^"]+)"', text)
    }


def test_every_public_name_has_an_anchor(anchors):
    """Every public function, class and method has an anchor in the reference, and so
    has every module.
    """
    names = documented_names()
    assert len(names) > 400
    assert [name.path for name in names if name.path not in anchors] == []
    assert {name.path.rsplit(".", 1)[0] for name in names} <= anchors


def test_what_packages_export_has_an_anchor(anchors):
    """What a package exports has an anchor where it is defined."""
    missing = []
    for room in ("", *ROOMS):
        module = importlib.import_module(f"jaxformer.{room}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            if callable(thing) and getattr(thing, "__module__", "").startswith(
                "jaxformer"
            ):
                path = f"{thing.__module__}.{thing.__qualname__}"
                missing += [path] if path not in anchors else []
    assert missing == []


@pytest.mark.parametrize(
    "config",
    [TransformerConfig, DataConfig, TrainingConfig, EvaluationConfig, DecodingConfig],
)
def test_every_key_has_an_anchor(config, anchors):
    """Each key of a configuration has an anchor in the reference."""
    classes = [
        f"{each.__module__}.{each.__qualname__}"
        for each in config.__mro__
        if dataclasses.is_dataclass(each)
    ]
    assert [
        field.name
        for field in dataclasses.fields(config)
        if not anchors & {f"{path}.{field.name}" for path in classes}
    ] == []


def test_commands_have_their_help(pages):
    """The page of commands has the help of each."""
    text = pages["reference/commands.html"]
    assert [name for name in COMMANDS if f"usage: jaxformer {name}" not in text] == []


def test_nothing_is_loaded_from_elsewhere(pages):
    """Pages take scripts, styles and pictures only from the site."""
    loaded = [
        (name, address)
        for name, text in pages.items()
        for address in re.findall(
            r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]+)"', text
        )
    ]
    assert loaded == []


def test_links_lead_to_files_of_the_site(site, pages):
    """Every link, script, style and picture of every page is a file of the site."""
    assert len(pages) > 25
    dead = []
    for name, text in pages.items():
        for address in re.findall(r'<[a-z][^>]*\s(?:src|href)="([^"]*)"', text):
            parts = urllib.parse.urlsplit(html.unescape(address))
            path = os.path.normpath(
                os.path.join(os.path.dirname(name), urllib.parse.unquote(parts.path))
            )
            inside = not path.startswith(("..", "/")) and (
                not parts.path or (site / path).is_file()
            )
            if not parts.scheme and not inside:
                dead.append((name, address))
    assert dead == []


def test_prose_is_rendered(pages):
    """Roles, tables and lists of docstrings are rendered."""
    for name, text in pages.items():
        shown = re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r":(func|class|mod|meth|data|attr):", shown), name
        assert "=====" not in shown, name
        assert not re.search(r"<p>[^<]*\n(- |\d\. |\|)", shown), name


def test_no_code_scrolls_sideways(pages):
    """Lines of code of the reference fit a window of 1,300 pixels.

    The help of the commands has the width of a terminal.
    """
    wide = [
        (name, line)
        for name, text in pages.items()
        if name != "reference/commands.html"
        for block in re.findall(r"<pre\b.*?</pre>", text, re.DOTALL)
        for line in html.unescape(re.sub(r"<[^>]+>", "", block)).splitlines()
        if len(line.expandtabs()) > WIDEST
    ]
    assert wide == []


def test_search_needs_no_network(site):
    """The index of the search is a script, which also loads from disk, and has every
    page.
    """
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    found = {entry["location"].split("#")[0] for entry in json.loads(text[14:])["docs"]}
    assert text.startswith("var __index = ")
    assert found == {str(path.relative_to(site)) for path in site.rglob("*.html")}
