#!/usr/bin/env python3
r"""Measure `jaxformer serve` against the same search in its own process, and against
LibreTranslate with the same weights; every answer is checked.

    python scripts/benchmark/serve.py --workdir=runs/quickstart
    python scripts/benchmark/serve.py --workdir=runs/quickstart \
        --libretranslate=/path/to/environment/bin/python
    python scripts/benchmark/serve.py --workdir=runs/quickstart --soak=60

The servers take turns: each answers clients that send one sentence of the test set
after the other, and then sentences that come at random times, at 0.8 of its own
throughput. All search alike: beam 4, scores divided by the length to the power of 0.2,
which is Argos Translate's search. An answer is wrong if it is not what
``Translator.translate`` returns. LibreTranslate gets the run as a package of
``jaxformer export --format=argos``, and no splitter of sentences, which it would
download: each text is one sentence.

The search in its own process translates all texts at once, in batches of sixteen of
like length. Then, without LibreTranslate, a word is translated next to a document of
1,000 sentences, words are refused as the queue is full, and the memory is compared
after the first 1,000 requests and after all. Figures are medians over the rounds, the
ratios those within a round. Close other programs first.

``--soak`` is a test: clients translate, hang up, are slow and send what is wrong, for
so many minutes; then the server gets SIGTERM. It fails if an answer is wrong or
missing, or a program was compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import clients
import servers
import turns
from jaxformer.errors import InputError
from servers import DECODING, OURS, THEIRS, Server
from turns import Message, Process, Turn

SEARCH = "search"
BATCH = 16
SHARE = 0.8  # of the throughput, in the open loop
OPEN = "open"
EARLY = 1000  # requests, after which memory is taken first
COLUMNS = {
    "clients": ("clients", ""),
    "system": ("system", ""),
    "per_second": ("requests/s", ",.1f"),
    "p50_ms": ("p50 ms", ",.0f"),
    "p99_ms": ("p99 ms", ",.0f"),
    "ratio": ("ratio", ".2f"),
    "failed": ("not 200", ","),
    "wrong": ("wrong", ","),
}
FIGURES = {"figure": ("figure", ""), "value": ("value", ",.3f"), "goal": ("goal", "")}

Answers = dict[tuple[str, str], list[Turn]]
"""What came of each round, by the clients and the system."""


def main() -> None:
    """Measure, and print lines of JSON and then tables; or test."""
    options = parse()
    print(turns.describe_machine(), flush=True)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        given = {"workdir": str(options.workdir)}
        search = stack.enter_context(Process("the search", __file__, given))
        lines = read_texts(options)
        found = search.ask({"lines": lines})["lines"]
        expected = dict(zip(lines, found, strict=True))
        ours = stack.enter_context(servers.start_ours(options, folder, expected))
        if options.soak:
            soak(ours, options)
            return
        with contextlib.ExitStack() as other:
            systems = {OURS: ours}
            if options.libretranslate:
                start = servers.start_theirs(options, folder, expected)
                systems[THEIRS] = other.enter_context(start)
            early = measure_memory(ours, min(EARLY, options.requests))
            answers = measure(options, systems, search, lines)
        rows, figures = summarize(answers), compare(answers)
        figures += finish(ours, options, early)
    for row in [*rows, *figures]:
        print(json.dumps(row), flush=True)
    print(turns.format_table(COLUMNS, rows))
    print(turns.format_table(FIGURES, figures))
    if ours.failures:
        raise InputError(f"{ours.failures} answers were wrong: {ours.examples[:3]}")


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--workdir", type=Path, required=True, help="of the run")
    parser.add_argument(
        "--libretranslate",
        type=Path,
        metavar="PYTHON",
        help="of an environment with LibreTranslate; by default it takes no part",
    )
    parser.add_argument(
        "--clients", default="1,8,64,256", help="several numbers (default: %(default)s)"
    )
    parser.add_argument("--searches", help="of the server at a time")
    parser.add_argument(
        "--soak", type=float, metavar="MINUTES", help="test instead of measuring"
    )
    turns.add_numbers(
        parser,
        ("texts", 500, "of the run's test set (default: 500)"),
        ("seconds", 8, "that are measured at a time (default: 8)"),
        ("dropped", 2, "seconds before them (default: 2)"),
        ("rounds", 3, "of all systems (default: 3)"),
        ("requests", 10_000, "after which memory is measured (default: 10,000)"),
    )
    options = parser.parse_args()
    options.counts = []
    for word in options.clients.split(","):
        if not word.isdecimal() or not int(word):
            parser.error(f"--clients must be numbers such as 1,64, not {word!r}")
        options.counts.append(int(word))
    return options


def read_texts(options: argparse.Namespace) -> list[str]:
    """Read different texts of the test set that are one sentence each."""
    from jaxformer.data import sources
    from jaxformer.runs import config as configuration
    from jaxformer.translation.text.layout import Layout

    data = configuration.load(options.workdir / "config.json").data
    options.languages = [data.source_language, data.target_language]
    pairs = sources.load(data.test or "", *options.languages)
    texts = dict.fromkeys(pair.source for pair in pairs)
    whole = [
        text
        for text in texts
        if [piece.text for piece in Layout(text, data.source_language).pieces] == [text]
    ]
    return whole[: options.texts]


def begin(request: Message) -> Callable[[Message], Message]:
    """Load the run that is searched in a process of its own."""
    from jaxformer.translation.translator import Translator

    translator = Translator.load(request["workdir"])
    translator.decoding = dataclasses.replace(
        translator.decoding, **DECODING, batch_size=BATCH
    )

    def answer(request: Message) -> Message:
        begun = time.perf_counter()
        lines = translator.translate(request["lines"])
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "work": len(lines), "lines": lines}

    return answer


def measure(
    options: argparse.Namespace,
    systems: Mapping[str, Server],
    search: Process,
    lines: Sequence[str],
) -> Answers:
    """Let all systems work in turn."""
    answers: Answers = {}
    window = {"seconds": options.seconds, "dropped": options.dropped}

    def note(load: str, system: str, turn: Turn) -> None:
        answers.setdefault((load, system), []).append(turn)
        rate = turn["work"] / turn["seconds"]
        print(f"{load} {system} {rate:,.1f}/s", file=sys.stderr, flush=True)

    for seed in range(options.rounds):
        for count in options.counts:
            if count == min(options.counts, key=lambda own: abs(own - 64)):
                note("", SEARCH, search.ask({"lines": lines}))
            for system, server in systems.items():
                turn = server.ask("closed", clients=count, seed=seed, **window)
                note(str(count), system, turn)
        for system, server in systems.items():
            own = [
                turns_of[-1]
                for (load, of), turns_of in answers.items()
                if of == system and load != OPEN
            ]
            rate = SHARE * max(turn["work"] / turn["seconds"] for turn in own)
            if rate:
                note(OPEN, system, server.ask("opened", rate=rate, seed=seed, **window))
    return answers


def summarize(answers: Answers) -> list[dict[str, Any]]:
    """Return a row for each system and number of clients."""
    return [
        {
            "clients": load,
            "system": system,
            "per_second": turns.median_rate(own),
            "p50_ms": _median(own, "p50", 1e3),
            "p99_ms": _median(own, "p99", 1e3),
            "ratio": turns.median_ratio(own, answers.get((load, THEIRS))),
            "failed": int(sum(turn.get("failed", 0) for turn in own)),
            "wrong": int(sum(turn.get("wrong", 0) for turn in own)),
        }
        for (load, system), own in answers.items()
    ]


def _median(own: Sequence[Turn], name: str, factor: float) -> float | None:
    if name not in own[0]:
        return None
    return factor * statistics.median(turn[name] for turn in own)


def compare(answers: Answers) -> list[dict[str, Any]]:
    """Return the ratios that have goals."""
    rows = []
    for load, system in answers:
        own = answers[load, system]
        if system != OURS:
            continue
        if (other := answers.get((load, THEIRS))) and load in ("1", "64"):
            goal = ">= 2" if load == "1" else ">= 5"
            ratio = turns.median_ratio(own, other)
            rows.append(_row(f"{load} clients, to {THEIRS}", ratio, goal))
        if load == "64":
            ratio = turns.median_ratio(own, answers["", SEARCH])
            rows.append(
                _row("64 clients, to the search in its process", ratio, ">= 0.95")
            )
            spread = statistics.median(turn["p99"] / turn["p50"] for turn in own)
            rows.append(_row("64 clients, p99 / p50", spread, "<= 2"))
    return rows


def _row(figure: str, value: float | None, goal: str = "") -> dict[str, Any]:
    return {"figure": figure, "value": value, "goal": goal}


def measure_memory(ours: Server, requests: int) -> float:
    """Return the memory in GiB once so many requests have been sent."""
    if (left := requests - ours.requests) > 0:
        ours.ask("many", requests=left, clients=64, seed=requests)
    return ours.memory()


def finish(
    ours: Server, options: argparse.Namespace, early: float
) -> list[dict[str, Any]]:
    """Measure what needs one server; return a row for each figure."""
    beside = ours.ask("beside", times=10, seed=1)
    refused = ours.ask("refused", clients=64, sentences=20, seconds=5)
    late = measure_memory(ours, options.requests)
    return [
        _row("a word alone, s", beside["alone"]),
        _row(f"a word next to {clients.DOCUMENT:,} sentences, s", beside["beside"]),
        _row("most batches that it waited for", beside["most_batches"], "<= 2"),
        _row("a refusal, s (median)", refused["refusal_p50"]),
        _row("a refusal, s (p99)", refused["refusal_p99"], "< 0.05"),
        _row(f"memory after {EARLY:,} requests, GiB", early),
        _row(f"memory after {ours.requests:,} requests, GiB", late),
        _row("of these, the later to the earlier", late / early, "<= 1.1"),
        _row("programs compiled after the start", compiled(ours), "0"),
        _row("requests", ours.requests),
        _row("answers wrong or not 200", ours.failures, "0"),
    ]


def compiled(ours: Server) -> float:
    """Return how many programs were compiled after the server was ready."""
    return ours.load.ask({"kind": "compiled"})["count"]


def soak(ours: Server, options: argparse.Namespace) -> None:
    """Load the server in every way, end it by SIGTERM, and print what came of it.

    Raises:
        InputError: an answer was wrong or missing, or the server did not end well.
    """
    early = ours.memory()
    asked = {"seconds": 60 * options.soak, "pid": ours.process.pid}
    found = ours.load.ask({"kind": "soak", **asked})
    code = ours.process.wait(60)
    print(json.dumps({**found, "server_gib_before": early, "exit_code": code}))
    if found["faults"] or code:
        raise InputError(f"exit code {code}, and {found['faults']}")


if __name__ == "__main__":
    turns.run(main, begin)
