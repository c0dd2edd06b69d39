"""What training says of a run when it begins."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from jaxformer.data.batching import Batch
from jaxformer.data.cleaning import is_empty, summary
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.prepared import Report
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.models.make import count_parameters
from jaxformer.training.display import Display
from jaxformer.training.engines import Engine
from jaxformer.training.optimizer import frozen_mask
from jaxformer.training.progress import Progress
from jaxformer.training.run import Run

# Tokens of a text that are looked at, and pairs that its unknown characters are in.
_TOKENS, _PAIRS = 1_000_000, 10_000
# Shares of unknown tokens.
_WARNED, _REFUSED = 0.01, 0.2
_ROWS = 200_000  # of training text, that validation text is compared with


def report_unknown(
    run: Run, data: TrainingData, valid: Sequence[Batch], report: Report
) -> None:
    """Report the share of unknown tokens on each side of training and validation text,
    and the most frequent unknown characters if there are many.

    Raises:
        InputError: more than a fifth of a side is unknown, and nothing is saved yet.
    """
    shares, warnings = [], []
    texts = data.store.sides if run.config.data.kind == "pairs" else {}
    sides = [*texts] or [next(iter(data.store.sides))]  # the others are labels
    for side in sides:
        vocabulary = getattr(run.vocabularies, side)
        unk, pad = vocabulary.unk_id, vocabulary.pad_id
        tokens = getattr(data.store, side).tokens
        for name, some, pairs in (
            ("train", tokens[:: 1 + len(tokens) // _TOKENS], run.text.kept()),
            ("valid", np.concatenate([x[side].ravel() for x in valid]), run.valid),
        ):
            share = np.sum(some == unk) / max(np.sum(some != pad), 1)
            if unk in (pad, vocabulary.eos_id):  # no piece is for unknown text
                share = 0.0
            if share >= 5e-5:  # 0.01 %
                shares.append(f"{share:.2%} of data.{name} ({side})")
            if share <= _WARNED:
                continue
            line = (
                f"{share:.1%} of the {side} tokens of data.{name} are unknown to the"
                f" vocabulary{_most_often(vocabulary, pairs, side)}"
            )
            if share > _REFUSED and not any(run.checkpoints.glob("*")):
                raise InputError(
                    f"{line}: name text in its language and case, or train a vocabulary"
                    " on it, without training.initial_run and prepare's --vocabulary"
                )
            warnings.append(
                f"warning: {line}; a new run with data.byte_fallback=True writes them"
                " as bytes"
            )
    for line in [f"unknown tokens: {', '.join(shares)}"] * any(shares) + warnings:
        report(line)


def _most_often(vocabulary: Vocabulary, pairs: Iterable[Pair], side: str) -> str:
    """Name the most frequent characters that a vocabulary does not know."""
    texts = (getattr(pair, side) for pair in itertools.islice(pairs, _PAIRS))
    counts = Counter(itertools.chain.from_iterable(texts))
    characters = [character for character, _ in counts.most_common()]
    ids = zip(characters, vocabulary.encode_batch(characters), strict=True)
    unknown = [character for character, own in ids if vocabulary.unk_id in own][:3]
    return f", most often {', '.join(map(repr, unknown))}" if unknown else ""


def _introduce_data(display: Display, run: Run, data: TrainingData) -> None:
    facts, config = data.statistics, run.config.data
    examples = config.examples
    rows = examples if config.window is None else "windows"
    rows = "pairs" if config.kind == "documents" else rows
    source = f"{facts.source_tokens:,} + " if facts.source_tokens else ""
    display.say(
        f"data: {facts.pairs:,} {rows} an epoch, {source}{facts.target_tokens:,}"
        f" tokens, {facts.batches:,} batches in {facts.shapes}"
        f" shape{'s' * (facts.shapes > 1)}, {facts.padding:.1%} padding"
    )
    for name, count in data.counts.items():
        display.say(f"  {name}: {count.read:,} {examples} read, {summary(count)}")
    if len(data.shares) > 1:
        for part in data.shares:
            size = part.stop - part.start
            display.say(
                f"  {part.name}: {size:,} {rows} x {part.weight:g},"
                f" {size * part.weight / facts.pairs:.1%}"
            )
    display.say(f"validation: {config.valid}, {len(run.valid):,} {examples}")
    if empty := sum(map(is_empty, run.valid)):
        display.say(f"warning: {empty:,} of them have an empty side, and count")
    if config.window is None:
        _compare_texts(display, run, data)


def _compare_texts(display: Display, run: Run, data: TrainingData) -> None:
    """Look for validation text among some of the training text."""
    valid, known = (
        {
            hash((*rows.source[i].tolist(), *rows.target[i].tolist()))
            for i in range(0, len(rows), 1 + len(rows) // _ROWS)
        }
        for rows in (run.encoded_valid, data.store)
    )
    if found := len(valid & known):
        display.say(
            f"warning: {found:,} of the validation text's {len(valid):,} different rows"
            " are training text too, and their scores are too good"
        )


def introduce(
    display: Display, run: Run, data: TrainingData, engine: Engine, progress: Progress
) -> None:
    """Say what a run is made of, what it reads, and what it begins with."""
    state = engine.abstract()
    params = state.params if state.base is None else state.base
    kind = f"{jax.devices()[0].platform} device{'s' * (engine.devices > 1)}"
    display.say(
        f"model: {count_parameters(params):,} parameters on {engine.devices} {kind}"
    )
    _introduce_data(display, run, data)
    training = run.config.training
    if training.warmup_steps > training.steps:
        display.say(
            f"warning: training.warmup_steps={training.warmup_steps} is more than"
            f" training.steps={training.steps}: the learning rate never reaches its"
            " peak"
        )
    if training.initial_run is not None and not progress.step:
        moments = " and its moments" if training.initial_optimizer else ""
        begin = f"beginning with the best parameters of {training.initial_run}"
        display.say(f"{begin}{moments}")
        if progress.drawn:
            display.say(f"newly drawn: {', '.join(progress.drawn)}")
    if state.base is not None:
        display.say(
            f"lora: {count_parameters(state.params):,} parameters of rank"
            f" {training.lora_rank} by training.lora_kernels={training.lora_kernels}"
        )
    if training.frozen is not None:
        leaves = map(jax.tree.leaves, (params, frozen_mask(params, training.frozen)))
        kept = sum(leaf.size * stays for leaf, stays in zip(*leaves, strict=True))
        display.say(f"frozen: {kept:,} parameters by training.frozen={training.frozen}")
    if progress.step:
        display.say(
            f"resuming at step {progress.step} of {training.steps} in {run.directory}"
        )
    metric = run.config.evaluation.best_metric
    if progress.choose_by(metric):
        display.say(
            f"evaluation.best_metric={metric} is new: the best so far begins again"
            " from nothing"
        )
    display.advance(progress.step, {})
