#!/usr/bin/env python3
"""Translate a test set with a trained run, in every precision and with CTranslate2:
sentences a second, and BLEU.

    python scripts/benchmark/translate.py --workdir=runs/quickstart python
    scripts/benchmark/translate.py --workdir=runs/mine --source=test.en
    --reference=test.de --batch=64 --beam=1

The model is the same in all systems, and so is the search: sums of log-probabilities
without a length penalty, which both find alike. Sentences end where the model ends
them, from text to text, sorted by length. The systems are processes of their own that
take turns; the first round compiles and is not counted. Printed are medians, the median
of the ratios to ctranslate2-float32 of the same round, BLEU by sacreBLEU, and how many
translations differ from jaxformer-float32's. ``jaxformer-int8-shortlist`` takes part
where the run has a shortlist (``jaxformer shortlist``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from jaxformer import freed_memory
from jaxformer.cli import huge_pages
from jaxformer.data.tokenizing import cores

SYSTEMS = (
    "jaxformer-float32",
    "jaxformer-bfloat16",
    "jaxformer-int8",
    "jaxformer-int8-shortlist",
    "ctranslate2-float32",
    "ctranslate2-int8",
)
REFERENCE = "ctranslate2-float32"

Translate: TypeAlias = Callable[[Sequence[str]], list[str]]


def main() -> None:
    """Run what the command line asks for."""
    options = parse()
    if options.serve:
        serve(options)
        return
    sources, references = read(options)
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_ctranslate2(options)
        systems = [
            name for name in options.systems.split(",") if _can_run(name, options)
        ]
        rounds, outputs = compare(options, systems, sources)
    for row in rows(systems, rounds, outputs, references):
        print(json.dumps(row), flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workdir", type=Path, required=True, help="directory of the run"
    )
    parser.add_argument("--source", type=Path, help="by default the run's data.test")
    parser.add_argument("--reference", type=Path)
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS), help="several separated by commas"
    )
    parser.add_argument("--batch", type=int, default=16, help="sentences at a time")
    parser.add_argument("--beam", type=int, default=4, help="1 is greedy search")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # the process of this system
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.source is None) != (options.reference is None):
        parser.error("give --source and --reference together")
    return options


def read(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Read the sentences and their references."""
    from jaxformer.data import sources
    from jaxformer.runs import config as configuration

    if options.source is not None:
        both = [
            path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            for path in (options.source, options.reference)
        ]
        return both[0], both[1]
    data = configuration.load(options.workdir / "config.json").data
    assert data.test is not None, (
        "the run has no data.test: give --source and --reference"
    )
    pairs = list(sources.load(data.test, data.source_language, data.target_language))
    return [pair.source for pair in pairs], [pair.target for pair in pairs]


def write_ctranslate2(options: argparse.Namespace) -> None:
    """Write the run's model as CTranslate2 reads it."""
    from jaxformer.interop import ctranslate2
    from jaxformer.translation.translator import Translator

    translator = Translator.load(options.workdir)
    sides = translator.vocabularies.source, translator.vocabularies.target
    columns = translator.model.config.vocabulary_size
    words = [
        [*side.pieces(range(side.size)), *(f"<{i}>" for i in range(side.size, columns))]
        for side in sides
    ]
    source, target = words
    tokens = ctranslate2.Tokens(
        source, target, sides[1].unk_id, sides[1].eos_id, translator.source_eos
    )
    ctranslate2.save(
        options.folder / "ctranslate2",
        translator.model.config,
        translator.params,
        tokens,
    )


def _can_run(system: str, options: argparse.Namespace) -> bool:
    from jaxformer.translation.shortlist import FILE

    return not system.endswith("shortlist") or (options.workdir / FILE).exists()


def serve(options: argparse.Namespace) -> None:
    """Be the process of one system: translate the lines that come in as JSON, and
    answer with seconds and lines.
    """
    system, _, kind = options.serve.partition("-")
    translate = {"jaxformer": make_jaxformer, "ctranslate2": make_ctranslate2}[system](
        options, kind
    )
    for line in sys.stdin:
        texts = json.loads(line)
        begun = time.perf_counter()
        found = translate(texts)
        print(
            json.dumps({"seconds": time.perf_counter() - begun, "lines": found}),
            flush=True,
        )


