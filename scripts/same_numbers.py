#!/usr/bin/env python3
"""Record what jaxformer computes, and compare a changed jaxformer with it.

    python scripts/same_numbers.py record numbers/
    python scripts/same_numbers.py compare numbers/ --tolerance=1e-6

Recorded are the losses of 300 steps of the quickstart on one device, on eight (virtual)
devices under ``pmap`` and over a mesh, of packed rows and in bfloat16; 500 translations
with their scores by beam search, greedy search and sampling, in float32, bfloat16 and
int8; and the number of parameters of the published configurations. Everything runs
through the command line, which does not change where the code moves. ``compare``
computes the same again from the recorded model, and prints a line for each part; the
exit code is 1 where one differs by more than the tolerance. It trains with every key
of the recorded configuration, so that a changed default or quickstart moves no number.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRAINING = {
    "single": [],
    "pmap-8": ["training.engine=pmap"],
    "mesh-8": [
        "training.engine=mesh",
        "training.mesh_fsdp=2",
        "training.mesh_tensor=2",
    ],
    "packed": ["data.packing=True"],
    "bfloat16": ["model.dtype=bfloat16"],
}
SEARCHES = {
    "beam": ["--beam_size=4"],
    "greedy": ["--beam_size=1"],
    "sampled": ["--sample", "--seed=1"],
}
PRECISIONS = ("float32", "bfloat16", "int8")
CONFIGURATIONS = ("quickstart", "paper/ende_base", "paper/ende_big", "paper/enfr_big")
PINNED = """import json

from jaxformer.runs.config import default_config


def get_config():
    config = default_config()
    for section, values in json.loads({text!r}).items():
        if section in config:
            keys = config[section].keys() & values.keys()
            config[section].update({{key: values[key] for key in keys}})
    return config
"""


def call(*arguments: str, devices: int = 1) -> str:
    """Run the command line, and return what it writes to standard output."""
    flags = (
        f"{os.environ.get('XLA_FLAGS', '')}"
        f" --xla_force_host_platform_device_count={devices}"
    )
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    line = [sys.executable, "-m", "jaxformer", *arguments]
    return subprocess.run(
        line, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def train(kind: str, config: str | Path, workdir: Path, steps: int) -> list[float]:
    """Train for a while, and return the losses that were logged."""
    keys = [
        f"training.steps={steps}",
        f"training.log_every={max(1, steps // 6)}",
        "evaluation.max_sentences=0",
        "data.packing=False",
    ]
    keys += [
        "evaluation.best_metric=loss",
        f"training.evaluate_every={steps}",
        *TRAINING[kind],
    ]
    options = [f"--config.{key}" for key in keys]
    call(
        *("train", f"--config={config}", f"--workdir={workdir}", *options),
        devices=8 if kind.endswith("-8") else 1,
    )
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [
        value
        for each in records
        for key, value in each.items()
        if key in ("train/loss", "valid/nll")
    ]


def translate(
    run: Path, search: list[str], precision: str, sentences: int
) -> list[Any]:
    """Translate the bundled test set, and return texts and scores."""
    source = (ROOT / "jaxformer" / "data" / "bundled" / "en-de" / "test.en").read_text(
        encoding="utf-8"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".en", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in source.split("\n")[:sentences]))
        file.flush()
        options = [
            f"--workdir={run}",
            f"--input={file.name}",
            f"--precision={precision}",
            "--format=jsonl",
            *search,
        ]
        found = [
            json.loads(line)["translations"][0]
            for line in call("translate", *options).splitlines()
        ]
    return [[each["text"], each["score"], each["log_probability"]] for each in found]


def record(
    config: str | Path, folder: Path, model: Path | None, steps: int, sentences: int
) -> dict[str, Any]:
    """Compute everything.

    Args:
        config: of the trainings, a Python file.
        folder: for the trained runs.
        model: the run that translates; None: the one that is trained here.
        steps: of each training.
        sentences: to translate.
    """
    found: dict[str, Any] = {}
    for kind in TRAINING:
        found[f"losses {kind}"] = train(kind, config, folder / kind, steps)
    for name, search in SEARCHES.items():
        for precision in PRECISIONS:
            found[f"{name} {precision}"] = translate(
                model or folder / "single", search, precision, sentences
            )
    for name in CONFIGURATIONS:
        found[f"parameters {name}"] = json.loads(
            call("info", f"--config=configs/{name}.py")
        )["parameters"]
    return found


def largest(one: Any, other: Any) -> float:
    """Return the largest difference of two numbers, relative where they are above 1;
    infinite where a text differs, or where a number is not finite.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        one, other = sorted(one.items()), sorted(other.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return (
            math.inf
            if len(one) != len(other)
            else max((largest(*pair) for pair in pairs), default=0.0)
        )
    if isinstance(one, int | float) and isinstance(other, int | float):
        difference = abs(one - other) / max(1.0, abs(one))
        return difference if math.isfinite(difference) else math.inf
    return 0.0 if one == other else math.inf


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="numbers.json and the trained model")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        help="largest difference (default 0: the same digits)",
    )
    parser.add_argument(
        "--steps", type=int, default=300, help="of each training, with record"
    )
    parser.add_argument(
        "--sentences", type=int, default=500, help="to translate, with record"
    )
    options = parser.parse_args()
    numbers, folder = options.folder / "numbers.json", options.folder.absolute()
    if options.action == "record":
        if folder.exists():
            parser.error(f"{folder} exists: name a new folder")
        folder.mkdir(parents=True)
        found = record(
            "configs/quickstart.py", folder, None, options.steps, options.sentences
        )
        numbers.write_text(
            json.dumps(
                {"steps": options.steps, "sentences": options.sentences, "found": found}
            )
        )
        return 0
    before = json.loads(numbers.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        run, pinned = folder / "single", Path(scratch) / "pinned.py"
        pinned.write_text(PINNED.format(text=(run / "config.json").read_text()))
        found = record(pinned, Path(scratch), run, before["steps"], before["sentences"])
    differences = {
        name: largest(before["found"].get(name), value) for name, value in found.items()
    }
    for name, difference in differences.items():
        print(
            f"{name:28}"
            f" {'equal' if difference == 0 else f'differs by {difference:.2e}'}"
        )
    return int(max(differences.values()) > options.tolerance)


if __name__ == "__main__":
    sys.exit(main())
