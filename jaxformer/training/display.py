"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping

import jax

from jaxformer import bucket
from jaxformer.errors import escape_controls, require


class Display:
    """Shows the progress of the loop; any thread may write lines. This one shows
    nothing: the first host shows the progress of all.
    """

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show how far the run is and, where there are new ones, its metrics."""

    def close(self) -> None:
        """Finish."""


class Lines(Display):
    """Plain lines on standard error, where there is no terminal: one for each entry
    of the log.
    """

    def __init__(self, steps: int) -> None:
        """Begin a run of so many steps."""
        self._steps = steps

    def say(self, text: str) -> None:
        """Show a line. Training continues if nobody reads it any more."""
        with contextlib.suppress(OSError):
            sys.stderr.write(escape_controls(bucket.reword(text)) + "\n")
            sys.stderr.flush()

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a line if there is something new to read."""
        if metrics:
            self.say("  ".join([f"step {step}/{self._steps}", *describe(metrics)]))


class Bar(Display):
    """A progress bar of rich on standard error, for a terminal.

    Where the terminal is narrow the metrics that matter least are left out; with 100
    columns there is room for all.
    """

    def __init__(self, steps: int) -> None:
        """Begin a run of so many steps."""
        progress = require("rich.progress", "train")
        column = require("rich.table", "train").Column
        console = require("rich.console", "train").Console(stderr=True)
        self._steps, self._words = steps, []
        self._progress = progress.Progress(
            progress.BarColumn(bar_width=None, table_column=column(ratio=1)),
            progress.TextColumn(
                "{task.description}", markup=False, table_column=column(no_wrap=True)
            ),
            console=console,
            expand=True,
        )
        self._task = self._progress.add_task(self._text(0), total=steps)
        self._progress.start()

    def say(self, text: str) -> None:
        """Show a line above the bar."""
        self._progress.console.print(
            escape_controls(bucket.reword(text)), markup=False, highlight=False
        )

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        if metrics:
            self._words = describe(metrics)
        self._progress.update(self._task, completed=step, description=self._text(step))

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()

    def _text(self, step: int) -> str:
        return fit(
            [f"{step}/{self._steps}", *self._words],
            self._progress.console.width - _SHORTEST_BAR,
        )


def make_display(steps: int) -> Display:
    """Return a bar on a terminal, and plain lines elsewhere; on other hosts than the
    first, silence.
    """
    if jax.process_index() > 0:
        return Display()
    return Bar(steps) if sys.stderr.isatty() else Lines(steps)


# The shortest bar, and the column between it and the text.
_SHORTEST_BAR = 4

_SHOWN: dict[str, Callable[[float], str]] = {
    "loss": "loss {:.3f}".format,
    "perplexity": lambda value: f"ppl {_short(value)}",
    "learning_rate": lambda value: f"lr {value:.1e}".replace("e-0", "e-"),
    "gradient_norm": lambda value: f"norm {_short(value)}",
    "tokens_per_second": lambda value: f"{_thousands(value)} tok/s",
    "mfu": "MFU {:.0%}".format,
    "padding": "pad {:.0%}".format,
    "seconds_left": lambda value: f"left {clock(value)}",
}

# What a narrow terminal drops, in this order.
_LEAST = ("pad", "norm", "lr", "MFU", "ppl", "left", "tok/s", "loss")


def describe(metrics: Mapping[str, float]) -> list[str]:
    """Format the metrics of training that are shown."""
    return [
        form(metrics[f"train/{name}"])
        for name, form in _SHOWN.items()
        if f"train/{name}" in metrics
    ]


def fit(words: list[str], width: int) -> str:
    """Join the words that :func:`describe` gave, without those that matter least if
    they are longer than ``width``.
    """
    for least in _LEAST:
        if len(" ".join(words)) <= width:
            break
        words = [word for word in words if least not in word.split(" ")]
    return " ".join(words)


def clock(seconds: float) -> str:
    """Write a duration as h:mm:ss or m:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}" if value < 1e5 else f"{value / 1000.0:,.0f}k"


def _short(value: float) -> str:
    if value < 100.0:
        return f"{value:.2f}"
    return f"{value:.0f}" if value < 100_000.0 else f"{value:.1e}"
