"""Translate token ids by the program of this folder.

It needs jax, numpy, safetensors and flatbuffers. As a script it reads a JSON list of
the ids of a text on each line, and writes those of its translation.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export


class ExportedSearch:
    """A search with its parameters, on JAX's default device."""

    def __init__(self, folder: Path) -> None:
        """Load a folder."""
        from safetensors.numpy import load_file

        self.settings = json.loads((folder / "config.json").read_bytes())
        program = bytearray((folder / "search.stablehlo").read_bytes())
        self.search = jax.jit(export.deserialize(program).call)
        self.params = jax.device_put(load_file(folder / "model.safetensors"))

    def translate(self, texts: list[list[int]]) -> list[list[int]]:
        """Translate texts, padded to a multiple of 16 tokens; a blank one stays blank.

        Each number of texts and each width is compiled once.

        Raises:
            ValueError: a text has more tokens than the model has positions.
        """
        about = self.settings
        before, after = about["source_before"], about["source_after"]
        rows = [[*before, *ids, *after] if ids else [] for ids in texts]
        longest, most = max(1, *map(len, rows)), about["max_length"]
        if longest > most:
            raise ValueError(f"a text has {longest} tokens, and at most {most} can be")
        width = min(-(-longest // 16) * 16, most)
        source = np.full((len(rows), width), about["pad_id"], np.int32)
        for row, ids in zip(source, rows, strict=True):
            row[: len(ids)] = ids
        found = jax.device_get(self.search(self.params, source))
        ends = found["lengths"] - found["finished"]
        first = len(about["target_before"])
        pairs = zip(found["tokens"], ends, strict=True)
        return [ids[first:end].tolist() for ids, end in pairs]


if __name__ == "__main__":
    exported = ExportedSearch(Path(__file__).parent)
    for line in sys.stdin:
        sys.stdout.write(f"{exported.translate([json.loads(line)])[0]}\n")
