"""MkDocs hooks: pages that are made from the code, and links out of docs/.

mkdocs.yml names this file; MkDocs calls the functions ``on_...``.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from jaxformer.cli.main import COMMANDS, make_parser

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jaxformer"
ROOMS = sorted(
    path.parent.name
    for path in PACKAGE.glob("*/__init__.py")
    if path.parent.name != "cli"
)
"""The packages with a page of the reference; that of the command line is its help."""

COPIED = {"CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages of the site."""

HOME = {"README.md": "index.md", **COPIED}
"""Files of the repository and the pages that links to them lead to."""

COLUMNS = 88
"""Width of the help of the commands."""

_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
_COMMANDS = "<!-- the commands -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the packages to the reference, and remove the theme's 404.html.

    Links of a 404.html without a site_url are absolute: dead on a disk or a sub-path.
    """
    config.theme.static_templates.discard("404.html")
    for part in config.nav or ():
        part.get("Reference", []).extend({room: page_of(room)} for room in ROOMS)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code or copied."""
    pages = {page_of(room): write_room(room) for room in ROOMS}
    for name, page in COPIED.items():
        pages[page] = (ROOT / name).read_text(encoding="utf-8")
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Insert the help of the commands, and resolve links out of docs/."""
    del config
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, write_commands())
    return _LINK.sub(
        lambda found: write_link(found, page.file.src_uri, files), markdown
    )


def page_of(room: str) -> str:
    """Return the page of a package in the reference."""
    return f"reference/{room}.md"


def write_room(room: str) -> str:
    """Return the page of a package: its docstring, then each module that defines
    something.
    """
    head = f"::: jaxformer.{room}\n    options:\n      heading_level: 1\n"
    modules = [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if not path.stem.startswith("_")
    ]
    return "\n".join(
        [
            f"{head}      members: false\n",
            *(f"::: jaxformer.{module}\n" for module in modules),
        ]
    )


def write_commands() -> str:
    """Return the help of each command."""
    return "\n\n".join(f"## {name}\n\n```text\n{help_of(name)}```" for name in COMMANDS)


def help_of(command: str) -> str:
    """Return what a command prints for ``--help``."""
    printed = io.StringIO()
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(COLUMNS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            make_parser(command).parse_args([command, "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return printed.getvalue()


def write_link(found: re.Match[str], source: str, files: Files) -> str:
    """Return a link out of docs/ as a link to the page of its target, or as its text
    if the site has no such page.

    Raises:
        FileNotFoundError: the repository has no such file.
    """
    text, target, anchor = found[1], found[2], found[3] or ""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
    if path.startswith("docs/"):
        return found[0]
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{source} links to {path}, which does not exist")
    page, place = find_page(path)
    if page is None or files.get_file_from_path(page) is None:
        return text if "`" in text else f"`{text}`"
    page = posixpath.relpath(page, posixpath.dirname(source) or ".")
    return f"[{text}]({page}{anchor or place})"


def find_page(path: str) -> tuple[str | None, str]:
    """Return the page and the anchor of a file or folder of the repository."""
    if path in HOME:
        return HOME[path], ""
    parts = Path(path).with_suffix("").parts
    if parts[0] != "jaxformer":
        return None, ""
    # the package itself, and the modules of no room
    if len(parts) == 1 or not (PACKAGE / parts[1]).is_dir():
        return "reference/index.md", f"#{'.'.join(parts)}" if len(parts) == 2 else ""
    if parts[1] == "cli":
        return "reference/commands.md", ""
    is_module = path.endswith(".py") and parts[-1] != "__init__"
    return page_of(parts[1]), f"#{'.'.join(parts)}" if is_module else ""
