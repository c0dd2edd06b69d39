"""The record of a run: its metrics, for programs and for the pages on which people
watch, and its samples.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxformer.errors import InputError, require
from jaxformer.files import write_whole
from jaxformer.runs.records import append, is_evaluation, rewind


class Log:
    """The record of a run: ``metrics.jsonl``, ``samples.jsonl`` and ``tensorboard/`` in
    its directory.

    With several hosts the first writes, and the logs of the others keep nothing.
    """

    def __init__(
        self,
        directory: Path,
        step: int,
        evaluated: int,
        *,
        wandb_project: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """Open the record of a run that is at ``step`` and was last evaluated at
        ``evaluated``.

        Lines that a killed process wrote beyond them are removed.

        Args:
            directory: of the run.
            step: the last step whose line of training is kept.
            evaluated: the last step whose validation and samples are kept.
            wandb_project: project on Weights & Biases that gets the metrics too.
            config: what Weights & Biases shows as the run's configuration.

        Raises:
            InputError: a package is missing, or Weights & Biases refuses the project.
        """
        self.metrics_file = directory / "metrics.jsonl"
        self.samples_file = directory / "samples.jsonl"
        self._first = jax.process_index() == 0
        self._wandb, self._tensorboard = None, None
        if not self._first:
            return
        rewind(
            self.metrics_file,
            lambda line: line["step"] <= (evaluated if is_evaluation(line) else step),
        )
        rewind(self.samples_file, lambda line: line["step"] <= evaluated)
        if wandb_project is not None:
            self._wandb = _open_wandb(directory, wandb_project, config or {})
        # TensorBoard drops what older files have beyond the step.
        self._tensorboard = require("tensorboardX", "train").SummaryWriter(
            str(directory / "tensorboard"), purge_step=step + 1 if step else None
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one line of metrics."""
        if self._tensorboard is None:
            return
        append(self.metrics_file, {"step": step, **metrics})
        for name, value in metrics.items():
            self._tensorboard.add_scalar(name, value, step)
        self._tensorboard.flush()
        if self._wandb is not None:
            self._wandb.log({"step": step, **metrics})

    def write_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Add translations of validation sentences, one a line."""
        for sample in samples if self._first else ():
            append(self.samples_file, {"step": step, **sample})

    def close(self) -> None:
        """Close what is open, and wait until everything has arrived."""
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _open_wandb(directory: Path, project: str, config: Mapping[str, Any]) -> Any:
    """Begin a run on Weights & Biases, or continue it by the id in the directory."""
    wandb, saved = require("wandb", "wandb"), directory / "wandb_id"
    if not saved.exists():
        write_whole(saved, secrets.token_hex(8))
    try:
        run = wandb.init(
            project=project,
            id=saved.read_text(encoding="ascii").strip(),
            resume="allow",
            name=directory.resolve().name,
            dir=str(directory),
            config=dict(config),
            # the progress bar belongs to the terminal
            settings=wandb.Settings(console="off"),
        )
    except wandb.Error as error:
        raise InputError(
            f"Weights & Biases does not take training.wandb_project={project}"
            f" ({error}): run `wandb login`, or set the environment variable"
            " WANDB_MODE=offline"
        ) from error
    # Steps are a metric of their own: Weights & Biases refuses a step that is
    # repeated after a kill.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run
