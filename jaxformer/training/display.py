"""Progress on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from jaxformer import bucket
from jaxformer.errors import escape_controls, require


class Display:
    """Shows the progress of the loop; any thread may write lines. This one shows
    nothing: the first host shows the progress of all.

    Attributes:
        live: whether it shows :meth:`doing`, and metrics between those of the log.
    """

    live = False

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def doing(self, what: str) -> None:
        """Show on the bar what is done until the next step."""

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
            text = escape_controls(bucket.reword(text)).expandtabs(14)
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a line if there is something new to read."""
        if metrics:
            self.say("  ".join([f"step {step}/{self._steps}", *describe(metrics)]))


class Bar(Display):
    """A progress bar of rich on standard error, for a terminal, drawn once a second."""

    live = True

    def __init__(self, steps: int) -> None:
        """Begin a run of so many steps."""
        live = require("rich.live", "train").Live
        from rich.console import Console

        self._steps, self._words, self._doing = steps, "", ""
        self.advance(0, {})
        self._console = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._live = live(
            console=self._console, get_renderable=self._draw, refresh_per_second=1
        )
        self._live.start()

    def say(self, text: str) -> None:
        """Show a line above the bar; text after a tab is wrapped next to its label."""
        from rich.table import Table

        for line in escape_controls(bucket.reword(text)).split("\n"):
            row = Table.grid(padding=(0, 1))
            row.add_row(*line.split("\t", 1))
            self._console.print(row)

    def doing(self, what: str) -> None:
        """Show it at once, and then with the seconds since the last step."""
        self._doing = what
        self._live.refresh()

    def advance(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        self._step, self._since, self._doing = step, time.monotonic(), ""
        if metrics:
            self._words = " ".join(describe(metrics, _OF_BAR))

    def close(self) -> None:
        """Leave the bar as it is, if it has moved."""
        self._doing, self._live.transient = "", not self._step
        self._live.stop()

    def _draw(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        words = self._words
        if self._doing:
            words = f"{self._doing} {time.monotonic() - self._since:.0f} s"
        # room for the ^C of a terminal: in another line the bar would be left
        row = Table.grid(padding=(0, 1))
        row.width = self._console.width - 4
        row.add_column(ratio=1)
        row.add_column(ratio=2, no_wrap=True)
        text = f"{self._step}/{self._steps} {words}"
        row.add_row(ProgressBar(self._steps, self._step), text)
        return row


def make_display(steps: int) -> Display:
    """Return a bar on a terminal, and plain lines elsewhere; on other hosts than the
    first, silence.
    """
    if jax.process_index() > 0:
        return Display()
    return Bar(steps) if sys.stderr.isatty() else Lines(steps)


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

_OF_BAR = ("loss", "tokens_per_second", "seconds_left")


def describe(
    metrics: Mapping[str, float], names: Iterable[str] = tuple(_SHOWN)
) -> list[str]:
    """Format the metrics of training that are shown."""
    return [
        _SHOWN[name](metrics[f"train/{name}"])
        for name in names
        if f"train/{name}" in metrics
    ]


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
