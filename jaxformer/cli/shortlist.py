"""``jaxformer shortlist``."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from jaxformer.cli.arguments import add_workdir, number
from jaxformer.cli.output import write_record
from jaxformer.data.corpus import TrainingText
from jaxformer.data.store import Encoded
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import check_writable
from jaxformer.runs import config as configuration
from jaxformer.table import escape_controls
from jaxformer.translation import shortlist
from jaxformer.translation.shortlist import SPECIAL, Shortlist, Side

EXAMPLE = """
examples:
  jaxformer shortlist --workdir=runs/ende
  jaxformer shortlist --workdir=runs/ende --first=100 --best=100
  jaxformer translate --workdir=runs/ende --shortlist --input=test.en

Reads the run's training data and learns by IBM model 1 the target tokens that each
source token is likely to become. The list of a sentence contains the most frequent
target tokens and those of each of its source tokens; a search within it multiplies with
fewer rows of the output table. It is written to shortlist.npz in the directory of the
run. Of a large corpus a million pairs are used, spread over the whole.
"""

MOST_PAIRS = 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_workdir(parser)
    for name, meaning in (
        ("first", "most frequent target tokens"),
        ("best", "tokens for each source token"),
    ):
        parser.add_argument(
            f"--{name}",
            type=number(1),
            default=50,
            metavar="N",
            help=f"{meaning} (default 50)",
        )


def run(options: argparse.Namespace) -> None:
    """Learn the shortlist of a run."""
    config = configuration.load(options.workdir / "config.json")
    vocabularies = Vocabularies.load(options.workdir / "vocabulary")
    target = vocabularies.target
    if {target.pad_id, target.unk_id, target.bos_id, target.eos_id} != set(SPECIAL):
        raise InputError(
            "a shortlist needs a vocabulary whose special pieces have ids 0 to 3:"
            f" {options.workdir}"
        )
    check_writable(options.workdir)
    text = TrainingText.open(config.data)
    store = text.load(
        vocabularies,
        seed=0,
        report=lambda line: print(escape_controls(line), file=sys.stderr),
    ).store
    count = min(len(store), MOST_PAIRS)
    pairs = store.take(np.arange(count) * len(store) // count)
    found = Shortlist.learn(
        *_sides(pairs, vocabularies),
        vocabularies.hash,
        first=options.first,
        best=options.best,
    )
    found.save(options.workdir / shortlist.FILE)
    sizes = [
        len(found.tokens_of(pairs.source[number]))
        for number in range(0, len(pairs), 1 + len(pairs) // 1000)
    ]
    record = {
        "shortlist": str(options.workdir / shortlist.FILE),
        "pairs": len(pairs),
        "vocabulary": target.size,
        "tokens_per_sentence": round(float(np.mean(sizes)), 1),
    }
    write_record(record)


def _sides(pairs: Encoded, vocabularies: Vocabularies) -> tuple[Side, Side]:
    """Return both sides of the pairs, with the sizes of their vocabularies."""
    source, target = pairs.source, pairs.target
    return (
        Side(np.asarray(source.tokens), source.offsets, vocabularies.source.size),
        Side(np.asarray(target.tokens), target.offsets, vocabularies.target.size),
    )
