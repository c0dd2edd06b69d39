"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from jaxformer.cli.main import DONE
from jaxformer.cli.options import add_ensemble, add_model, check_output, load_translator, read_input
from jaxformer.cli.output import open_output
from jaxformer.cli.progress import show_progress
from jaxformer.cli.search_options import add_search, choose_search
from jaxformer.data.files import open_lines
from jaxformer.decoding import minimum_bayes_risk
from jaxformer.decoding.results import Hypothesis
from jaxformer.errors import InputError

EXAMPLE = """
examples:
  echo "Insert a new table." | jaxformer translate --workdir=runs/quickstart
  jaxformer translate --workdir=runs/quickstart --input=test.en --output=test.de
  jaxformer translate --workdir=runs/quickstart --input=test.en --n_best=4 --format=jsonl
  jaxformer translate --workdir=runs/a --ensemble=runs/b --ensemble=runs/a@latest --input=test.en
  jaxformer translate --workdir=runs/quickstart --input=test.en --ban=damn --ban="for sure" --no_repeat_ngram=3
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=10 --top_p=0.9 --seed=1
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample --n_best=32 --epsilon=0.02 --mbr
  jaxformer translate --workdir=runs/quickstart --input=test.en --paragraphs --split_long
  jaxformer translate --workdir=runs/quickstart --input=test.en --format=jsonl --alignment

Text is UTF-8, one sentence a line; one line comes out for each that goes in, in order, and blank lines stay empty. A
line of more tokens than the model takes is an error, or is translated in parts with --split_long; with --paragraphs a
line may hold many sentences. With --n_best above 1 each line is: number of the sentence from 1, score, translation,
separated by tabs, the best first. --format=jsonl gives one object a sentence with scores and pieces. With --sample,
--n_best is the number of samples, in the order of their drawing; a sentence's samples depend on the seed and its number
alone; --mbr gives one of them, that which is most like the others. A sentence of which the options leave no translation
at all gives an empty line, without a score in --format=jsonl.

Input of any length takes the same memory: --window sentences are read, translated in batches of like length, and
written. A file is first read through for lines that cannot be translated, so that nothing is written if there is one; a
pipe cannot be read twice, and breaks off at the window of such a line. --output is written as FILE.part and moved into
its place at the end: what stood there before is never half replaced.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLE
    add_model(parser)
    add_ensemble(parser)
    parser.add_argument("--input", type=Path, metavar="FILE", help="text to translate (default: standard input)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    add_search(parser)
    parser.add_argument(
        "--ban",
        action="append",
        default=[],
        metavar="TEXT",
        help="a word or phrase that never comes; may be repeated",
    )
    parser.add_argument(
        "--prefix",
        type=Path,
        metavar="FILE",
        help="what the translations begin with, one line for each line of input; alternatives are separated by tabs",
    )
    parser.add_argument(
        "--require",
        type=Path,
        metavar="FILE",
        help="phrases that the translations hold, separated by tabs, one line for each line of input",
    )
    parser.add_argument("--n_best", type=int, default=1, metavar="N", help="translations of each sentence (default 1)")
    parser.add_argument(
        "--paragraphs", action="store_true", help="cut lines into sentences, translate each alone, and rejoin them"
    )
    parser.add_argument(
        "--mbr", action="store_true", help="of the --n_best translations give the one most like the others, by chrF"
    )
    parser.add_argument("--format", choices=("text", "jsonl"), default="text", help="form of the output")
    parser.add_argument(
        "--alignment",
        nargs="?",
        const="hard",
        choices=("hard", "soft"),
        help="which source piece and word each one of the translation belongs to; soft: with the attention itself",
    )
    parser.add_argument(
        "--alignment_layer",
        type=int,
        metavar="N",
        help="layer of the decoder, counted from 1, whose attention that is (default: the one before the last)",
    )
    parser.add_argument(
        "--window",
        type=int,
        metavar="N",
        help="most sentences read at a time (default: 64 batches a device); 1 answers each before it reads the next",
    )


def run(options: argparse.Namespace) -> int:
    """Translate."""
    if options.alignment and options.format != "jsonl":
        raise InputError("--alignment is a part of --format=jsonl: add that, or leave it out")
    check_output(options.output, options.input, options.prefix, options.require)
    if options.mbr and options.n_best < 2:
        raise InputError("--mbr chooses among several translations: add --sample --n_best=32, or leave it out")
    for path in (options.input, options.prefix, options.require):  # what is missing is found before the model is loaded
        _open(path)
    translator = load_translator(options, options.target_language)
    decoding = choose_search(options, translator.decoding)
    total = None
    beside = [path for path in (options.prefix, options.require) if path is not None]
    if _can_be_read_twice(options.input) and all(map(_can_be_read_twice, beside)):
        total = translator.check(
            read_input(options.input),
            decoding=decoding,
            prefixes=_fields(options.prefix),
            required=_fields(options.require),
            paragraphs=options.paragraphs,
        )
    sources: deque[str] = deque()
    with open_output(options.output) as write, show_progress(total, options.output) as advance:
        found = translator.stream(
            _noted(read_input(options.input), sources),
            n_best=options.n_best,
            decoding=decoding,
            ban=options.ban,
            prefixes=_fields(options.prefix),
            required=_fields(options.require),
            alignment=bool(options.alignment),
            alignment_layer=options.alignment_layer,
            paragraphs=options.paragraphs,
            window=options.window,
            progress=advance,
        )
        for number, hypotheses in enumerate(found, start=1):
            if options.mbr:
                hypotheses = [hypotheses[minimum_bayes_risk.choose([each.text for each in hypotheses])]]
            for line in _format(number, sources.popleft(), hypotheses, options):
                write(line)
    return DONE


def _open(path: Path | None) -> Iterator[str] | None:
    if path is None:
        return None
    if not path.exists():
        raise InputError(f"no file {path}")
    return open_lines([path])


def _fields(path: Path | None) -> Iterator[list[str]] | None:
    """Read the parts of each line between tabs."""
    lines = _open(path)
    return None if lines is None else (line.split("\t") for line in lines)


def _can_be_read_twice(path: Path | None) -> bool:
    return path is not None and path.is_file()


def _noted(lines: Iterator[str], sources: deque[str]) -> Iterator[str]:
    """Note each line that is read until its translation is there."""
    for line in lines:
        sources.append(line)
        yield line


def _format(number: int, source: str, hypotheses: list[Hypothesis], options: argparse.Namespace) -> Iterator[str]:
    if options.format == "jsonl":
        translations = [each.to_json(soft_alignment=options.alignment == "soft") for each in hypotheses]
        yield json.dumps({"source": source, "translations": translations}, ensure_ascii=False)
    elif len(hypotheses) == 1 and (options.mbr or options.n_best == 1):
        yield hypotheses[0].text
    else:
        for hypothesis in hypotheses:
            yield f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