def make_jaxformer(options: argparse.Namespace, kind: str) -> Translate:
    """Load the run."""
    import dataclasses

    from jaxformer.translation import shortlist
    from jaxformer.translation.translator import Translator

    freed_memory.manage()  # as the command line does
    precision, _, listed = kind.partition("-")
    translator = Translator.load(options.workdir)
    if listed:
        path = options.workdir / shortlist.FILE
        translator.shortlist = shortlist.Shortlist.load(
            path, translator.vocabularies.hash
        )
    decoding = dataclasses.replace(
        translator.decoding,
        precision=cast(Any, precision),
        length_penalty="none",
        beam_size=options.beam,
        batch_size=options.batch,
    )
    return lambda texts: translator.translate(texts, decoding=decoding)


def make_ctranslate2(options: argparse.Namespace, compute_type: str) -> Translate:
    """Load the model with a thread a core."""
    import ctranslate2

    from jaxformer.translation.translator import Translator

    ours = Translator.load(options.workdir)
    source, target = ours.vocabularies.source, ours.vocabularies.target
    engine = ctranslate2.Translator(
        str(options.folder / "ctranslate2"),
        compute_type=compute_type,
        intra_threads=cores(),
    )
    never = [
        [target.pieces([token])[0]]
        for token in {ours.model.config.pad_id, ours.model.config.bos_id}
    ]
    words = {
        piece: token for token, piece in enumerate(target.pieces(range(target.size)))
    }

    def translate(texts: Sequence[str]) -> list[str]:
        encoded = source.encode_batch(list(texts))
        found = engine.translate_batch(
            [source.pieces(ids) for ids in encoded],
            beam_size=options.beam,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=min(
                max(map(len, encoded)) + ours.decoding.max_extra_length,
                ours.codec.positions,
            ),
            suppress_sequences=never,
            max_batch_size=options.batch,
        )
        return [
            target.decode([words[piece] for piece in result.hypotheses[0]])
            for result in found
        ]

    return translate


def compare(
    options: argparse.Namespace, systems: Sequence[str], sources: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, list[str]]]:
    """Let the systems translate everything in turn; give the seconds of each round,
    and what each wrote.
    """
    given = {
        "workdir": options.workdir,
        "batch": options.batch,
        "beam": options.beam,
        "folder": options.folder,
    }
    servers = {}
    for system in systems:
        line = [
            sys.executable,
            __file__,
            f"--serve={system}",
            *(f"--{name}={value}" for name, value in given.items()),
        ]
        servers[system] = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    seconds: dict[str, list[float]] = {system: [] for system in systems}
    outputs: dict[str, list[str]] = {}
    for repeat in range(1 + options.repeats):
        for system, server in servers.items():
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(list(sources)) + "\n")
            server.stdin.flush()
            answer = json.loads(server.stdout.readline())
            outputs[system] = answer["lines"]
            if repeat:
                seconds[system].append(answer["seconds"])
    for server in servers.values():
        server.communicate()
    return seconds, outputs


def rows(
    systems: Sequence[str],
    seconds: dict[str, list[float]],
    outputs: dict[str, list[str]],
    references: Sequence[str],
) -> list[dict[str, Any]]:
    """Return medians and scores of each system."""
    from jaxformer.evaluation.metrics import BLEU, score

    found = []
    for system in systems:
        own, theirs = seconds[system], seconds.get(REFERENCE)
        ratios = (
            None
            if theirs is None
            else [its / mine for mine, its in zip(own, theirs, strict=True)]
        )
        first = outputs[systems[0]]
        found.append(
            {
                "system": system,
                "sentences_per_second": round(
                    statistics.median(len(references) / each for each in own), 1
                ),
                "ratio": None
                if ratios is None
                else round(statistics.median(ratios), 2),
                "bleu": round(score(BLEU, outputs[system], references).value, 2),
                "other_than_the_first": sum(
                    a != b for a, b in zip(outputs[system], first, strict=True)
                ),
            }
        )
    return found


if __name__ == "__main__":
    huge_pages.use()  # as the command line does, and for every system
    main()
