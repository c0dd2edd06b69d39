"""``jaxformer shortlist``."""

from __future__ import annotations

import argparse
import dataclasses

import numpy as np

from jaxformer import bucket
from jaxformer.cli.arguments import (
    add_languages,
    add_options,
    add_workdir,
    check_text,
    number,
)
from jaxformer.cli.output import phase, say, write_result
from jaxformer.data import sources
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import TrainingText
from jaxformer.data.frame import choose_languages
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError, UsageError
from jaxformer.files import check_writable
from jaxformer.runs import config as configuration
from jaxformer.runs.folder import check_objective
from jaxformer.translation import shortlist
from jaxformer.translation.shortlist import Shortlist

EXAMPLE = """
examples:
  jaxformer shortlist --workdir=runs/ende
  jaxformer shortlist --workdir=runs/ende --first=100 --best=100
  jaxformer translate --workdir=runs/ende --shortlist --input=test.en
  jaxformer shortlist --workdir=runs/opus --source=text.en --reference=text.de
  jaxformer shortlist --workdir=runs/nllb --source=text.en --reference=text.fr \\
    --to=fra_Latn

Reads the run's training data, or the text that is named, which an imported run needs,
and learns by IBM model 1 the target tokens that each source token is likely to become.
The list of a sentence contains the most frequent target tokens and those of each of its
source tokens; a search within it multiplies with fewer rows of the output table. It is
written to shortlist.npz in the directory of the run; a run of several languages has a
list for each direction, such as shortlist.eng_Latn-fra_Latn.npz. Of a large corpus a
million pairs are used, spread over the whole.
"""

MOST_PAIRS = 1_000_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_workdir(parser)
    add_options(
        parser,
        ("dataset", str, "NAME", "text to learn from (default: the run's data.train)"),
        ("source", str, "FILE", "source text, with --reference, instead of --dataset"),
        ("reference", str, "FILE", "its human translation"),
    )
    add_languages(parser)
    add_options(
        parser,
        ("first", number(1, 10_000), "N", "most frequent target tokens", 50),
        ("best", number(1, 10_000), "N", "tokens for each source token", 50),
    )


def run(options: argparse.Namespace) -> None:
    """Learn the shortlist of a run."""
    check_text(options)
    languages = options.source_language or options.target_language
    if languages and options.source is None and options.dataset is None:
        raise UsageError(
            "--from and --to are the languages of given text: add --dataset, or"
            " --source and --reference"
        )
    config = configuration.load(options.workdir / "config.json")
    check_objective(options.workdir, config, "translation")
    vocabularies = Vocabularies.load(options.workdir / "vocabulary")
    data = _choose_text(options, config.data, vocabularies)
    check_writable(options.workdir)
    text = TrainingText.open(data)
    with phase("reading the text"):
        store = text.load(vocabularies, seed=0, report=say).store
    count = min(len(store), MOST_PAIRS)
    pairs = store.take(np.arange(count) * len(store) // count)
    tagged = data.language_tags
    directions = {
        shortlist.name_direction(vocabularies, part.languages, tagged=tagged)
        for part in text.parts
    }
    say(f"learning translations of tokens from {count:,} pairs")
    with phase("learning"):
        found = Shortlist.learn(
            pairs.source,
            pairs.target,
            vocabularies,
            directions=sorted(directions),
            first=options.first,
            best=options.best,
        )
    path = options.workdir / shortlist.name_file(found.directions)
    found.save(path)
    bucket.push(path)
    some = range(0, len(pairs), 1 + len(pairs) // 1000)
    size = np.mean([len(found.tokens_of(pairs.source[number])) for number in some])
    record = {
        "shortlist": bucket.reword(str(path)),
        "pairs": len(pairs),
        "vocabulary": vocabularies.target.size,
        "tokens_per_sentence": round(float(size), 1),
    }
    write_result(record)


def _choose_text(
    options: argparse.Namespace, data: DataConfig, vocabularies: Vocabularies
) -> DataConfig:
    """Return the section ``data`` with the text that is named.

    Raises:
        InputError: the run has no such language, or no text of its own.
    """
    name = options.dataset
    if options.source is not None:
        sides = map(sources.escape, (options.source, options.reference))
        name = f"text:{','.join(sides)}"
    if name is None:
        if data.train.startswith(sources.IMPORTED):
            raise InputError(
                f"{options.workdir} was imported and has no text to learn from: give"
                " --source and --reference, or a --dataset"
            )
        return data
    source, target = choose_languages(
        options.workdir,
        data,
        vocabularies,
        options.source_language,
        options.target_language,
    )
    return dataclasses.replace(
        data, train=name, source_language=source, target_language=target
    )
