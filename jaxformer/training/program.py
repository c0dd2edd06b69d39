"""What a compiled program does, read from the text that XLA prints of it: its kernels,
the bytes that they read and write, and what devices exchange.

Each instruction outside of a fusion is a kernel. It reads its operands from the
device's memory and writes its results to it; what a TPU keeps in its fast memory is
not counted. A loop counts as often as it runs.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+)(?: \(.*)? ?(?:-> .*)?\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^{}]*\})?")
_CALLED = re.compile(r"\b(calls|body|condition|to_apply|async_execution)=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_CONTRACTED = re.compile(
    r'lhs_contracting_dim(?:s=\{([\d,]*)\}|ensions":\[([\d",]*)\])'
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')

_NO_KERNEL = {
    "after-all",
    "bitcast",
    "constant",
    "get-tuple-element",
    "opt-barrier",
    "parameter",
    "partition-id",
    "replica-id",
    "tuple",
}
# Custom calls of the TPU's compiler that only name memory.
_NO_CALL = {"AllocateBuffer", "AssumeGatherIndicesInBound", "ConcatBitcast"}
_SLICES = {"dynamic-slice", "gather", "slice"}
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
"""What devices exchange, by XLA's names of instructions."""

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "c64": 64, "c128": 128, "token": 0}


class Array(NamedTuple):
    """An array of a program: its type, its shape, and whether it is in the device's
    main memory.
    """

    dtype: str
    shape: tuple[int, ...]
    in_memory: bool

    @property
    def bytes(self) -> int:
        """Its size."""
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        bits = _BITS.get(self.dtype) or (int(digits[1]) if digits else 0)
        return math.prod(self.shape) * bits // 8

    @property
    def moved(self) -> int:
        """The bytes that main memory moves to read or to write it once."""
        return self.bytes if self.in_memory else 0


