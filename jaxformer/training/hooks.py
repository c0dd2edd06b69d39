"""What accompanies the loop: the record of its metrics, what a person sees of it, and the signals that stop it."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

from jaxformer.errors import InputError, require


class Log:
    """The record of a run: ``metrics.jsonl``, ``samples.jsonl`` and ``tensorboard/`` in its directory."""

    def __init__(self, directory: Path, step: int, evaluated: int) -> None:
        """Open the record of a run that stands at ``step`` and was last evaluated at ``evaluated``.

        What a killed process wrote beyond them is taken back.
        """
        self.metrics_file = directory / "metrics.jsonl"
        self.samples_file = directory / "samples.jsonl"
        rewind(self.metrics_file, lambda line: line["step"] <= (evaluated if _is_evaluation(line) else step))
        rewind(self.samples_file, lambda line: line["step"] <= evaluated)
        writer = require("tensorboardX", "train").SummaryWriter
        self._tensorboard = writer(str(directory / "tensorboard"), purge_step=step + 1 if step else None)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one line of metrics."""
        append(self.metrics_file, {"step": step, **metrics})
        for name, value in metrics.items():
            self._tensorboard.add_scalar(name, value, step)
        self._tensorboard.flush()

    def write_samples(self, step: int, samples: list[dict[str, str]]) -> None:
        """Add translations of validation sentences, one a line."""
        for sample in samples:
            append(self.samples_file, {"step": step, **sample})

    def close(self) -> None:
        """Close TensorBoard's file."""
        self._tensorboard.close()


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add one JSON object as a line.

    Raises:
        InputError: it cannot be written: no space, no permission.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror}; mend that and run the same command again: it goes on from the "
            "last checkpoint"
        ) from error


def rewind(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    """Remove the lines of a record that are not to be kept, and a last line that was cut off."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            if keep(json.loads(line)):
                kept.append(line + b"\n")
        except ValueError:
            continue  # the empty end, or a line that a killed process cut off, maybe within a character
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(b"".join(kept))
    temporary.replace(path)


def _is_evaluation(metrics: Mapping[str, Any]) -> bool:
    return any(name.startswith("valid/") for name in metrics)


class Display(Protocol):
    """Shows a person what the loop does."""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show how far the run is and its newest metrics."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


class Lines:
    """Plain lines on standard error, where there is no terminal: one for each entry of the log."""

    def __init__(self, steps: int, start: int) -> None:
        """Begin at step ``start`` of ``steps``."""
        self._steps, self._start, self._begun = steps, start, time.monotonic()

    def say(self, text: str) -> None:
        """Show a line."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a line if there is something new to read."""
        if metrics:
            done = max(step - self._start, 1)
            left = (time.monotonic() - self._begun) / done * (self._steps - step)
            self.say(f"step {step}/{self._steps}  {describe(metrics)}  left {clock(left)}")

    def close(self) -> None:
        """Nothing is open."""


class Bar:
    """A progress bar of rich on standard error, for a terminal."""

    def __init__(self, steps: int, start: int) -> None:
        """Begin at step ``start`` of ``steps``."""
        progress = require("rich.progress", "train")
        console = require("rich.console", "train").Console(stderr=True)
        self._progress = progress.Progress(
            progress.TextColumn("training"),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[metrics]}"),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task("", total=steps, completed=start, metrics="")
        self._progress.start()

    def say(self, text: str) -> None:
        """Show a line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        if metrics:
            self._progress.update(self._task, completed=step, metrics=describe(metrics))
        else:
            self._progress.update(self._task, completed=step)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


def make_display(steps: int, start: int) -> Display:
    """Give a bar on a terminal, and plain lines elsewhere."""
    return Bar(steps, start) if sys.stderr.isatty() else Lines(steps, start)


def describe(metrics: Mapping[str, float]) -> str:
    """Put the metrics that a person looks at into a few words."""
    words = (
        ("train/loss", "loss {:.3f}"),
        ("train/perplexity", "ppl {:.2f}"),
        ("train/tokens_per_second", "{:,.0f} tokens/s"),
        ("valid/nll", "valid nll {:.3f}"),
        ("valid/perplexity", "valid ppl {:.2f}"),
        ("valid/bleu", "valid BLEU {:.2f}"),
    )
    return "  ".join(form.format(metrics[name]) for name, form in words if name in metrics)


def clock(seconds: float) -> str:
    """Write a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class StopSignal:
    """Notes Ctrl-C and SIGTERM, so that the loop can save before it ends; a second Ctrl-C ends it at once.

    Outside the main thread, where Python allows no handlers, it notes nothing.
    """

    def __init__(self) -> None:
        """Nothing was received yet."""
        self.received: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignal:
        """Begin to listen."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore what was there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        """Tell whether to stop."""
        return self.received is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
