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
import typing
import urllib.parse

import pytest
from documented_names import ROOMS, documented_names
from pages import ROOT

from jaxformer.cli.main import COMMANDS
from jaxformer.runs.config import RunConfig

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
    own = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    options = ["--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **own},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """Return the HTML of every page by its name."""
    paths = sorted(site.rglob("*.html"))
    return {str(path.relative_to(site)): path.read_text("utf-8") for path in paths}


@pytest.fixture(scope="module")
def anchors(pages):
    """Return all anchors of the reference."""
    texts = [text for name, text in pages.items() if name.startswith("reference/")]
    return {anchor for text in texts for anchor in re.findall(r'\bid="([^"]+)"', text)}


def test_every_public_name_has_an_anchor(anchors):
    """So has every module, what packages export, and each key of a configuration."""
    names = documented_names()
    assert len(names) > 400
    assert [name.path for name in names if name.path not in anchors] == []
    assert {name.path.rsplit(".", 1)[0] for name in names} <= anchors
    for room in ("", *ROOMS):
        module = importlib.import_module(f"jaxformer.{room}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            home = getattr(thing, "__module__", None) or ""
            if callable(thing) and home.startswith("jaxformer"):
                assert f"{home}.{thing.__qualname__}" in anchors
    for config in typing.get_type_hints(RunConfig).values():
        parts = [each for each in config.__mro__ if dataclasses.is_dataclass(each)]
        places = [f"{each.__module__}.{each.__qualname__}" for each in parts]
        for field in dataclasses.fields(config):
            assert anchors & {f"{place}.{field.name}" for place in places}, field.name


def test_commands_have_their_help(pages):
    """The page of commands has the help of each."""
    text = pages["reference/commands.html"]
    assert [name for name in COMMANDS if f"usage: jaxformer {name}" not in text] == []


def test_links_lead_to_files_of_the_site(site, pages):
    """Every link, script, style and picture of every page is a file of the site; only
    links lead elsewhere.
    """
    assert len(pages) > 25
    loaded = r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]+)"'
    assert [
        found for text in pages.values() for found in re.findall(loaded, text)
    ] == []
    dead = []
    for name, text in pages.items():
        for address in re.findall(r'<[a-z][^>]*\s(?:src|href)="([^"]*)"', text):
            parts = urllib.parse.urlsplit(html.unescape(address))
            place = os.path.join(
                os.path.dirname(name), urllib.parse.unquote(parts.path)
            )
            path = os.path.normpath(place)
            is_file = not parts.path or (site / path).is_file()
            if not parts.scheme and (path.startswith(("..", "/")) or not is_file):
                dead.append((name, address))
    assert dead == []


def test_prose_is_rendered(pages):
    """Roles, tables and lists of docstrings are rendered."""
    for name, text in pages.items():
        shown = re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r":(func|class|mod|meth|data|attr):", shown), name
        assert "=====" not in shown, name
        assert not re.search(r"<p>[^<]*\n(- |\d\. |\|)", shown), name


def test_search_needs_no_network(site, pages):
    """Its index is a script, which also loads from disk, and has every page."""
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert text.startswith("var __index = ")
    found = {entry["location"].split("#")[0] for entry in json.loads(text[14:])["docs"]}
    assert found == set(pages)
