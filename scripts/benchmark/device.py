#!/usr/bin/env python3
r"""Measure on one GPU, in nine minutes at most and without a network: what kernels pay,
what compilation takes, what a step is made of, learning, and decoding.

    PYTHONPATH=$PWD python scripts/benchmark/device.py --text=FOLDER
    PYTHONPATH=$PWD python scripts/benchmark/device.py --parts=b,c
    PYTHONPATH=$PWD python scripts/benchmark/device.py --tiny       # on a CPU

The parts, in their order:

b   a packed step of base and of big in bfloat16, and with each function of
    jaxformer.kernels replaced by its equation (equations.py)
c   compilation of the step of base for six lengths, one after the other and in threads,
    with XLA's choice of kernels by timing as it is (4), reduced (1) and off (0)
a   the kernels of the packed step by kind, from a trace
d   base on the text of FOLDER from nothing to the BLEU of its test set, and steps of
    torch.nn.Transformer, compiled (steps.py)
e   decoding of base, next to Hugging Face and CTranslate2 (decode.py)

Each command is stopped at its limit, and its lines begin with the seconds since the
start. What is not installed is left out. FOLDER has train, valid and test, .en and .de;
without it the bundled text is learned. --tiny tries every command at a small size.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
from jax.profiler import ProfileData

import turns
from equations import packed_batch
from jax_learner import make_learner
from tasks import TASKS

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 540
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}
# The part, most seconds, packages that it needs, and the arguments of Python.
PLAN = """
b 90 jax {here}/equations.py --model=base --rows=98 --length=256 --seconds=60
b 90 jax {here}/equations.py --model=big --rows=98 --length=256 --seconds=60
c 70 jax {here}/device.py compile base 25000 1 4
c 40 jax {here}/device.py compile base 25000 8 4
c 40 jax {here}/device.py compile base 25000 8 1
c 40 jax {here}/device.py compile base 25000 8 0
a 40 jax {here}/device.py trace base 98 256
a 50 jax {here}/device.py trace big 98 256
d 90 jax {train} --config.model.dtype=bfloat16
d 60 jax -m jaxformer evaluate --workdir={run} --checkpoint=latest
d 60 torch {here}/steps.py --device=cuda --model=base --rows=98 --length=256
     --steps=20 --repeats=3 --systems=jaxformer-bfloat16,torch-bfloat16-compiled
e 70 jax {decode} --systems=jaxformer-bfloat16
e 90 torch,transformers {decode} --systems=huggingface-float16
e 60 ctranslate2 {decode} --systems=ctranslate2-float16
"""
TINY = """
b 900 jax {here}/equations.py --rows=2 --length=16 --layers=1 --repeats=1
c 900 jax {here}/device.py compile tiny 512 2 0
a 900 jax {here}/device.py trace tiny 2 16
d 900 jax {train} --config.model.d_model=16 --config.model.d_ff=16
     --config.model.num_encoder_layers=1 --config.model.num_decoder_layers=1
     --config.training.steps=8
d 900 jax -m jaxformer evaluate --workdir={run} --checkpoint=latest --beam_size=1
d 900 torch {here}/steps.py --rows=2 --length=16 --steps=1 --repeats=1
     --systems=jaxformer-bfloat16,torch-bfloat16
e 900 ctranslate2 {here}/decode.py --batch=2 --sentences=2 --repeats=1
     --vocabulary_size=300 --systems=jaxformer-float32,ctranslate2-float32
