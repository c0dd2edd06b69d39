"""What training says of a run when it begins."""

from __future__ import annotations

import jax
import numpy as np

from jaxformer.data.cleaning import summary
from jaxformer.data.pipeline import TrainingData
from jaxformer.models.seq2seq import count_parameters
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.display import Display
from jaxformer.training.engines import Engine
from jaxformer.training.optimizer import frozen_mask
from jaxformer.training.progress import Progress
from jaxformer.training.run import Run

# Tokens that are looked at, and the share of unknown ones that is worth a warning.
_SAMPLE, _UNKNOWN = 100_000, 0.2


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
    sample = data.store.source.tokens[:_SAMPLE]
    unknown = float(np.mean(sample == run.vocabularies.source.unk_id))
    if unknown > _UNKNOWN:
        display.say(
            f"warning: {unknown:.0%} of the tokens are unknown to the vocabulary: is it"
            " of this language, and of this case?"
        )


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
