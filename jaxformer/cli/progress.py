"""How many sentences are translated, and how quickly, on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxformer.errors import require


@contextlib.contextmanager
def show_progress(
    total: int | None, output: Path | None
) -> Iterator[Callable[[int], None]]:
    """Return a function that is told how many more sentences are done; a bar of rich on
    standard error shows them.

    There is one only where standard error is a terminal, and not where the translations
    go to the same terminal.

    Args:
        total: sentences of all; None: nobody knows.
        output: where the translations go; None: to standard output.
    """
    if not sys.stderr.isatty() or (output is None and sys.stdout.isatty()):
        yield lambda _: None
        return
    progress, console = (
        require("rich.progress", "train"),
        require("rich.console", "train").Console(stderr=True),
    )
    done, begun = 0, time.monotonic()
    columns = (
        progress.BarColumn(bar_width=None),
        progress.TextColumn("{task.description}", markup=False),
        progress.TimeRemainingColumn(compact=True),
    )
    with progress.Progress(*columns, console=console, expand=True) as shown:
        task = shown.add_task(describe(0, total, 0.0), total=total)

        def advance(count: int) -> None:
            nonlocal done
            done += count
            shown.update(
                task,
                completed=done,
                description=describe(done, total, time.monotonic() - begun),
            )

        yield advance


def describe(done: int, total: int | None, seconds: float) -> str:
    """Put progress into words.

    Example:
        >>> describe(1500, 20000, 10.0), describe(3, None, 2.0)
        ('1,500/20,000 sentences, 150 sentences/s', '3 sentences, 1.5 sentences/s')
    """
    of_all = f"{done:,}" if total is None else f"{done:,}/{total:,}"
    rate = done / seconds if seconds > 0 else 0.0
    return (
        f"{of_all} sentences, {rate:,.0f} sentences/s"
        if rate >= 10
        else f"{of_all} sentences, {rate:.1f} sentences/s"
    )
