"""What a person at a terminal sees, and that a program gets what it always got."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

from cli.text import write

import runs

FEW = ("--dataset=bundled:en-de/valid", "--beam_size=1")


def at_terminal(*arguments, **variables):
    """Run a command in a terminal; return its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    line = [sys.executable, "-m", "jaxformer.cli.main", *map(str, arguments)]
    given = {**runs.environment(), "TERM": "xterm-256color", **variables}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    written = b""
    with subprocess.Popen(line, cwd=runs.ROOT, env=given, **streams) as process:
        os.close(theirs)
        while True:
            try:
                written += os.read(ours, 1 << 16)
            except OSError:  # the end of a terminal
                break
    os.close(ours)
    return process.returncode, written.decode().replace("\r\n", "\n")


def lines_of(shown):
    """Return the lines that a terminal shows one after another, without its codes."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown))


def test_results_are_tables(run, tmp_path):
    """They fit into the width; scores have two decimals and a signature, a search has
    what is unusual of it; a bar counts sentences. JSON is a matter of asking,
    and the same as without a terminal.
    """
    workdir = f"--workdir={run}"
    code, shown = at_terminal("evaluate", workdir, *FEW)
    lines = lines_of(shown)
    assert code == 0, shown
    assert max(map(len, lines)) <= 80
    assert any("500/500 sentences" in line for line in lines)
    rows = dict(line.split(maxsplit=1) for line in lines if re.match(r"\w+  ", line))
    record = json.loads(runs.command("evaluate", workdir, *FEW).stdout)
    for key in ("dataset", "bleu_signature", "checkpoint"):
        assert rows[key].strip() == str(record[key])
    for key in ("bleu", "chrf"):
        assert rows[key].strip() == f"{record[key]:.2f}"
    assert rows["decoding"].strip() == "beam_size 1, alpha 0.6, max_extra_length 20"
    text = write(tmp_path / "text", [pair.source for pair in runs.pairs()[:4]])
    for command in (
        ("info", workdir),
        ("doctor", workdir),
        ("compare", f"--reference={text}", text),
        ("score", workdir, f"--source={text}", f"--target={text}", "--summary"),
    ):
        code, shown = at_terminal(*command)
        assert max(map(len, lines_of(shown))) <= 80
        assert "{" not in shown
    told = at_terminal("info", workdir, "--format=json")
    assert told == (0, runs.command("info", workdir).stdout.decode())


def test_training_is_a_bar(tmp_path):
    """One bar is drawn over itself; an evaluation leaves its line and two samples with
    their references, wrapped beside their names. NO_COLOR takes the colours.
    """
    sizes = {"model.d_model": 16, "model.d_ff": 16, "data.num_buckets": 1}
    steps = {"training.steps": 4, "training.evaluate_every": 2}
    keys = {**sizes, **steps, "evaluation.max_sentences": 8}
    code, shown = at_terminal(
        *("train", "--config=configs/reverse.py", f"--workdir={tmp_path / 'run'}"),
        *(f"--config.{key}={value}" for key, value in keys.items()),
        NO_COLOR="1",
    )
    assert code == 0, shown
    lines = lines_of(shown.partition("finished at step")[0])
    assert max(map(len, lines)) <= 80
    assert not re.search(r"\x1b\[[0-9;]*3[0-9;]*m", shown)
    assert any("2/4 evaluating 8/8 " in line for line in lines)
    bars = [line for line in lines if re.search(r"[━╸] 4/4 loss \d", line)]
    assert re.search(r"4/4 loss [\d.]+ .* tok/s left 0:00", bars[-1])
    last = lines.index(next(x for x in lines if x.startswith("evaluation at step 4: ")))
    assert re.fullmatch(r".* nll [\d.]+, ppl .*BLEU .*chrF .* s\s*", lines[last])
    labels = [line.split()[0] for line in lines[last:] if re.match(r"  \w", line)]
    assert labels == ["source", "translation", "reference"] * 2