"""
COMMANDS = {
    "here": str(Path(__file__).parent),
    "decode": "{here}/decode.py --model=base --device=cuda --batch=64,256 --beam=1,4"
    " --sentences=512 --repeats=3",
    "train": "-m jaxformer train --config={root}/configs/paper/ende_base.py"
    " --workdir={run} --config.data.train=text:{text}/train.en,{text}/train.de"
    " --config.data.valid=text:{text}/valid.en,{text}/valid.de"
    " --config.data.test=text:{text}/test.en,{text}/test.de"
    " --config.data.vocabulary_size=12000 --config.data.packing=True"
    " --config.model.dropout_rate=0.3 --config.training.warmup_steps=1500"
    " --config.training.log_every=8 --config.evaluation.max_sentences=0"
    " --config.evaluation.best_metric=loss",
}
LENGTHS = (16, 64, 128, 256, 384, 512)
KINDS = {
    "attention": r"fmha|flash|sdpa|cudnn",
    "matmul by Triton": r"gemm_fusion|triton.*gemm",
    "matmul": r"nvjet|gemm|cutlass|xmma|cublas|dot",
    "copy": r"memcpy|memset|copy",
    "sort, scatter": r"sort|radix|cub::|scatter",
    "random bits": r"rng|threefry|philox",
    "transpose": r"transpose",
    "reduction": r"reduce",
    "other": r"",
}


def main() -> None:
    """Run the commands of the parts, each within its limit."""
    parser = turns.make_parser(__doc__)
    parser.add_argument("--parts", default="b,c,a,d,e")
    folder = ROOT / "jaxformer/data/bundled/en-de"
    parser.add_argument("--text", type=Path, default=folder, metavar="FOLDER")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("call", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.call:
        name, *given = options.call
        {"compile": compile_lengths, "trace": trace}[name](*given)
        return
    if not {*options.parts.split(",")} <= {*"abcde"}:
        parser.error(f"parts are a, b, c, d and e, not {options.parts}")
    if not options.text.is_dir():
        parser.error(f"no folder {options.text}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as run:
        paths = {"root": ROOT, "run": run, "text": options.text.resolve(), **COMMANDS}
        plan = (TINY if options.tiny else PLAN).format(**paths).format(**paths)
        lines = [line.split() for line in re.split(r"\n(?! )", plan) if line]
        for wanted in options.parts.split(","):
            for part, limit, packages, *command in lines:
                if part != wanted:
                    continue
                print(f"{part}: {' '.join(command)}", flush=True)
                if not all(map(importlib.util.find_spec, packages.split(","))):
                    print(f"left out: {packages} is not installed", flush=True)
                    continue
                left = MOST_SECONDS - (time.monotonic() - begun)
                seconds = limit if options.tiny else max(1, min(float(limit), left))
                process = subprocess.Popen(
                    ["timeout", "-k", "20", str(seconds), sys.executable, *command],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env={**turns.ENVIRONMENT, **os.environ, **ENVIRONMENT},
                )
                for line in process.stdout or ():
                    print(
                        f"{time.monotonic() - begun:6.1f}  {line}", end="", flush=True
                    )
                if code := process.wait():
                    print(f"ended with code {code}; 124 is the limit", flush=True)


def trace(model: str, rows: str, length: str) -> None:
    """Print the kernels of packed steps, by kind and the longest ones."""
    steps, learner = 5, make_learner(TASKS[model], "bfloat16")
    batch = packed_batch(TASKS[model].vocabulary_size, int(rows), int(length))
    learner.run([batch] * 3)
    begun = time.perf_counter()
    learner.run([batch] * steps)
    seconds = time.perf_counter() - begun
    on_cpu = jax.default_backend() == "cpu"
    device, work = ("/host:CPU", "tf_XLA") if on_cpu else ("/device:GPU", "Stream")
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            learner.run([batch] * steps)
        (path,) = Path(folder).rglob("*.xplane.pb")
        events = [
            (event.name, event.duration_ns / 1e6)
            for plane in ProfileData.from_file(str(path)).planes
            if plane.name.startswith(device)
            for line in plane.lines
            if line.name.startswith(work)
            for event in line.events
        ]
    print(f"{model}: {1e3 * seconds / steps:.2f} ms a step without the trace")
    print_sums([(kind(name), ms) for name, ms in events], steps)
    print_sums([(name[:70], ms) for name, ms in events], steps)


def kind(kernel: str) -> str:
    """Return the first kind whose pattern is in the name of a kernel."""
    return next(name for name in KINDS if re.search(KINDS[name], kernel.lower()))


def print_sums(events: Iterable[tuple[str, float]], steps: int) -> None:
    """Sum the milliseconds of each name, and print the largest sums."""
    sums, counts = Counter[str](), Counter[str]()
    for name, milliseconds in events:
        sums[name] += milliseconds  # type: ignore[assignment]
        counts[name] += 1
    print("ms a step    share   a step")
    for name, ms in sums.most_common(25):
        share = ms / sums.total()
        print(f"{ms / steps:9.3f} {share:8.1%} {counts[name] / steps:8.1f}  {name}")


def compile_lengths(model: str, slots: str, threads: str, level: str) -> None:
    """Compile the step for several lengths, and time the last one."""
    jax.config.update("jax_enable_compilation_cache", False)
    engine = make_learner(TASKS[model], "bfloat16").engine
    rows = [int(slots) // n // 8 * 8 for n in LENGTHS]
    lengths = [pair for pair in zip(rows, LENGTHS, strict=True) if pair[0]]
    begun = time.perf_counter()
    lowered = [engine.lower({"source": each, "target": each}) for each in lengths]
    between = time.perf_counter()
    with ThreadPoolExecutor(int(threads)) as pool:
        option = {"xla_gpu_autotune_level": int(level)}
        programs = list(pool.map(lambda each: each.compile(option), lowered))
    ended = time.perf_counter()
    ones = np.ones(lengths[-1], np.int32)
    batch = {"source": ones, "target": ones}
    state, placed, times = engine.create(), dict(engine.put(batch)), [ended]
    for _ in range(8):
        state, _ = jax.block_until_ready(programs[-1](state, placed))
        times.append(time.perf_counter())
    print(
        f"{model}, {threads} threads, autotuning {level}: {between - begun:.1f} s to"
        f" lower and {ended - between:.1f} s to compile {len(lengths)} lengths;"
        f" {1e3 * np.diff(times).min():.1f} ms a step of the last"
    )


if __name__ == "__main__":
    turns.run(main)
