"""What a person sees of a run, on a terminal and without one."""

import functools
import io
import re

import jax
import pytest
import rich.console

from jaxformer.training.display import (
    Bar,
    Display,
    Lines,
    clock,
    describe,
    make_display,
)

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
WORDS = (
    "loss 4.123",
    "ppl 61.70",
    "lr 7.0e-4",
    "norm 0.41",
    "82,059 tok/s",
    "MFU 50%",
    "pad 3%",
    "left 12:05:23",
)


def test_lines_where_there_is_no_terminal(capsys):
    """Without a terminal there is a plain line on standard error for each entry of
    the log, and for nothing else.
    """
    shown = make_display(10)
    assert isinstance(shown, Lines)
    shown.advance(1, {})
    shown.advance(2, ENTRY)
    shown.say("done")
    shown.say("slow")
    shown.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["  ".join(["step 2/10", *WORDS]), "done", "slow"]


def test_text_of_a_corpus_gives_a_terminal_no_orders(capsys, monkeypatch):
    """Samples of the validation text are shown with their control characters
    escaped, on a terminal too.
    """
    evil = "source \x1b[2J\x07\nnext"
    Lines(10).say(evil)
    assert capsys.readouterr().err == "source \\u001b[2J\\u0007\nnext\n"
    drawn = str(draw_bar(monkeypatch, 100, lambda shown: shown.say(evil)))
    assert "u001b[2J" in drawn
    assert "\x07" not in drawn


def test_other_hosts_show_nothing(capsys, monkeypatch):
    """The first host shows the progress of all."""
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    shown = make_display(10)
    assert type(shown) is Display
    shown.say("hello")
    shown.advance(2, ENTRY)
    shown.close()
    assert capsys.readouterr() == ("", "")


def draw_bar(monkeypatch, width, act):
    """Return what a bar leaves on a terminal of some width: the lines above it and
    itself at last.
    """
    terminal = io.StringIO()
    console = functools.partial(rich.console.Console, file=terminal, width=width)
    plain = {"force_terminal": True, "color_system": None, "legacy_windows": False}
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console(**plain))
    bar = Bar(100_000)
    bar.advance(12_300, {})
    act(bar)
    bar.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line]


@pytest.mark.parametrize("width", [100, 250])
def test_all_fits_into_100_columns(monkeypatch, width):
    """On a terminal of 100 columns, in the middle of a long run, nothing is left
    out, and the bar is one line.
    """
    seen = draw_bar(monkeypatch, width, lambda bar: bar.advance(12_345, ENTRY))
    assert seen[-1].endswith(" ".join(["12345/100000", *WORDS]))
    assert max(len(line) for line in seen) <= width


@pytest.mark.parametrize("width", [30, 60, 90])
def test_narrow_terminals_drop_what_matters_least(monkeypatch, width):
    """On a narrow terminal the bar is one line all the same, with the step and the
    loss if anything.
    """
    seen = draw_bar(monkeypatch, width, lambda bar: bar.advance(12_345, ENTRY))
    assert "12345/100000 loss 4.123" in seen[-1]
    assert "pad" not in seen[-1]
    assert max(len(line) for line in seen) <= width


def test_the_bar_keeps_its_metrics(monkeypatch):
    """Between two entries of the log the newest metrics stay, lines stand above the
    bar, and brackets are no markup.
    """

    def act(bar):
        bar.advance(12_400, ENTRY)
        bar.say("evaluation: [bold]x[/bold]")
        bar.say("[red]")
        bar.advance(12_401, {})

    seen = draw_bar(monkeypatch, 100, act)
    assert seen[-1].endswith("12401/100000 " + " ".join(WORDS))
    assert "evaluation: [bold]x[/bold]" in [line.strip() for line in seen]
    assert "[red]" in [line.strip() for line in seen]


def test_words_for_a_person():
    """Only what is known and what a person looks at is described, in few letters
    whatever the value.
    """
    assert describe({}) == describe({"train/tokens": 5.0, "valid/bleu": 27.34}) == []
    assert tuple(describe(ENTRY)) == WORDS
    fast = {"train/perplexity": 8_123.4, "train/tokens_per_second": 656_472.0}
    assert describe(fast) == ["ppl 8123", "656k tok/s"]
    assert describe({"train/perplexity": 1e300}) == ["ppl 1.0e+300"]
    times = [clock(seconds) for seconds in (0, 59.6, 61, 3_661)]
    assert times == ["0:00", "1:00", "1:01", "1:01:01"]