class Instruction(NamedTuple):
    """One line of a program."""

    name: str
    opcode: str
    results: tuple[Array, ...]
    operands: tuple[str, ...]
    rest: str

    @property
    def op_name(self) -> str:
        """Where in the Python program it comes from."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def target(self) -> str:
        """The library function that a custom call names."""
        found = _TARGET.search(self.rest)
        return found[1] if found else ""

    @property
    def written(self) -> tuple[Array, ...]:
        """What it writes. The start of a collective names its operands before that, and
        its own state after it.
        """
        kind, _, start = self.opcode.rpartition("-")
        if start != "start" or kind not in COLLECTIVES or kind == "all-reduce":
            return self.results
        count = len(self.operands)
        return self.results[count : 2 * count]

    def called(self) -> Iterator[str]:
        """Yield the computations that it runs."""
        for _, name in _CALLED.findall(self.rest):
            yield name


class Kernel(NamedTuple):
    """One thing that a device runs.

    Attributes:
        instruction: its line.
        times: how often it runs in a program.
        bytes: that it moves each time.
        flops: of its matmuls each time; 0 on a TPU, whose text does not show them.
    """

    instruction: Instruction
    times: int
    bytes: int
    flops: float

    def seconds(self, bandwidth: float, peak: float) -> float:
        """Return the least time of all its runs: that of the memory or of the
        arithmetic.

        Args:
            bandwidth: bytes per second.
            peak: operations per second.
        """
        return self.times * max(self.bytes / bandwidth, self.flops / peak)


class Program:
    """A compiled program.

    Attributes:
        computations: their instructions by name; fusions and loops name others.
        entry: the computation that is run.
    """

    def __init__(self, text: str) -> None:
        """Read the text of ``compiled.as_text()``."""
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if begun := _COMPUTATION.match(line):
                current = self.computations.setdefault(begun[1], {})
                if line.startswith("ENTRY"):
                    self.entry = begun[1]
            elif (found := _INSTRUCTION.match(line)) and "(" in found[2]:
                current[found[1]] = _parse(found[1], found[2])

    def kernels(self) -> list[Kernel]:
        """List what a device runs, loops as often as they run."""
        return list(self._run(self.entry, 1))

    def exchanged(self) -> dict[str, int]:
        """Return the bytes of the whole arrays that a device's collectives put together
        or exchange, by kind of :data:`COLLECTIVES`: the results of a gather, the
        operands of a scatter, the array of a sum.

        In a ring of n devices each sends and receives (n - 1) / n of that, of an
        all-reduce twice as much, and all of a collective-permute.
        """
        found: Counter[str] = Counter()
        for name, times in self._executed():
            computation = self.computations[name]
            for instruction in computation.values():
                kind = instruction.opcode.removesuffix("-start")
                if kind in COLLECTIVES:
                    given = itertools.chain(*_operands(instruction, computation))
                    found[kind] += times * max(
                        sum(array.bytes for array in arrays)
                        for arrays in (given, instruction.written)
                    )
        return dict(found)

    def instructions(self) -> Iterator[Instruction]:
        """Yield every instruction, those inside of fusions too."""
        for computation in self.computations.values():
            yield from computation.values()

    def _executed(self) -> Iterator[tuple[str, int]]:
        """Yield each computation, fused ones too, with how often it runs."""
        waiting = [(self.entry, 1)]
        while waiting:
            name, times = waiting.pop()
            yield name, times
            for instruction in self.computations[name].values():
                factor = self._trips(instruction)
                waiting += [
                    (called, times * factor)
                    for called in instruction.called()
                    if called in self.computations
                ]

    def _trips(self, instruction: Instruction) -> int:
        """Return how often a loop runs; 1 where that is unknown, and for all else."""
        if instruction.opcode != "while":
            return 1
        if found := _TRIPS.search(instruction.rest):
            return int(found[1])
        # A TPU's text has it only in the condition, that the index is below a constant.
        called = dict(_CALLED.findall(instruction.rest))
        condition = self.computations.get(called.get("condition", ""), {}).values()
        below = [each for each in condition if "direction=LT" in each.rest]
        numbers = [each for each in condition if each.opcode == "constant"]
        if len(below) != 1 or len(numbers) != 1:
            return 1
        return int(numbers[0].rest.partition(")")[0])

    def _run(self, name: str, times: int) -> Iterator[Kernel]:
        computation = self.computations[name]
        for instruction in computation.values():
            opcode = instruction.opcode
            if opcode in _NO_KERNEL or opcode.endswith(("-done", "-update")):
                continue
            if opcode == "custom-call" and instruction.target in _NO_CALL:
                continue
            if opcode in ("while", "call", "conditional"):
                for called in instruction.called():
                    yield from self._run(called, times * self._trips(instruction))
                continue
            moved = self._moved(instruction, computation)
            yield Kernel(
                instruction, times, moved, self._flops(instruction, computation)
            )

    def _flops(
        self, instruction: Instruction, computation: Mapping[str, Instruction]
    ) -> float:
        if instruction.opcode == "fusion":
            (fused,) = instruction.called()
            inside = self.computations[fused]
            return sum(self._flops(each, inside) for each in inside.values())
        if instruction.opcode == "dot":
            left = computation[instruction.operands[0]].results[0].shape
            return _dot_flops(instruction, left)
        if "cublas" in instruction.target:
            left = computation[instruction.operands[0]].results[0].shape
            return _dot_flops(instruction, left)
        if "fmha" in instruction.target:
            query, key = (
                computation[name].results[0] for name in instruction.operands[:2]
            )
            backward = "Backward" in instruction.target
            return (10.0 if backward else 4.0) * math.prod(query.shape) * key.shape[1]
        return 0.0

    def _moved(
        self, instruction: Instruction, computation: Mapping[str, Instruction]
    ) -> int:
        if instruction.opcode in ("copy-start", "slice-start"):
            # The results name the operand too, of which a slice reads its own part.
            ends = instruction.results[:2]
            return min(end.bytes for end in ends) * sum(end.in_memory for end in ends)
        operands = _operands(instruction, computation)
        read = [sum(array.moved for array in arrays) for arrays in operands]
        written = sum(array.moved for array in instruction.written)
        if instruction.opcode in _SLICES:
            return 2 * written
        if instruction.opcode == "dynamic-update-slice":
            return 2 * read[1]
        if instruction.opcode == "fusion":
            (fused,) = instruction.called()
            return self._fused(self.computations[fused], read, written)
        return sum(read) + written

    def _fused(
        self, fused: Mapping[str, Instruction], read: list[int], written: int
    ) -> int:
        """Correct what a fusion moves by the operands of which it reads a part, and the
        results of which it writes a part.
        """
        users: dict[str, list[Instruction]] = {}
        for instruction in fused.values():
            for operand in instruction.operands:
                users.setdefault(operand, []).append(instruction)
        parameters = [each for each in fused.values() if each.opcode == "parameter"]
        total = written
        for parameter in parameters:
            number = int(parameter.rest.partition(")")[0] or 0)
            using = users.get(parameter.name, [])
            if number >= len(read) or not read[number]:
                continue
            if all(
                each.opcode in _SLICES and each.operands[0] == parameter.name
                for each in using
            ):
                part = sum(array.bytes for each in using for array in each.results)
                total += min(read[number], part)
            elif any(
                each.opcode == "dynamic-update-slice"
                and each.operands[0] == parameter.name
                for each in using
            ):
                # In place: neither read nor written but for the part that changes.
                changed = sum(
                    array.bytes
                    for each in using
                    if each.opcode == "dynamic-update-slice"
                    for array in fused[each.operands[1]].results
                )
                total += min(read[number], changed) - read[number]
            else:
                total += read[number]
        return max(total, 0)


def _operands(
    instruction: Instruction, computation: Mapping[str, Instruction]
) -> list[tuple[Array, ...]]:
    return [
        computation[name].results if name in computation else ()
        for name in instruction.operands
    ]


def _parse(name: str, text: str) -> Instruction:
    shape, opcode, rest = _split(text)
    inside = _arguments(rest)
    operands = tuple(re.findall(r"%([\w.-]+)", inside))
    return Instruction(name, opcode, tuple(_arrays(shape)), operands, rest)


def _split(text: str) -> tuple[str, str, str]:
    """Cut ``shape opcode(operands), attributes``."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == " " and not depth:
            shape, tail = text[:position], text[position + 1 :]
            opcode, _, rest = tail.partition("(")
            return shape, opcode, rest
    return "", "", text


def _arguments(rest: str) -> str:
    """Return the operands: the text up to their closing parenthesis."""
    depth = 1
    for position, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return rest[:position]
    return rest


def _arrays(shape: str) -> Iterator[Array]:
    for dtype, lengths, layout in _ARRAY.findall(shape):
        sizes = tuple(int(length) for length in lengths.split(",") if length)
        yield Array(dtype, sizes, not re.search(r"S\([1-9]\d*\)", layout))


def _dot_flops(instruction: Instruction, left: tuple[int, ...]) -> float:
    found = _CONTRACTED.search(instruction.rest)
    axes = re.findall(r"\d+", found[1] or found[2] or "") if found else []
    lengths = [left[int(axis)] for axis in axes]
    return 2.0 * math.prod(instruction.results[0].shape) * math.prod(lengths)
