"""``jaxformer translate``."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from jaxformer.cli.constraint_options import add_constraints, read_constraints
from jaxformer.cli.main import DONE
from jaxformer.cli.options import (
    add_ensemble,
    add_model,
    check_output,
    load_translator,
    name_input,
    name_lines,
    number,
    read_input,
    warn,
)
from jaxformer.cli.output import open_output
from jaxformer.cli.progress import show_progress
from jaxformer.cli.result_options import add_results, asked_results, format_results
from jaxformer.cli.search_options import add_search, choose_search
from jaxformer.errors import InputError, UsageError
from jaxformer.translation.options import ResultOptions
from jaxformer.translation.results import LongSources

EXAMPLE = """
examples:
  echo "Insert a new table." | jaxformer translate --workdir=runs/quickstart
  jaxformer translate --workdir=runs/quickstart --input=test.en --output=test.de
  jaxformer translate --workdir=runs/quickstart --input=test.en --n_best=4 --format=jsonl
  jaxformer translate --workdir=runs/a --ensemble=runs/b --ensemble=runs/a@latest --input=test.en
  jaxformer translate --workdir=runs/a --ensemble=runs/b --ensemble_weights=2,1 --input=test.en
  jaxformer translate --workdir=runs/quickstart --input=test.en --ban=damn --ban="for sure" --no_repeat_ngram=3
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=10 --top_p=0.9 --seed=1
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=32 --epsilon=0.02 --mbr
  jaxformer translate --workdir=runs/quickstart --input=test.en --paragraphs --split_long
  jaxformer translate --workdir=runs/quickstart --input=test.en --format=jsonl --alignment

Text is UTF-8, one sentence a line; one line comes out for each that goes in, in order, and blank lines stay empty. A
line of more tokens than training saw is cut at the ends of its sentences and translated in parts; standard error says
how many there were. A run whose decoding.long_sources is "refuse" translates it whole, or refuses it where the model
has too few positions, unless --split_long is given. --paragraphs cuts every line into its sentences.

With --n_best above 1 each line is: number of the sentence from 1, score, translation, separated by tabs, the best
first. --format=jsonl gives one object a sentence: each translation with its pieces (tokens), the log-probability of
each of them (token_log_probabilities) and their sum (log_probability); jaxformer score may give another number for the
same text, since it segments the text again. With --sample, --n_best is the number of samples, in the order of their
drawing; a sentence's samples depend on the seed and its number only; --mbr gives one of them, that which is most like
the others. A sentence of which the options leave no translation at all gives an empty line, without a score in
--format=jsonl.

Input of any length takes the same memory: --window sentences are read, translated in batches of like length, and
written. A file is first read through for lines that cannot be translated, so that nothing is written if there is one; a
pipe cannot be read twice, and breaks off at the window of such a line. --output appears under its name when all is
translated: until then an older file is unchanged. If the command fails or is interrupted, the lines up to there stay in
FILE.part, or in FILE.part2 and so on where that exists.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    add_ensemble(parser)
    parser.add_argument(
        "--input",
        type=Path,
        metavar="FILE",
        help="text to translate (default: standard input)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write (default: standard output)",
    )
    add_search(parser)
    add_constraints(parser)
    parser.add_argument(
        "--paragraphs",
        action="store_true",
        help=(
            "cut every line into sentences, however short, translate each, and rejoin"
            " them"
        ),
    )
    add_results(parser)
    parser.add_argument(
        "--window",
        type=number(1),
        metavar="N",
        help=(
            "most sentences read at a time (default: 64 batches a device); 1 answers"
            " each before it reads the next"
        ),
    )


def run(options: argparse.Namespace) -> int:
    """Translate."""
    results, beside = (
        asked_results(options),
        [path for path in (options.prefix, options.require) if path is not None],
    )
    check_output(options.output, options.input, *beside)
    # what is missing is found before the model is loaded
    for path in (options.input, *beside):
        if path is not None and not path.exists():
            raise InputError(f"no file {path}")
    translator = load_translator(options, options.target_language)
    decoding = choose_search(options, translator.decoding)
    if options.n_best > decoding.beam_size and not decoding.sample:
        most = decoding.beam_size
        raise UsageError(
            f"--n_best must be at most the beam of {most}, not {options.n_best}: widen"
            " --beam_size"
        )
    asked: ResultOptions = {
        **results,
        "decoding": decoding,
        "paragraphs": options.paragraphs,
    }
    total, sources, long = None, deque[str](), list[LongSources]()
    with name_lines(
        source=name_input(options.input),
        prefixes=options.prefix,
        required=options.require,
    ):
        # can be read twice
        if options.input is not None and all(
            path.is_file() for path in (options.input, *beside)
        ):
            total = translator.check(
                read_input(options.input), **{**asked, **read_constraints(options)}
            )
        with (
            open_output(options.output) as write,
            show_progress(total, options.output) as advance,
        ):
            found = translator.stream(
                _noted(read_input(options.input), sources),
                window=options.window,
                progress=advance,
                notice=long.append,
                **{**asked, **read_constraints(options)},
            )
            for number, hypotheses in enumerate(found, start=1):
                for line in format_results(
                    number, sources.popleft(), hypotheses, translator.languages, options
                ):
                    write(line)
    for each in long:
        warn(each.describe())
    return DONE


def _noted(lines: Iterator[str], sources: deque[str]) -> Iterator[str]:
    """Note each line that is read until its translation is there."""
    for line in lines:
        sources.append(line)
        yield line
