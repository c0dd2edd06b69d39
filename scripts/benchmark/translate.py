#!/usr/bin/env python3
r"""Compare translating a test set with CTranslate2, in every precision: sentences per
second, and BLEU.

    python scripts/benchmark/translate.py --workdir=runs/quickstart
    python scripts/benchmark/translate.py --workdir=runs/mine --batch=64 --beam=1 \
        --source=test.en --reference=test.de

All systems have the model of a trained run and the same search: sums of
log-probabilities without a length penalty. Sentences end where the model ends them;
they are sorted by length. The systems are processes of their own that take turns; the
first round compiles and does not count. Printed are medians, the median of the ratios
to ctranslate2-float32 of the same round, BLEU by sacreBLEU, and how many translations
differ from jaxformer-float32's. ``jaxformer-int8-shortlist`` takes part where the run
has a shortlist (``jaxformer shortlist``).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import turns
from jaxformer.data.encoding import cores
from turns import Message

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
    sources, references = read(options)
    with tempfile.TemporaryDirectory() as folder:
        options.folder = Path(folder)
        write_ctranslate2(options)
        systems = [
            name for name in options.systems.split(",") if _can_run(name, options)
        ]
        answers = compare(options, systems, sources)
    for row in summarize(answers, references):
        print(json.dumps(row), flush=True)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    parser.add_argument(
        "--workdir", type=Path, required=True, help="directory of the run"
    )
    parser.add_argument("--source", type=Path, help="by default the run's data.test")
    parser.add_argument("--reference", type=Path)
    parser.add_argument(
        "--systems", default=",".join(SYSTEMS), help="several separated by commas"
    )
    turns.add_numbers(
        parser,
        ("batch", 16, "sentences at a time"),
        ("beam", 4, "1 is greedy search"),
        ("repeats", 3, "of each system (default: 3)"),
    )
    options = parser.parse_args()
    if (options.source is None) != (options.reference is None):
        parser.error("--source and --reference are given together")
    return options


def read(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Read the sentences and their references."""
    from jaxformer.data import sources
    from jaxformer.data.files import read_lines
    from jaxformer.runs import config as configuration

    if options.source is not None:
        return read_lines(options.source), read_lines(options.reference)
    data = configuration.load(options.workdir / "config.json").data
    assert data.test is not None, (
        "the run has no data.test: use --source and --reference"
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


def begin(request: Message) -> Callable[[Message], Message]:
    """Load the system that a process is."""
    options = argparse.Namespace(**request)
    options.workdir, options.folder = Path(options.workdir), Path(options.folder)
    system, _, kind = options.system.partition("-")
    make = {"jaxformer": make_jaxformer, "ctranslate2": make_ctranslate2}[system]
    translate = make(options, kind)

    def answer(request: Message) -> Message:
        begun = time.perf_counter()
        lines = translate(request["lines"])
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "work": len(lines), "lines": lines}

    return answer


def make_jaxformer(options: argparse.Namespace, kind: str) -> Translate:
    """Load the run."""
    import dataclasses

    from jaxformer.translation import shortlist
    from jaxformer.translation.translator import Translator

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
) -> dict[str, list[Any]]:
    """Let the systems translate everything in turn; return their answers."""
    given = {name: str(getattr(options, name)) for name in ("workdir", "folder")}
    given |= {"batch": options.batch, "beam": options.beam}
    with turns.started(systems, __file__, given) as processes:
        requests = [{"lines": list(sources)}]
        answers = turns.take_turns(processes, requests, options.repeats)
    return {system: own for (_, system), own in answers.items()}


def summarize(
    answers: dict[str, list[Any]], references: Sequence[str]
) -> list[dict[str, Any]]:
    """Return medians and scores of each system."""
    from jaxformer.evaluation.metrics import BLEU, score

    outputs = {system: own[-1]["lines"] for system, own in answers.items()}
    first = next(iter(outputs.values()))
    rows = []
    for system, own in answers.items():
        ratio = turns.median_ratio(own, answers.get(REFERENCE))
        differing = sum(a != b for a, b in zip(outputs[system], first, strict=True))
        rows.append(
            {
                "system": system,
                "sentences_per_second": round(turns.median_rate(own), 1),
                "ratio": None if ratio is None else round(ratio, 2),
                "bleu": round(score(BLEU, outputs[system], references).value, 2),
                "other_than_the_first": differing,
            }
        )
    return rows


if __name__ == "__main__":
    turns.run(main, begin)
