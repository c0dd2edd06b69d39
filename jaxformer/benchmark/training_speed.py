"""Compare the speed of training with PyTorch's own Transformer and Hugging Face's
Marian on this machine's CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxformer.benchmark.task import PACKED_LENGTH, TASKS, Task, save_pairs
from jaxformer.benchmark.turns import Message, Process, take_turns
from jaxformer.data.files import read_lines
from jaxformer.data.tokenizing import cores
from jaxformer.data.transforms import Encoded, Sentences
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.errors import InputError, require

FIXED, TEXT = "fixed", "text"

SYSTEMS = (
    "jaxformer-float32",
    "jaxformer-float32-packing",
    "jaxformer-float32-scanned",
    "jaxformer-bfloat16",
    "jaxformer-bfloat16-packing",
    "jaxformer-bfloat16-scanned",
    "torch-float32",
    "torch-bfloat16",
    "marian-float32",
    "marian-bfloat16",
)
"""Framework, precision, and in jaxformer what is done otherwise than usual: rows are
packed with real text, in place of length buckets, or layers are scanned.
"""

REFERENCE = "torch-float32"

COLUMNS = {
    "system": "system",
    "batches": "batches",
    "target_tokens_per_second": "target tok/s",
    "ratio": "ratio",
    "step_ms": "step ms",
    "padding": "padding",
    "first_step_seconds": "first step s",
    "second_start_seconds": "2nd start s",
    "memory_gib": "GiB",
}
"""The fields of a :class:`Row`, and what they are called above a column."""

_LONGEST = 100
_MODULE = "jaxformer.benchmark.step_process"
_CACHE = "JAX_COMPILATION_CACHE_DIR"
# The others compute on the CPU, so ours does, whatever else there is. What is kept is
# what `jaxformer train` keeps.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured of a system and a kind of batches.

    Attributes:
        system: of :data:`SYSTEMS`.
        batches: ``fixed`` or ``text``.
        target_tokens_per_second: without padding; the median of the turns.
        ratio: to the reference, the median of the turns; None without it.
        step_ms: mean of a turn's steps, in the median of the turns.
        padding: share of the slots of both sides.
        first_step_seconds: from the start of the process to the end of its first step,
            nothing compiled before.
        second_start_seconds: the same once more, with what the first start compiled.
        memory_gib: most that the process held until then (text comes after fixed
            batches); None where the system does not tell.
    """

    system: str
    batches: str
    target_tokens_per_second: float
    ratio: float | None
    step_ms: float
    padding: float
    first_step_seconds: float
    second_start_seconds: float
    memory_gib: float | None


def measure(
    task: Task,
    systems: Sequence[str],
    *,
    pairs: Encoded | None = None,
    steps: int = 4,
    repeats: int = 5,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Row]:
    """Let the systems take turns; give a row for each of them, first for fixed batches,
    then for text.

    Args:
        task: what they learn.
        systems: of :data:`SYSTEMS`.
        pairs: real text, an epoch of which is a turn; None: fixed batches alone.
        steps: of a turn with fixed batches.
        repeats: turns that count.
        report: told what is going on, a line at a time.

    Raises:
        InputError: an unknown system or one named twice, a package is missing, or a
            system ended too early.
    """
    check_systems(systems)
    _check_sizes(task, pairs, steps, repeats)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        requests: list[Message] = [{"pairs": None}]
        if pairs is not None:
            save_pairs(folder / "pairs.npz", pairs)
            requests.append({"pairs": str(folder / "pairs.npz")})
        processes: dict[str, Process] = {}
        seconds: dict[str, float] = {}
        for system in systems:
            report(f"{system} starts, with nothing compiled and once more")
            begin = {"system": system, "task": dataclasses.asdict(task), "steps": steps}
            environment = {**_ENVIRONMENT, _CACHE: str(folder / system)}
            with Process(system, _MODULE, begin, environment) as first:
                seconds[system] = first.startup_seconds
            processes[system] = stack.enter_context(
                Process(system, _MODULE, begin, environment)
            )
        answers: dict[tuple[int, str], list[dict[str, float]]] = {}
        report("the first turn compiles, and is not counted")
        for repeat, number, system, answer in take_turns(processes, requests, repeats):
            speed = answer["tokens"] / answer["seconds"]
            report(
                f"turn {repeat + 1} of {repeats}, {(FIXED, TEXT)[number]}: {system}"
                f" {speed:,.0f} target tokens/s"
            )
            answers.setdefault((number, system), []).append(answer)
    for (number, system), turns in answers.items():
        starts = seconds[system], processes[system].startup_seconds
        yield summarize(
            system,
            (FIXED, TEXT)[number],
            turns,
            answers.get((number, REFERENCE)),
            starts,
        )


