"""``jaxformer translate``."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxformer.cli.arguments import (
    add_ensemble,
    add_flags,
    add_languages,
    add_options,
    add_output,
    add_search,
    add_which,
    add_workdir,
    load_translator,
    number,
)
from jaxformer.cli.main import text_file
from jaxformer.cli.output import (
    check_output,
    name_input,
    name_lines,
    open_input,
    open_output,
    read_document,
    read_input,
    show_progress,
    warn,
)
from jaxformer.data.files import open_lines
from jaxformer.errors import UsageError
from jaxformer.search.config import MOST_BEAM

if TYPE_CHECKING:
    from jaxformer.translation.results import Hypothesis, LongSources

EXAMPLE = """
examples:
  echo "Insert a new table." | jaxformer translate --workdir=runs/quickstart
  jaxformer translate --workdir=runs/quickstart --input=test.en --output=test.de
  jaxformer translate --workdir=runs/quickstart --input=test.en --n_best=4 \\
    --format=jsonl
  jaxformer translate --workdir=runs/a --ensemble=runs/b \\
    --ensemble=runs/a@latest --input=test.en
  jaxformer translate --workdir=runs/a --ensemble=runs/b \\
    --ensemble_weights=2,1 --input=test.en
  jaxformer translate --workdir=runs/quickstart --input=test.en --ban=damn \\
    --ban="for sure" --no_repeat_ngram=3
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample \\
    --n_best=10 --top_p=0.9 --seed=1
  jaxformer translate --workdir=runs/quickstart --input=test.en --sample \\
    --n_best=32 --epsilon=0.02 --mbr
  jaxformer translate --workdir=runs/quickstart --input=test.en --paragraphs \\
    --split_long
  jaxformer translate --workdir=runs/quickstart --input=test.en --format=jsonl \\
    --alignment
  jaxformer translate --workdir=runs/quickstart --input=page.html \\
    --output=page.de.html --format=html
  jaxformer translate --workdir=runs/quickstart --input=ui.en --placeholders \\
    --glossary=terms.tsv

Text is UTF-8, one sentence a line. Each line of input has one line of output, in order;
blank lines stay empty. A line of more tokens than in training is cut at the ends of its
sentences and translated in parts; standard error reports how many there were. A run
whose decoding.long_sources is "refuse" translates it whole, or refuses it if the model
has too few positions, unless --split_long is given. --paragraphs cuts every line into
its sentences.

With --format=html the input is one document, whose tags are kept, and so is the output.
--glossary names a file with a term, a tab and its translation on each line; standard
error counts the terms that translations lack.

With --n_best above 1 each line is: number of the sentence from 1, score, translation,
separated by tabs, the best first; --distinct prints each text once. --format=jsonl
prints one object a sentence: each translation with its pieces (tokens), the
log-probability of each of them (token_log_probabilities) and their sum
(log_probability); jaxformer score may report another number for the same text, since it
segments the text again. With --sample, --n_best is the number of samples, in the order
in which they were drawn; the samples of a sentence depend only on the seed and its
number; --mbr prints the one that is most like the others. A sentence for which the
options leave no translation gives an empty line, without a score in --format=jsonl.

Input of any length takes the same memory: --window sentences are read, translated in
batches of similar length, and written; those of a pipe that has had no line for half a
second, at once. A line that cannot be translated ends the command at its window.
--output appears under its name when all is translated: until then an older file is
unchanged. If the command fails or is interrupted, the lines so far stay in FILE.part,
or in FILE.part2 and so on if that exists.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_workdir(parser)
    given = ("input", text_file, "FILE", "text to translate (default: standard input)")
    add_options(parser, given)
    add_output(parser, "html")
    add_which(parser)
    add_languages(parser)
    begin = (
        "what the translations begin with, one line for each line of input;"
        " alternatives are separated by tabs"
    )
    contain = (
        "phrases that the translations contain, separated by tabs, one line for each"
        " line of input"
    )
    layer = (
        "layer of the decoder, counted from 1, whose attention that is (default: the"
        " one before the last; of two, the last)"
    )
    most = (
        "most sentences read at a time (default: 64 batches a device); 1 answers each"
        " before it reads the next"
    )
    terms = "terms, each on a line with a tab and its translation"
    parser.add_argument(
        "--alignment",
        nargs="?",
        const="hard",
        choices=("hard", "soft"),
        help="which source piece and word each one of the translation belongs to; soft:"
        " with the attention itself",
    )
    add_options(
        parser,
        ("alignment_layer", number(1), "N", layer),
        ("prefix", Path, "FILE", begin),
        ("require", Path, "FILE", contain),
        ("glossary", text_file, "FILE", terms),
        ("window", number(1), "N", most),
    )
    banned = ("ban", str, "TEXT", "a word or phrase that never occurs; may be repeated")
    add_options(parser, banned, repeated=True)
    add_flags(
        parser,
        paragraphs="cut every line into its sentences, translate each, and join them"
        " again",
        placeholders="copy placeholders such as {name} and %%s, addresses, emoji and"
        " tags",
    )
    several = ("n_best", number(1, MOST_BEAM), "N", "translations of each sentence", 1)
    add_options(parser, several)
    add_flags(
        parser,
        mbr="of the --n_best translations print the one most like the others, by chrF",
        distinct="of translations with the same text print only the best",
    )
    add_ensemble(parser)
    add_search(parser)


