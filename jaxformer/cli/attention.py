"""``jaxformer attention``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxformer import bucket
from jaxformer.cli.arguments import (
    add_flags,
    add_model,
    add_options,
    check_source_language,
)
from jaxformer.cli.output import phase, picture_folder, write_output
from jaxformer.errors import UsageError
from jaxformer.translation.translator import Translator
from jaxformer.visualization import animation, attention

EXAMPLE = """
examples:
  jaxformer attention --workdir=runs/quickstart "Insert a new table."
  jaxformer attention --workdir=runs/quickstart --target="Neue Tabelle." \\
    "New table."
  jaxformer attention --workdir=runs/quickstart --animate "Insert a new table."

Draws the self-attention of encoder and decoder and the cross-attention, every layer and
head, as encoder.png, decoder.png and cross.png, and all of it as a page,
attention.html, that needs no network. Prints the names of the files.

With --animate the page also plays the translation: the encoder computes all tokens at
once, a layer a step, the decoder one token after the other. Threads are attention
weights of 0.03 and more, means over the heads. The same is written as animation.gif.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    parser.add_argument("sentence", metavar="SENTENCE", help="source sentence")
    add_options(
        parser,
        ("target", str, "SENTENCE", "its translation (default: the model's own)"),
        ("output", Path, "DIR", "where to write (default: attention/ in the run)"),
    )
    add_flags(parser, animate="add an animation to the page, and write animation.gif")


@phase("drawing the attention")
def run(options: argparse.Namespace) -> None:
    """Draw."""
    if not options.sentence.strip():
        raise UsageError("attention needs a sentence that is not blank")
    directory = picture_folder(options.output, options.workdir, "attention")
    languages = options.target_language, options.source_language
    translator = Translator.load(options.workdir, options.checkpoint, *languages)
    check_source_language(options, translator)
    maps = translator.attention(options.sentence, options.target)
    directory.mkdir(parents=True, exist_ok=True)
    page = directory / "attention.html"
    steps = animation.find_steps(maps) if options.animate else []
    files = attention.draw(maps, directory)
    if options.animate:
        files.append(animation.write_gif(maps, steps, directory / "animation.gif"))
    files.append(attention.write_html(maps, page, steps=steps))
    bucket.push(directory)
    write_output(None, [bucket.reword(str(path)) for path in files])
