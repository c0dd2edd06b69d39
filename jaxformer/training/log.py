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
        self._writers: list[TensorBoard | WeightsAndBiases] = []
        if not self._first:
            return
        rewind(
            self.metrics_file,
            lambda line: line["step"] <= (evaluated if is_evaluation(line) else step),
        )
        rewind(self.samples_file, lambda line: line["step"] <= evaluated)
        if wandb_project is not None:  # before TensorBoard, which refuses nothing
            self._writers.append(
                WeightsAndBiases(directory, wandb_project, config or {})
            )
        self._writers.append(TensorBoard(directory / "tensorboard", step))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one line of metrics.

        Raises:
            InputError: it cannot be written.
        """
        if not self._first:
            return
        append(self.metrics_file, {"step": step, **metrics})
        for writer in self._writers:
            writer.write(step, metrics)

    def write_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Add translations of validation sentences, one a line.

        Raises:
            InputError: they cannot be written.
        """
        if not self._first:
            return
        for sample in samples:
            append(self.samples_file, {"step": step, **sample})

    def close(self) -> None:
        """Close what is open."""
        while self._writers:
            self._writers.pop().close()


class TensorBoard:
    """Event files that TensorBoard shows."""

    def __init__(self, directory: Path, step: int) -> None:
        """Open a file for a run that is at ``step``. TensorBoard drops what older
        files have beyond it.
        """
        writer = require("tensorboardX", "train").SummaryWriter
        self._file = writer(str(directory), purge_step=step + 1 if step else None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to the curve of each metric."""
        for name, value in metrics.items():
            self._file.add_scalar(name, value, step)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WeightsAndBiases:
    """A run on Weights & Biases. A resumed run continues the same one by the id in its
    directory.
    """

    def __init__(
        self, directory: Path, project: str, config: Mapping[str, Any]
    ) -> None:
        """Begin or continue the run.

        Raises:
            InputError: the package is missing, or nobody is logged in.
        """
        wandb = require("wandb", "wandb")
        try:
            self._run = wandb.init(
                project=project,
                id=_saved_id(directory / "wandb_id"),
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
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics; they travel on their own."""
        self._run.log({"step": step, **metrics})

    def close(self) -> None:
        """Wait until everything has arrived."""
        self._run.finish()


def _saved_id(path: Path) -> str:
    """Return the id in the file; draw one the first time."""
    if not path.exists():
        write_whole(path, secrets.token_hex(8))
    return path.read_text(encoding="ascii").strip()
