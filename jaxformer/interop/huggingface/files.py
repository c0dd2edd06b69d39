"""Folders of models as ``save_pretrained`` of Hugging Face's transformers writes them.

Weights are read from and written to ``model.safetensors``, or read from its shards. The
format is eight bytes with the length of a header, the header in JSON, and the numbers
(https://github.com/huggingface/safetensors). Pickled weights are never opened.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxformer.errors import InputError, first_line, require
from jaxformer.files import cannot_write, describe, open_whole, parse_json, write_whole

SETTINGS, GENERATION = "config.json", "generation_config.json"
"""The files of a model's settings and of its search's."""

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"

_DTYPES = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": jnp.dtype("bfloat16"),
}
"""The types of tensors that are read and written, by their names in a header."""

_NAMES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.npz")

_CONVERT = (
    "where torch is installed, convert it once by the class in config.json, such"
    " as AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)

_QUANTISED = "import the model that was quantised; --precision=int8 quantises it here"

_CUT = "the file is damaged or was not fetched whole: fetch it again"


def read_settings(folder: Path, name: str = SETTINGS) -> dict[str, Any]:
    """Read an object of JSON from a model's folder.

    Raises:
        InputError: no folder, no such file, or no object of JSON.
    """
    path = folder / name
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: {_advise(folder)}")
    if not path.is_file():
        refuse_others(folder)
        raise InputError(
            f"{folder} has no {name}: name the folder that save_pretrained wrote or"
            " that was downloaded from the Hub"
        )
    try:
        found = parse_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {describe(error)}") from None
    except InputError as error:
        raise InputError(f"{path} is no JSON ({error}); {_CUT}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold an object of JSON; {_CUT}")
    return found


def _advise(folder: Path) -> str:
    """Return the cure where a model's folder is missing."""
    if folder.suffix == ".gguf":
        return _QUANTISED
    if folder.is_file():
        return f"name the one that the file is in: {folder.parent}"
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(folder)) and not folder.parent.exists():
        return (
            f"fetch it first: hf download {folder} --local-dir=FOLDER, then jaxformer"
            " import FOLDER"
        )
    return "name that of a downloaded model"


def refuse_others(folder: Path, settings: Mapping[str, Any] | None = None) -> None:
    """Refuse what is no model of transformers, by what it is.

    Args:
        folder: whose settings are missing, or have no ``model_type``.
        settings: of ``config.json``, if there is one.

    Raises:
        InputError: a run, or a folder of CTranslate2, PEFT or llama.cpp.
    """
    if {"model", "data", "training"} <= (settings or {}).keys():
        kind, cure = "the directory of a run", f"use it by --workdir={folder}"
    elif (folder / "adapter_config.json").is_file():
        kind = "adapters of PEFT without their model"
        cure = "merge them by PEFT's merge_and_unload, and save the whole model"
    elif any(folder.glob("*.gguf")):
        kind, cure = "a model in GGUF", _QUANTISED
    elif (folder / "model.bin").is_file():
        kind, cure = "a model of CTranslate2", "import the one that it was made from"
    else:
        return
    raise InputError(f"{folder} is {kind}: {cure}")


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """Map the tensors of a model's folder into memory, by name.

    A single file comes before shards, as in transformers. Nothing is read before an
    array is used. The arrays cannot be written.

    Raises:
        InputError: no weights, only pickled ones, a damaged file, a tensor of an
            unsupported type, or an index that does not fit its files.
    """
    if (folder / _WEIGHTS).is_file():
        return _map_tensors(folder / _WEIGHTS)
    if (folder / _INDEX).is_file():
        return _read_shards(folder)
    pickles = sorted(path.name for kind in _PICKLES for path in folder.glob(kind))
    if pickles:
        raise InputError(
            f"{folder} has weights only as {pickles[0]}, a format that can run code or"
            f" that jaxformer does not read, and needs {_WEIGHTS}: fetch that file if"
            f" the repository has it; else, {_CONVERT}"
        )
    raise InputError(f"{folder} has no {_WEIGHTS}: fetch it from the model's page")


