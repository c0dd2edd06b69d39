#!/usr/bin/env python3
"""Translate a stream of lines by a small model of random parameters, and print how much
memory the process had at most.

    python scripts/benchmark/stream.py --text=train.en
    python scripts/benchmark/stream.py --text=train.en --at=10000,50000,100000

The lines are those of a text, over and over where it is too short. Peak memory is that
of the whole process so far: it rises until every shape of a batch has come once and is
compiled, and then stays. The search is greedy, and translations are short, since it is
memory that is measured and not speed.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxformer.translation.translator import Translator


def main() -> None:
    """Translate, and print a line at each of the numbers that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, type=Path, help="one sentence a line")
    parser.add_argument(
        "--at",
        default="10000,50000,100000",
        help="after how many lines to print; the last ends it",
    )
    parser.add_argument(
        "--max_extra_length",
        type=int,
        default=0,
        help="most tokens beyond those of the source",
    )
    options = parser.parse_args()
    places = [int(place) for place in options.at.split(",")]
    translator = make_translator(options.text, options.max_extra_length)
    texts = itertools.islice(_lines(options.text), places[-1])
    print("| lines | peak memory, MB | lines/s |\n|---|---|---|", flush=True)
    # Kilobytes on Linux, bytes on macOS.
    unit, begun = 10**6 if sys.platform == "darwin" else 1000, time.monotonic()
    for number, _ in enumerate(translator.stream(texts), start=1):
        if number in places:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
            rate = number / (time.monotonic() - begun)
            print(f"| {number:,} | {peak:,.0f} | {rate:,.0f} |", flush=True)


def make_translator(text: Path, max_extra_length: int) -> Translator:
    """Put a model of random parameters together whose vocabulary is made from the
    first lines of the text.
    """
    import jax
    import jax.numpy as jnp

    from jaxformer.data.vocabulary import Vocabularies, Vocabulary
    from jaxformer.models.config import TransformerConfig
    from jaxformer.models.seq2seq import Transformer
    from jaxformer.search.config import DecodingConfig
    from jaxformer.translation.translator import Translator

    vocabulary = Vocabulary.train(itertools.islice(_lines(text), 5000), 2000)
    config = TransformerConfig(
        vocabulary_size=vocabulary.size,
        d_model=32,
        d_ff=64,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        pad_id=vocabulary.pad_id,
        bos_id=vocabulary.bos_id,
        max_length=512,
    )
    tokens = jnp.ones((1, 1), jnp.int32)
    params = Transformer(config).init(jax.random.key(0), tokens, tokens)["params"]
    decoding = DecodingConfig(
        beam_size=1,
        max_extra_length=max_extra_length,
        max_length_ratio=0.25,
        long_sources="split",
    )
    return Translator(config, params, Vocabularies(vocabulary, vocabulary), decoding)


def _lines(text: Path) -> Iterator[str]:
    """Read a text over and over."""
    from jaxformer.data.files import open_lines

    while True:
        yield from open_lines([text])


if __name__ == "__main__":
    main()
