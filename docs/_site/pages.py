"""What the site makes of the pages in docs/: links that lead out of them, the reference
of each room, the commands.

MkDocs calls the functions ``on_...``; it is told so in mkdocs.yml.
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
COPIED = {"CHANGELOG.md": "changelog.md"}
"""Files of the repository that are pages of the site."""

HOME = {"README.md": "index.md", **COPIED}
"""The pages that stand for files of the repository."""

_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
_ROOM = re.compile(r"^<!-- the modules of (\w+) -->$", re.MULTILINE)
_COMMANDS = "<!-- the commands -->"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out the theme's 404.html: without a site_url its links are absolute, and
    dead from a folder or sub-path.
    """
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the top of the repository."""
    for name, page in COPIED.items():
        files.append(
            File.generated(
                config, page, content=(ROOT / name).read_text(encoding="utf-8")
            )
        )
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Write out what a page leaves to the code, and lead its links to where the site
    has what they name.
    """
    del config
    markdown = _ROOM.sub(lambda found: write_room(found[1], markdown), markdown)
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, write_commands())
    return _LINK.sub(
        lambda found: write_link(found, page.file.src_uri, files), markdown
    )


def modules_of(room: str) -> list[str]:
    """Name the modules of a room that define something, in alphabetical order."""
    paths = sorted((PACKAGE / room).glob("*.py"))
    return [
        f"jaxformer.{room}.{path.stem}" for path in paths if path.stem != "__init__"
    ]


def write_room(room: str, markdown: str) -> str:
    """Ask for the modules of a room that its page does not name before."""
    named = re.findall(r"^::: ([\w.]+)", markdown, re.MULTILINE)
    return "\n\n".join(
        f"::: {module}" for module in modules_of(room) if module not in named
    )


def write_commands() -> str:
    """Write what each command says of itself under ``--help``."""
    return "\n\n".join(f"## {name}\n\n```text\n{help_of(name)}```" for name in COMMANDS)


def help_of(command: str) -> str:
    """Return what a command says under ``--help``."""
    said = io.StringIO()
    columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            make_parser(command).parse_args([command, "--help"])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    return said.getvalue()


def write_link(found: re.Match[str], source: str, files: Files) -> str:
    """Lead a link out of docs/ to the page of what it names, or leave the name where
    the site has no such page.

    Raises:
        FileNotFoundError: the repository has no such file.
    """
    text, target, anchor = found[1], found[2], found[3] or ""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
    if path.startswith("docs/"):
        return found[0]
    if not (ROOT / path).exists():
        raise FileNotFoundError(f"{source} leads to {path}, which is not there")
    page, place = find_page(path)
    if page is None or files.get_file_from_path(page) is None:
        return text if "`" in text else f"`{text}`"
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(source) or '.')}{anchor or place})"


def find_page(path: str) -> tuple[str | None, str]:
    """Name the page, and the place in it, that stand for a file or folder of the
    repository.
    """
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
    return f"reference/{parts[1]}.md", f"#{'.'.join(parts)}" if is_module else ""
