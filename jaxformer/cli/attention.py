"""``jaxformer attention``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxformer.cli.arguments import add_model
from jaxformer.cli.main import DONE
from jaxformer.cli.output import write_output
from jaxformer.files import check_writable
from jaxformer.translation.translator import Translator
from jaxformer.visualization import attention

EXAMPLE = """
examples:
  jaxformer attention --workdir=runs/quickstart "Insert a new table."
  jaxformer attention --workdir=runs/quickstart --target="Neue Tabelle." "New table."

Draws the self-attention of encoder and decoder and the cross-attention, every layer and
head, as encoder.png, decoder.png and cross.png, and all of it as a page,
attention.html, that needs no network. Prints the names of the files.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    parser.add_argument("sentence", metavar="SENTENCE", help="source sentence")
    parser.add_argument(
        "--target",
        metavar="SENTENCE",
        help="its translation (default: the model's own)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where to write (default: attention/ in the run)",
    )


def run(options: argparse.Namespace) -> int:
    """Draw."""
    directory = options.output or options.workdir / "attention"
    if options.output is None and options.workdir.is_dir():
        check_writable(options.workdir, directory.name)
    found = Translator.load(
        options.workdir, options.checkpoint, options.target_language
    ).attention(options.sentence, options.target)
    maps = attention.AttentionMaps(
        source_tokens=found.source_tokens,
        target_tokens=found.target_tokens,
        read_tokens=found.read_tokens,
        encoder=found.encoder,
        decoder=found.decoder,
        cross=found.cross,
    )
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "attention.html"
    pictures = attention.draw(maps, directory)
    attention.write_html(maps, page)
    write_output(None, [str(path) for path in [*pictures, page]])
    return DONE
