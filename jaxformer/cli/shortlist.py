"""``jaxformer shortlist``."""

from __future__ import annotations

import argparse

import numpy as np

from jaxformer import bucket
from jaxformer.cli.arguments import add_workdir, number
from jaxformer.cli.output import say, write_record
from jaxformer.data.corpus import TrainingText
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import check_writable
from jaxformer.runs import config as configuration
from jaxformer.translation import shortlist
from jaxformer.translation.shortlist import SPECIAL, Shortlist

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
    add_workdir(parser)
    for name, meaning in (
        ("first", "most frequent target tokens"),
        ("best", "tokens for each source token"),
    ):
        parser.add_argument(
            f"--{name}",
            type=number(1, 10_000),
            default=50,
            metavar="N",
            help=f"{meaning} (default 50)",
        )


def run(options: argparse.Namespace) -> None:
    """Learn the shortlist of a run."""
    config = configuration.load(options.workdir / "config.json")
    vocabularies = Vocabularies.load(options.workdir / "vocabulary")
    target = vocabularies.target
    special = {target.pad_id, target.unk_id, target.bos_id, target.eos_id}
    if special != set(SPECIAL) or config.model.bos_id not in special:
        raise InputError(
            "a shortlist needs a vocabulary whose special pieces have ids 0 to 3:"
            f" {options.workdir}"
        )
    check_writable(options.workdir)
    text = TrainingText.open(config.data)
    store = text.load(vocabularies, seed=0, report=say).store
    count = min(len(store), MOST_PAIRS)
    pairs = store.take(np.arange(count) * len(store) // count)
    found = Shortlist.learn(
        pairs.source,
        pairs.target,
        (vocabularies.source.size, target.size),
        vocabularies.hash,
        first=options.first,
        best=options.best,
    )
    path = options.workdir / shortlist.FILE
    found.save(path)
    bucket.push(path)
    some = range(0, len(pairs), 1 + len(pairs) // 1000)
    size = np.mean([len(found.tokens_of(pairs.source[number])) for number in some])
    record = {
        "shortlist": bucket.reword(str(path)),
        "pairs": len(pairs),
        "vocabulary": target.size,
        "tokens_per_sentence": round(float(size), 1),
    }
    write_record(record)
