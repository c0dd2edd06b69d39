"""What training says of a run when it begins."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from numpy.typing import NDArray

from jaxformer.data.batching import Batch
from jaxformer.data.cleaning import summary
from jaxformer.data.download import Report
from jaxformer.data.pipeline import TrainingData
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import count_parameters
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.display import Display
from jaxformer.training.engines import Engine
from jaxformer.training.optimizer import frozen_mask
from jaxformer.training.progress import Progress
from jaxformer.training.run import Run

# Places of a text that are looked at, and tokens of each.
_PLACES, _TOKENS = 100, 10_000
# Pairs that the most frequent unknown characters are counted in.
_PAIRS = 10_000
# Shares of unknown tokens.
_WARNED, _REFUSED = 0.01, 0.2


def report_unknown(
    run: Run, data: TrainingData, valid: Sequence[Batch], report: Report
) -> None:
    """Report the share of unknown tokens on each side of training and validation text,
    and the most frequent unknown characters if there are many.

    Raises:
        InputError: more than a fifth of a side is unknown.
    """
    pairs = run.config.data.kind == "pairs"
    sides = ["source", "target"] if pairs else [next(iter(data.store.sides))]
    shares, warnings = [], []
    for name, text in (("data.train", run.text.kept()), ("data.valid", run.valid)):
        for side in sides:
            tokens = np.concatenate([batch[side].ravel() for batch in valid])
            if name == "data.train":
                tokens = _sample(getattr(data.store, side).tokens)
            share, unknown = _find_unknown(run, side, tokens, text)
            shares.append(f"{share:.2%} of {name} ({side})")
            line = (
                f"{share:.1%} of the {side} tokens of {name} are unknown to the"
                f" vocabulary{unknown}"
            )
            if share > _REFUSED:
                raise InputError(
                    f"{line}: name text in its language and case, or train a vocabulary"
                    " on this text, without training.initial_run and --vocabulary"
                )
            if share > _WARNED:
                cure = "data.byte_fallback=True lets a new one spell them"
                warnings.append(f"warning: {line}; {cure}")
    for line in (f"unknown tokens: {', '.join(shares)}", *warnings):
        report(line)


def _sample(tokens: NDArray[np.integer]) -> NDArray[np.integer]:
    starts = np.linspace(0, max(0, len(tokens) - _TOKENS), _PLACES).astype(np.int64)
    return np.concatenate([tokens[start : start + _TOKENS] for start in starts])


def _find_unknown(
    run: Run, side: str, tokens: NDArray[np.integer], pairs: Iterable[Pair]
) -> tuple[float, str]:
    """Return the share of unknown tokens, and what they stand for if they are many."""
    vocabulary: Vocabulary = getattr(run.vocabularies, side)
    unk, pad = vocabulary.unk_id, vocabulary.pad_id
    share = float(np.sum(tokens == unk) / max(np.sum(tokens != pad), 1))
    if unk in (pad, vocabulary.eos_id):  # there is no piece for unknown text
        return 0.0, ""
    if share <= _WARNED:
        return share, ""
    counts: Counter[str] = Counter()
    for pair in itertools.islice(pairs, _PAIRS):
        counts.update(getattr(pair, side))
    characters = [character for character, _ in counts.most_common()]
    ids = vocabulary.encode_batch(characters)
    unknown = [x for x, own in zip(characters, ids, strict=True) if unk in own][:3]
    return share, f", most often {' '.join(unknown)}" if unknown else ""


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


def _introduce_schedule(display: Display, training: TrainingConfig) -> None:
    if training.warmup_steps > training.steps:
        display.say(
            f"warning: training.warmup_steps={training.warmup_steps} is more than"
            f" training.steps={training.steps}: the learning rate never reaches its"
            " peak"
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
    _introduce_schedule(display, training)
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
