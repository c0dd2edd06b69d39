"""``jaxformer evaluate``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxformer.cli.main import DONE
from jaxformer.cli.options import add_model, add_search, write_output
from jaxformer.data import sources
from jaxformer.decoding.translator import Translator
from jaxformer.errors import InputError
from jaxformer.evaluation import evaluate
from jaxformer.training import config as configuration

EXAMPLE = """
examples:
  jaxformer evaluate --workdir=runs/quickstart
  jaxformer evaluate --workdir=runs/quickstart --dataset=bundled:en-de/valid --beam_size=1
  jaxformer evaluate --workdir=runs/ende --source=newstest2014.en --reference=newstest2014.de

Prints one JSON object with sacreBLEU and chrF, their signatures, and what was translated how; writes it to results.json
in the directory of the run, and the translations beside it. The references are compared as they are, every line once.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    parser.add_argument("--dataset", metavar="NAME", help="what to translate (default: the run's data.test)")
    parser.add_argument("--source", metavar="FILE", help="text to translate, with --reference, instead of --dataset")
    parser.add_argument("--reference", metavar="FILE", help="its human translation")
    add_search(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate."""
    if (options.source is None) != (options.reference is None):
        raise InputError("--source and --reference go together: give both, or a --dataset")
    if options.source is not None and options.dataset is not None:
        raise InputError("give either --dataset, or --source and --reference")
    data = configuration.load(Path(options.workdir) / "config.json").data
    name = f"text:{options.source},{options.reference}" if options.source else options.dataset or data.test
    pairs = sources.load(name, data.source_language, data.target_language)
    evaluate.read_results(options.workdir)  # a damaged file is found before the work, not after it
    translator = Translator.load(options.workdir, options.checkpoint)
    record, hypotheses = evaluate.evaluate(translator, pairs, name, beam_size=options.beam_size, alpha=options.alpha)
    evaluate.write(options.workdir, record, hypotheses)
    write_output(None, [json.dumps(record, ensure_ascii=False)])
    return DONE
