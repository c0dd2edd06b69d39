#!/usr/bin/env python3
r"""Compare the speed of translation with CTranslate2 and Hugging Face: sentences and
tokens per second, start-up, memory.

    python scripts/benchmark/decode.py --model=tiny --batch=16  # beam 4, all systems
    python scripts/benchmark/decode.py --model=base --batch=1,16,64 --beam=1,4 \
        --corpus train.en train.de
    python scripts/benchmark/decode.py --model=base --repeats=7 \
        --systems=jaxformer-float32,ctranslate2-float32

The models are the paper's base (6 + 6 layers, 512, 32,000 tokens) and a tiny one (3 +
3, 256, 8,000) with random weights, the same in jaxformer and CTranslate2. Since random
models end sentences anywhere, lengths are forced on all systems: ``forced`` is 32
tokens in and 32 out. Tokens are drawn at random. With ``--corpus``, two files of
parallel text, they come from its lines by a vocabulary trained on it. Then there is
also ``natural``: whole lines, sorted into batches by length, of which a batch writes as
many tokens as its longest source has. And there is ``jaxformer-int8-shortlist``, which
writes only tokens of a shortlist learned from the corpus.

Every system is a process of its own with all cores, and they take turns: for each case,
each repeat runs each system once, while the others wait. Every shape is compiled before
the clock runs. Printed are medians over the repeats, and the median of the ratios to
ctranslate2-float32 of the same repeat, as a table and as one line of JSON per case and
system. The start-up is from the start of the process to the first sentence, with
reading the model and compiling (``JAX_COMPILATION_CACHE_DIR`` keeps compiled programs
for the next start). Memory is the peak. CTranslate2 chooses its backend;
``CT2_USE_MKL`` and ``CT2_USE_EXPERIMENTAL_PACKED_GEMM`` choose others. On a GPU, which
JAX takes by itself, and by the variable leaves memory for the others:

    XLA_PYTHON_CLIENT_PREALLOCATE=false python scripts/benchmark/decode.py \
        --model=base --device=cuda --batch=64,256,1024 --beam=1,4 --sentences=2048 \
        --systems=jaxformer-bfloat16,ctranslate2-float16,huggingface-float16
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import turns
from decode_systems import EOS, FIRST, LENGTH, SHORTLIST, begin, write_models
from jaxformer.cli.arguments import number, numbers
from jaxformer.data.encoding import cores
from turns import Turn

SYSTEMS = (
    "jaxformer-float32",
    "jaxformer-bfloat16",
    "jaxformer-int8",
    "jaxformer-int8-shortlist",
    "ctranslate2-float32",
    "ctranslate2-int8",
    "huggingface-float32",
)
ON_GPU = ("ctranslate2-float16", "huggingface-float16")
REFERENCE = "ctranslate2-float32"
VOCABULARIES = {"base": 32_000, "tiny": 8_000}
LONGEST = 100
COLUMNS = {
    "system": ("system", ""),
    "lengths": ("lengths", ""),
    "batch": ("batch", ""),
    "beam": ("beam", ""),
    "sentences_per_second": ("sent/s", ",.2f"),
    "tokens_per_second": ("tok/s", ",.2f"),
    "ratio": ("ratio", ".2f"),
    "startup_seconds": ("start s", ",.2f"),
    "memory_gib": ("GiB", ".2f"),
}


class Case(NamedTuple):
    """What is timed."""

    lengths: str
    batch: int
    beam: int


def main() -> None:
    """Run what the command line asks for."""
    options = parse()
    print(
        f"{options.model}: {options.vocabulary_size:,} tokens, {cores()} cores",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_models(options)
        lines = None if options.corpus is None else read_corpus(options)
        rows = compare(options, lines)
    for row in rows:
        print(json.dumps(row), flush=True)
    print(turns.format_table(COLUMNS, rows))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--model", choices=[*VOCABULARIES], default="tiny")
    parser.add_argument("--systems", help="several separated by commas; by default all")
    for name, default, meaning in (
        ("batch", [16], "sentences at a time, several separated by commas"),
        ("beam", [4], "1 is greedy search; several separated by commas"),
    ):
        sizes = numbers(number(1))
        parser.add_argument(f"--{name}", type=sizes, default=default, help=meaning)
    parser.add_argument(
        "--corpus",
        nargs=2,
        type=Path,
        metavar=("SOURCE", "TARGET"),
        help="parallel text; real tokens and lengths",
    )
    turns.add_numbers(
        parser,
        ("sentences", 16, "of a case and repeat, at least one batch"),
        ("repeats", 5, "of each system (default: 5)"),
        ("vocabulary_size", None, "by default that of the model"),
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="of the other systems; JAX takes its own",
    )
    options = parser.parse_args()
    for path in options.corpus or ():
        if not path.is_file():
            parser.error(f"no file {path}: --corpus must name two files of text")
    options.vocabulary_size = options.vocabulary_size or VOCABULARIES[options.model]
    possible = [
        name
        for name in (*SYSTEMS, *ON_GPU)
        if options.corpus or not name.endswith("shortlist")
    ]
    options.systems = (
        options.systems.split(",")
        if options.systems
        else [name for name in possible if name not in ON_GPU]
    )
    unknown = set(options.systems) - set(possible)
    if unknown:
        parser.error(
            f"there is no system {', '.join(sorted(unknown))}: choose from"
            f" {', '.join(possible)}"
        )
    return options


def read_corpus(options: argparse.Namespace) -> list[list[int]]:
    """Train a vocabulary and a shortlist on the corpus; return the tokens of the
    source's lines.
    """
    from jaxformer.data.store import Sentences
    from jaxformer.data.vocabulary import Vocabularies, Vocabulary
    from jaxformer.translation.shortlist import Shortlist

    texts = [path.read_text(encoding="utf-8").split("\n") for path in options.corpus]
    vocabulary = Vocabulary.train(
        (line for text in texts for line in text), options.vocabulary_size
    )
    sides = [vocabulary.encode_batch(text) for text in texts]
    source, target = (Sentences.from_lists(side, 0, last=EOS) for side in sides)
    shortlist = Shortlist.learn(source, target, Vocabularies(vocabulary, vocabulary))
    shortlist.save(options.folder / SHORTLIST)
    return [ids for ids in sides[0] if ids]


def compare(
    options: argparse.Namespace, lines: Sequence[list[int]] | None
) -> list[dict[str, Any]]:
    """Run every case on every system in turn; return a row for each."""
    kinds = ("forced", "natural") if lines else ("forced",)
    cases = [
        Case(kind, batch, beam)
        for kind in kinds
        for batch in options.batch
        for beam in options.beam
    ]
    work = [
        {"batches": make_batches(options, case, lines), "beam": case.beam}
        for case in cases
    ]
    given = {"folder": str(options.folder), "first_beam": options.beam[0]} | {
        name: getattr(options, name) for name in ("model", "vocabulary_size", "device")
    }
    with turns.started(options.systems, __file__, given) as processes:
        answers = turns.take_turns(processes, work, options.repeats)
    return [
        {
            "model": options.model,
            "system": system,
            **cases[number]._asdict(),
            **summarize(own, answers.get((number, REFERENCE))),
            "startup_seconds": processes[system].startup_seconds,
        }
        for (number, system), own in answers.items()
    ]


def summarize(
    own: Sequence[Turn], reference: Sequence[Turn] | None
) -> dict[str, float | None]:
    """Return medians over the repeats of a case and system."""
    return {
        "sentences_per_second": turns.median_rate(own),
        "tokens_per_second": statistics.median(
            turn["tokens"] / turn["seconds"] for turn in own
        ),
        "ratio": turns.median_ratio(own, reference),
        "memory_gib": max(turn["memory_gib"] for turn in own),
    }


def make_batches(
    options: argparse.Namespace, case: Case, lines: Sequence[list[int]] | None
) -> list[list[list[int]]]:
    """Return sources of the case's lengths, sorted into batches, the longest first;
    invented where there are no lines.
    """
    rng = random.Random(0)
    count = max(options.sentences // case.batch, 1) * case.batch

    def draw() -> list[int]:
        if lines is None:
            return [
                rng.randrange(FIRST, options.vocabulary_size) for _ in range(LENGTH - 1)
            ]
        ids = list(rng.choice(lines))
        # as many lines as fill it
        while case.lengths == "forced" and len(ids) < LENGTH - 1:
            ids += rng.choice(lines)
        return ids[: (LENGTH if case.lengths == "forced" else LONGEST) - 1]

    sources = sorted(([*draw(), EOS] for _ in range(count)), key=len, reverse=True)
    return [
        sources[start : start + case.batch] for start in range(0, count, case.batch)
    ]


if __name__ == "__main__":
    turns.run(main, begin)
