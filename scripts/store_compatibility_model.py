#!/usr/bin/env python3
"""Train a tiny model and store it with its outputs, which every later version must
repeat.

    python scripts/store_compatibility_model.py

It writes ``tests/compatibility/VERSION.zip``, the directory of the run, and
``VERSION.json``, what it translates some sentences into and how probable it holds their
references. Call it once for each release, at the commit of the release;
``tests/compatibility/test_stored_models.py`` then finds the two. What is stored of an
earlier version stays as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

from jaxformer import Translator, __version__
from jaxformer.cli import config_file
from jaxformer.data import sources
from jaxformer.evaluation.evaluate import evaluate, make_validator
from jaxformer.runs import config as configuration
from jaxformer.training.train import train

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "compatibility"
KEYS = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.max_length": 96,
    "data.train": "bundled:en-de/valid",
    "data.vocabulary_size": 250,
    "data.max_length": 64,
    "data.num_buckets": 1,
    "training.steps": 400,
    "training.warmup_steps": 100,
    "training.learning_rate": 0.5,
    "training.label_smoothing": 0.0,
    "training.evaluate_every": 400,
    "training.checkpoint_every": 400,
    "training.keep_latest": 1,
    "training.engine": "jit",
    "decoding.max_extra_length": 10,
    "evaluation.max_sentences": 8,
}
# Of the run's directory; pictures and TensorBoard's files are of no use to a later
# version.
KEPT = ("config.json", "vocabulary", "checkpoints", "metrics.jsonl", "samples.jsonl")
SENTENCES = 8


def main() -> int:
    """Store the model of this version."""
    form = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(
        description=__doc__, formatter_class=form, allow_abbrev=False
    ).parse_args()
    archive, record = FOLDER / f"{__version__}.zip", FOLDER / f"{__version__}.json"
    if archive.exists():
        sys.stderr.write(
            f"{archive} is there already, and the versions to come are measured by it:"
            " it stays\n"
        )
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        run, kept = Path(scratch) / "run", Path(scratch) / "kept"
        overrides = [f"--config.{key}={value}" for key, value in KEYS.items()]
        train(
            configuration.parse(config_file.read("quickstart", overrides)),
            run,
            make_validator,
        )
        kept.mkdir()
        for name in KEPT:
            (shutil.copytree if (run / name).is_dir() else shutil.copy)(
                run / name, kept / name
            )
        # What it says comes first: an archive that lies there without it could never be
        # stored again.
        record.write_text(
            json.dumps(describe(kept), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        shutil.make_archive(str(archive.with_suffix("")), "zip", kept)
    sys.stderr.write(f"{archive}: {archive.stat().st_size:,} bytes\n")
    return 0


def describe(run: Path) -> dict[str, object]:
    """Return what a run says: translations by both searches, probabilities of
    references, scores of an evaluation.
    """
    translator = Translator.load(run)
    pairs = list(sources.load("bundled:en-de/test", "en", "de"))[:SENTENCES]
    texts = [pair.source for pair in pairs]
    searches = {}
    for beam_size in (1, 4):
        best = [
            hypotheses[0]
            for hypotheses in translator.search(texts, beam_size=beam_size)
        ]
        searches[str(beam_size)] = [
            {
                "text": found.text,
                "score": found.score,
                "log_probability": found.log_probability,
            }
            for found in best
        ]
    scores, _ = evaluate(translator, pairs, "stored")
    return {
        "version": __version__,
        "pairs": [[pair.source, pair.target] for pair in pairs],
        "translations_by_beam": searches,
        "pair_scores": [dataclasses.asdict(score) for score in translator.score(pairs)],
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
    }


if __name__ == "__main__":
    sys.exit(main())
