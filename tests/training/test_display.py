"""What a person sees of a run, on a terminal and without one."""

import functools
import io
import re

import jax
import rich.console

from jaxformer.training.display import Bar, make_display

ENTRY = {
    "train/loss": 4.1234,
    "train/nll": 3.9,
    "train/perplexity": 61.7,
    "train/learning_rate": 7e-4,
    "train/gradient_norm": 0.4123,
    "train/tokens": 1e6,
    "train/tokens_per_second": 82_059.4,
    "train/mfu": 0.5,
    "train/padding": 0.031,
    "train/seconds_left": 43_523.0,
}
WORDS = ["loss 4.123", "ppl 61.70", "lr 7.0e-4", "norm 0.41", "82,059 tok/s"]
WORDS += ["MFU 50%", "pad 3%", "left 12:05:23"]
EVIL, SHOWN = (
    "source \x1b[2J\x07[bold]x[/bold]",
    r"source \u001b[2J\u0007[bold]x[/bold]",
)


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    """Without a terminal there is a plain line on standard error for each entry of
    the log, and for nothing else. Control characters of samples are escaped. Other
    hosts than the first show nothing.
    """
    shown = make_display(10)
    for host in range(2):
        shown.advance(1, {})
        shown.advance(2, ENTRY)
        shown.say(EVIL)
        shown.close()
        lines = "" if host else f"{'  '.join(['step 2/10', *WORDS])}\n{SHOWN}\n"
        assert capsys.readouterr() == ("", lines)
        monkeypatch.setattr(jax, "process_index", lambda: 3)
        shown = make_display(10)


def test_a_bar(monkeypatch):
    """It is one line, with step, loss, speed and the time left, in the middle of a long
    run too, or what is done meanwhile. Between two entries of the log the newest
    metrics stay, and lines stand above the bar as they are.
    """
    monkeypatch.setenv("TERM", "xterm")  # Rich knows no width of a dumb one
    terminal = io.StringIO()
    console = functools.partial(rich.console.Console, file=terminal, width=90)
    plain = {"force_terminal": True, "color_system": None, "legacy_windows": False}
    monkeypatch.setattr(rich.console, "Console", functools.partial(console, **plain))
    bar = Bar(100_000)
    bar.doing("evaluating 3/5")
    bar.advance(12_344, ENTRY)
    bar.say(f"{EVIL} :car:")
    bar.advance(12_345, {})
    bar.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    *_, last = filter(None, lines)
    assert max(map(len, lines)) <= 90
    assert any(line.endswith("0/100000 evaluating 3/5 0 s") for line in lines)
    assert last.endswith("12345/100000 loss 4.123 82,059 tok/s left 12:05:23")
    assert f"{SHOWN} :car:" in lines
