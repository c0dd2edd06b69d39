"""``jaxformer serve``."""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from jaxformer.cli.arguments import (
    add_keys,
    add_options,
    asked_keys,
    load_translator,
    wrong_usage,
)
from jaxformer.cli.main import run_directory
from jaxformer.cli.output import say, write_output
from jaxformer.errors import UsageError
from jaxformer.search.config import DecodingConfig
from jaxformer.serving.config import ServingConfig

EXAMPLE = """
examples:
  jaxformer serve --workdir=runs/quickstart
  jaxformer serve --workdir=runs/ende --workdir=runs/deen --host=0.0.0.0 \\
    --keys=keys
  curl http://127.0.0.1:5000/translate -d q="Insert a new table." -d source=en \\
    -d target=de

Standard output has "listening" and the URL, where the page is, and "ready" with the
pairs of languages when requests no longer wait. Standard error has the log, without
texts. SIGTERM or Ctrl-C ends the server when the requests it has are
answered, a second Ctrl-C at once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    run = "directory of a trained run; may be repeated, once for each pair of languages"
    which = "of each run: best, latest, a step, average or average/NAME"
    add_options(parser, ("workdir", run_directory, "DIR", run), repeated=True)
    add_options(parser, ("checkpoint", str, "WHICH", which, "best"))
    # Links of words are of the weights as they were saved.
    parser.set_defaults(ensemble=[], ensemble_weights=None, alignment=True)
    add_keys(parser, ServingConfig)
    to = "what to translate into, for a run of several languages; may be repeated"
    read = "what to translate from, for an imported model whose input names it"
    more: Any = {"action": "append", "metavar": "CODE"}
    add("--to", "--target_language", dest="target_language", help=to, **more)
    add("--from", dest="source_language", help=read, **more)
    add_keys(parser, DecodingConfig, ("batch_size",))
    listed = "only tokens that jaxformer shortlist found likely for each sentence"
    add("--shortlist", action="store_true", help=listed)


def run(options: argparse.Namespace) -> None:
    """Serve."""
    from jaxformer.serving.engine import TranslationEngine
    from jaxformer.serving.server import serve

    if not options.workdir:
        raise UsageError("--workdir is missing: name the directory of a trained run")
    with wrong_usage("serving"):
        config = ServingConfig(**asked_keys(options, ServingConfig))

    def load() -> list[TranslationEngine]:
        engines = []
        for run, source, target in itertools.product(
            options.workdir,
            options.source_language or [None],
            options.target_language or [None],
        ):
            if source is None or source != target:
                own = {**vars(options), "workdir": run, "source_language": source}
                found = load_translator(argparse.Namespace(**own), target)
                name, sizes = run.absolute().name, (config.rows, config.searches)
                engines.append(TranslationEngine(found, name, *sizes))
        return engines

    serve(load, config, show=lambda line: write_output(None, [line]), say=say)