def _read_shards(folder: Path) -> dict[str, np.ndarray]:
    places = read_settings(folder, _INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise InputError(f"{folder / _INDEX} has no weight_map; {_CUT}")
    files = {file: _map_tensors(folder / file) for file in {*places.values()}}
    for name, file in places.items():
        if name not in files[file]:
            raise InputError(
                f"{folder / file} lacks the tensor {name}, which {_INDEX} places there;"
                " fetch index and files together"
            )
    return {name: files[file][name] for name, file in places.items()}


def _map_tensors(path: Path) -> dict[str, np.ndarray]:
    safetensors = require("safetensors", "train")
    _check_kind(path)
    try:
        # Checks that the header fits the file: types, shapes and offsets.
        with safetensors.safe_open(str(path), framework="numpy"):
            pass
        with path.open("rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        data = np.memmap(path, np.uint8, "r").view(np.ndarray)[8 + length :]
    except safetensors.SafetensorError as error:
        raise InputError(
            f"{path} is no file of safetensors ({first_line(error)}); {_CUT}"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {describe(error)}") from None
    header.pop("__metadata__", None)
    return {name: _view(path, name, data, header[name]) for name in sorted(header)}


def _check_kind(path: Path) -> None:
    """Refuse what often has the name of a file of safetensors."""
    try:
        with path.open("rb") as file:
            begin = file.read(24)
    except OSError as error:
        raise InputError(f"cannot read {path}: {describe(error)}") from None
    if begin.startswith((b"PK\x03\x04", b"\x80\x02")):
        raise InputError(
            f"{path} is pickled, which can run code, and is never opened; {_CONVERT}"
        )
    if begin.startswith(b"version https://git-lfs"):
        raise InputError(
            f"{path} only points to a file of Git LFS; run `git lfs pull` in its folder"
        )


def _view(
    path: Path, name: str, data: np.ndarray, entry: Mapping[str, Any]
) -> np.ndarray:
    """Return the tensor of an entry of a header as a view of the file's numbers."""
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise InputError(
            f"the tensor {name} in {path} has the type {entry['dtype']}, and only"
            f" {', '.join(_DTYPES)} are read; save the model in one of these types"
        )
    first, last = entry["data_offsets"]
    found = data[first:last].view(dtype).reshape(entry["shape"])
    return found if found.flags.aligned else found.copy()


class Tensors:
    """The tensors of a model, each of which is taken once, as float32."""

    def __init__(self, state: Mapping[str, ArrayLike]) -> None:
        """Hold tensors by name."""
        self._left = dict(state)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a tensor.

        Raises:
            InputError: it is missing, or has another shape.
        """
        found = self.take_optional(name, shape)
        if found is None:
            raise missing_tensor(name)
        return found

    def take_optional(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """Return a tensor, or None if there is none.

        Raises:
            InputError: it has another shape.
        """
        if name not in self._left:
            return None
        found = np.asarray(self._left.pop(name))
        if found.shape != shape:
            raise InputError(
                f"the tensor {name} must have the shape {shape} by the configuration,"
                f" not {found.shape}; give the configuration of this very model"
            )
        return found.astype(np.float32, copy=False)

    def check_empty(self, model: str) -> None:
        """Check that every tensor was taken.

        Args:
            model: the class whose tensors are expected.

        Raises:
            InputError: a tensor is left over.
        """
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise InputError(
                f"no part of the model takes the tensors {', '.join(names[:3])}{more};"
                f" give those of a {model} and no others"
            )


def missing_tensor(name: str) -> InputError:
    """Build the error of a tensor that a model lacks."""
    return InputError(
        f"the model lacks the tensor {name}; give the tensors of the whole model"
    )


def write_folder(
    folder: Path,
    settings: Mapping[str, Any],
    generation: Mapping[str, Any] | None,
    tensors: Mapping[str, np.ndarray],
    dtype: str,
) -> None:
    """Write a model as ``save_pretrained`` does: settings and one file of tensors.

    Tensors are written one after the other, so that no second copy of the model is in
    memory.

    Args:
        folder: created if missing.
        settings: of ``config.json``.
        generation: of ``generation_config.json``, or None for none.
        tensors: by name, of any strides.
        dtype: of the file: ``float32``, ``float16`` or ``bfloat16``.

    Raises:
        InputError: an unknown type, the folder has a model, or cannot be written.
    """
    if dtype not in _NAMES:
        raise InputError(
            f"the type of a file's tensors is one of {', '.join(_NAMES)}, not {dtype!r}"
        )
    for name in (SETTINGS, _WEIGHTS, _INDEX):
        if (folder / name).exists():
            raise InputError(f"{folder} has a {name} already; choose another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    with open_whole(folder / _WEIGHTS) as file:
        _write_tensors(file, tensors, _NAMES[dtype])
    write_whole(folder / SETTINGS, _json(settings))
    if generation is not None:
        write_whole(folder / GENERATION, _json(generation))


def _write_tensors(
    file: BinaryIO, tensors: Mapping[str, np.ndarray], name: str
) -> None:
    dtype, offset = _DTYPES[name], 0
    # Older versions of transformers refuse a file that does not say its framework.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for key, tensor in _sorted(tensors):
        end = offset + tensor.size * dtype.itemsize
        shape = list(tensor.shape)
        header[key] = {"dtype": name, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for _, tensor in _sorted(tensors):
        file.write(np.ascontiguousarray(tensor, dtype).reshape(-1).view(np.uint8).data)


def _sorted(tensors: Mapping[str, np.ndarray]) -> Iterable[tuple[str, np.ndarray]]:
    return sorted(tensors.items())


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