def read_text(
    source: Path | None, target: Path | None, count: int, vocabulary_size: int
) -> Encoded | None:
    """Read pairs spread evenly over two files of parallel text, as tokens of a
    vocabulary trained on both.

    Args:
        source: one sentence a line; None: there is no text.
        target: their translations.
        count: pairs at most; those of more than 100 tokens are left out before.
        vocabulary_size: of the vocabulary.

    Raises:
        InputError: no pair is asked for, one file without the other, files that do not
            fit each other, or too little text.
    """
    if count < 1:
        raise InputError(f"a turn needs at least 1 pair of text, not {count}")
    if source is None and target is None:
        return None
    if source is None or target is None:
        raise InputError(
            "real text is given as --source and --target together: give both, or"
            " neither"
        )
    texts = [read_lines(path) for path in (source, target)]
    if len(texts[0]) != len(texts[1]):
        raise InputError(
            f"{source} has {len(texts[0]):,} lines and {target} has {len(texts[1]):,}:"
            " give the lines of one text"
        )
    try:
        vocabulary = Vocabulary.train(
            (line for text in texts for line in text), vocabulary_size
        )
    except InputError as error:
        smaller = (
            ", or choose --model=tiny"
            if vocabulary_size > TASKS["tiny"].vocabulary_size
            else ""
        )
        raise InputError(
            f"{source} and {target}: {error}: give a longer text{smaller}"
        ) from None
    sides = (vocabulary.encode_batch(text) for text in texts)
    pairs = Encoded(
        *(
            Sentences.of(side, vocabulary.pad_id, last=vocabulary.eos_id)
            for side in sides
        )
    )
    lengths = np.stack([pairs.source_lengths, pairs.target_lengths])
    fitting = np.flatnonzero(
        (lengths.max(axis=0) <= _LONGEST) & (lengths.min(axis=0) > 1)
    )
    if not len(fitting):
        raise InputError(
            f"{source} and {target} have no pair of 1 to {_LONGEST - 1} tokens: give"
            " other files"
        )
    count = min(count, len(fitting))
    return pairs.take(fitting[np.arange(count) * len(fitting) // count])


def _check_sizes(task: Task, pairs: Encoded | None, steps: int, repeats: int) -> None:
    for name, number, most in (
        ("steps", steps, 10**4),
        ("repeats", repeats, 10**4),
        ("tokens_per_batch", task.tokens_per_batch, 2**27),
    ):
        if number < 1:
            raise InputError(f"{name} must be at least 1, not {number}")
        if number > most:
            raise InputError(f"{name} must be at most {most:,}, not {number}")
    longest = (
        0
        if pairs is None
        else int(
            max(pairs.source_lengths.max(), pairs.target_lengths.max(), PACKED_LENGTH)
        )
    )
    if task.tokens_per_batch < longest:
        raise InputError(
            f"a batch of {task.tokens_per_batch} tokens does not hold a row of"
            f" {longest}: give more"
        )


def check_systems(systems: Sequence[str]) -> None:
    """Refuse systems that are unknown, are named twice or lack their packages.

    Raises:
        InputError: there is such a system.
    """
    for system in systems:
        if system not in SYSTEMS:
            raise InputError(
                f"there is no system {system!r}: choose from {', '.join(SYSTEMS)}"
            )
        # its first start would find what the other one compiled
        if list(systems).count(system) > 1:
            raise InputError(f"the system {system} is named twice: name each once")
        framework = system.partition("-")[0]
        if framework != "jaxformer":
            require("torch", "benchmark")
        if framework == "marian":
            require("transformers", "benchmark")


def summarize(
    system: str,
    batches: str,
    turns: Sequence[Mapping[str, float]],
    reference: Sequence[Mapping[str, float]] | None,
    starts: tuple[float, float],
) -> Row:
    """Return medians over the turns; a ratio is that of tokens a second within one
    turn.
    """

    def speed(turn: Mapping[str, float]) -> float:
        return turn["tokens"] / turn["seconds"]

    ratio = None
    if reference is not None:
        ratio = statistics.median(
            speed(turn) / speed(its) for turn, its in zip(turns, reference, strict=True)
        )
    return Row(
        system=system,
        batches=batches,
        target_tokens_per_second=statistics.median(map(speed, turns)),
        ratio=ratio,
        step_ms=1e3
        * statistics.median(turn["seconds"] / turn["steps"] for turn in turns),
        padding=turns[0]["padding"],
        first_step_seconds=starts[0],
        second_start_seconds=starts[1],
        memory_gib=turns[-1]["memory_gib"],
    )


def describe_machine() -> str:
    """Name the processor, which alone computes, and the versions of what was
    measured, in one line.
    """
    import importlib.metadata
    import platform

    versions = []
    for package in ("jaxformer", "jax", "torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{package} {importlib.metadata.version(package)}")
    where = f"on the CPU: {_processor()}, {cores()} cores"
    return f"{where}, Python {platform.python_version()}, {', '.join(versions)}"


def _processor() -> str:
    import platform

    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(
            encoding="utf-8", errors="replace"
        ).splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
