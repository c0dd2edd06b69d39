"""``jaxformer generate``."""

from __future__ import annotations

import argparse
import json
import sys

from jaxformer.cli.arguments import (
    add_checkpoint,
    add_decoding,
    add_options,
    add_output,
    number,
    read_search,
)
from jaxformer.cli.main import text_file
from jaxformer.cli.output import (
    announce_compilations,
    check_output,
    name_input,
    name_lines,
    open_output,
    phase,
    read_input,
)
from jaxformer.errors import UsageError
from jaxformer.search.config import ADDED_TOKENS, MOST_BEAM

EXAMPLE = """
examples:
  jaxformer generate --workdir=runs/language_model "def main("
  jaxformer generate --workdir=runs/language_model --sample --top_p=0.9 \\
    --seed=1 --max_tokens=200 --stop="\\n\\n" "class Parser:"
  jaxformer generate --workdir=runs/language_model --input=prompts.txt \\
    --format=jsonl

A prompt of the command line is printed with its continuation: token by token, or with a
beam when the search has ended. Prompts of a file, one a line, or of standard input have
one line of output each: the continuation as a JSON string, or with --format=jsonl an
object with the prompt and its continuations, of which those that ran out of tokens or
positions have "finished": false. With --n_best or --output a prompt of the command line
has such lines too. In --stop, \\n is the end of a line.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_checkpoint(parser)
    add_decoding(parser, source=False)
    add_output(parser)
    parser.add_argument("prompt", nargs="?", help="a text to continue")
    add_options(
        parser,
        ("input", text_file, "FILE", "prompts, one a line (default: standard input)"),
        ("max_tokens", number(1), "N", "most added tokens", ADDED_TOKENS),
    )
    ends = ("stop", str, "TEXT", "ends a continuation; may be repeated")
    add_options(parser, ends, repeated=True)
    several = ("n_best", number(1, MOST_BEAM), "N", "continuations of each prompt", 1)
    add_options(parser, several)


def run(options: argparse.Namespace) -> None:
    """Continue texts."""
    from jaxformer.translation.generator import Generator

    if options.prompt is not None and options.input is not None:
        raise UsageError("give a prompt or --input, not both")
    check_output(options.output, options.input)
    decoding = read_search(options)
    announce_compilations()
    with phase("restoring the model"):
        generator = Generator.load(options.workdir, options.checkpoint)
    asked = {
        "most": options.max_tokens,
        "stop": [text.replace("\\n", "\n") for text in options.stop],
        "decoding": decoding,
    }
    plain = options.format == "text" and options.output is None
    if options.prompt is not None and plain and options.n_best == 1:
        sys.stdout.write(generator.shown(options.prompt))
        if decoding.sample or decoding.beam_size == 1:
            parts = generator.stream(options.prompt, **asked)
        else:
            (found,) = generator.generate([options.prompt], **asked)
            parts = (own.text for own in found)
        for part in parts:
            sys.stdout.write(part)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return
    given = options.prompt is not None
    prompts = [str(options.prompt)] if given else list(read_input(options.input))
    with name_lines(prompt=None if given else name_input(options.input)):
        found = generator.generate(prompts, n_best=options.n_best, **asked)
    with open_output(options.output) as write:
        for prompt, own in zip(prompts, found, strict=True):
            if options.format == "jsonl":
                each = [continuation._asdict() for continuation in own]
                record = {"prompt": prompt, "continuations": each}
                write(json.dumps(record, ensure_ascii=False))
                continue
            for continuation in own:
                write(json.dumps(continuation.text, ensure_ascii=False))
