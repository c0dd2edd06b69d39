"""A progress bar of translated sentences on a terminal."""

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
    """Show a bar on standard error, and yield the function that advances it by a number
    of sentences.

    There is a bar only if standard error is a terminal, and if the translations do not
    go to the same terminal.

    Args:
        total: number of all sentences; None: unknown.
        output: file of the translations; None: standard output.
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
    """Describe progress.

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