def run(options: argparse.Namespace) -> None:
    """Translate."""
    named = options.prefix, options.require, options.glossary
    files = [path for path in named if path is not None]
    _check(options, files)
    glossary = None
    if options.glossary:
        from jaxformer.translation.text.glossary import read_terms

        glossary = read_terms(options.glossary)
    translator = load_translator(options, options.target_language)
    most = options.n_best
    if options.distinct and not translator.decoding.sample:
        most = translator.decoding.beam_size

    count = unfinished = 0
    long: list[LongSources] = []
    with name_lines(
        source=name_input(options.input),
        prefixes=options.prefix,
        required=options.require,
    ):
        total = None
        if options.input and options.input.is_file() and options.format != "html":
            total = sum(1 for _ in read_input(options.input))
        with (
            open_output(options.output) as write,
            show_progress(total, options.output) as advance,
        ):
            if options.format == "html":
                given, pause = iter([read_document(options.input)]), lambda: False
            else:
                given, pause = open_input(options.input)
            lines, sources = itertools.tee(given)
            search = translator.line_search(
                window=options.window,
                n_best=most,
                alignment=bool(options.alignment),
                alignment_layer=options.alignment_layer,
                paragraphs=options.paragraphs,
                ban=options.ban,
                prefixes=_read_fields(options.prefix),
                required=_read_fields(options.require),
                format="html" if options.format == "html" else "text",
                glossary=glossary,
                placeholders=options.placeholders,
            )
            found = search.stream(
                lines, progress=advance, notice=long.append, pause=pause
            )
            # A stream reads a line before it is asked for the next source.
            for place, (hypotheses, source) in enumerate(
                zip(found, sources, strict=True), start=1
            ):
                hypotheses = _select(hypotheses, options)
                count += len(hypotheses)
                unfinished += sum(not each.finished for each in hypotheses)
                for line in _format(
                    place, source, hypotheses, translator.languages, options
                ):
                    write(line)
    for each in long:
        warn(each.describe())
    if unmet := getattr(search, "unmet", None):
        terms = ", ".join(f"{term} ({own})" for term, own in unmet.items())
        warn(f"translations lack terms that were asked for: {terms}")
    if unfinished and options.format != "jsonl":
        warn(
            f"{unfinished} of {count} translations are unfinished: raise their limit"
            " (max_extra_length, max_target_length, max_length_ratio), or take back"
            " what forbids all others"
        )


def _check(options: argparse.Namespace, files: Sequence[Path]) -> None:
    """Find what is missing or contradictory before the model is loaded."""
    if options.alignment and options.format != "jsonl":
        raise UsageError(
            "--alignment is a part of --format=jsonl: add that, or leave it out"
        )
    if options.format == "html" and (options.n_best > 1 or options.require):
        raise UsageError(
            "--format=html writes one document: leave out --n_best and --require"
        )
    if options.alignment_layer and not options.alignment:
        raise UsageError(
            "--alignment_layer is for --alignment: add that, or leave it out"
        )
    if options.distinct and (options.mbr or options.n_best < 2):
        raise UsageError(
            "--distinct leaves repeated texts out of several translations: add"
            " --n_best=4, or leave it out"
        )
    if options.mbr and options.n_best < 2:
        raise UsageError(
            "--mbr chooses among several translations: add --sample --n_best=32, or"
            " leave it out"
        )
    check_output(options.output, options.input, *files)


def _read_fields(path: Path | None) -> Iterator[list[str]] | None:
    """Read the parts of each line between tabs."""
    return (
        None
        if path is None
        else (x.split("\t") for x in open_lines([path], empty=True))
    )


def _select(
    hypotheses: Sequence[Hypothesis], options: argparse.Namespace
) -> Sequence[Hypothesis]:
    """Return those that are printed."""
    if options.mbr:
        from jaxformer.translation.rerank import choose

        return [hypotheses[choose([each.text for each in hypotheses])]]
    if options.distinct:
        from jaxformer.translation.results import distinct

        return distinct(hypotheses)[: options.n_best]
    return hypotheses


def _format(
    place: int,
    source: str,
    hypotheses: Sequence[Hypothesis],
    languages: tuple[str, str],
    options: argparse.Namespace,
) -> Iterator[str]:
    """Write the translations of a sentence as lines."""
    if options.format == "jsonl":
        soft = options.alignment == "soft"
        codes = zip(("source_language", "target_language"), languages, strict=True)
        record = {
            "source": source,
            **{key: code for key, code in codes if code},
            "translations": [each.to_json(soft_alignment=soft) for each in hypotheses],
        }
        yield json.dumps(record, ensure_ascii=False)
    elif options.mbr or options.n_best == 1:
        yield hypotheses[0].text.removesuffix("\n")  # of a document
    else:
        for each in hypotheses:
            yield f"{place}\t{each.score:.4f}\t{each.text}"
