"""Files of a folder of Hugging Face: shards, and files that are damaged or hostile."""

import json
import pickle
import re
import struct
from pathlib import Path

import jax
import numpy as np
import pytest
from interop.folders import make_folder
from safetensors.numpy import load_file, save_file

from jaxformer import InputError
from jaxformer.interop import huggingface


def shard(folder, parts=3, **places):
    """Distribute the tensors of a folder; ``places`` puts some elsewhere."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {}
    for number in range(parts):
        file = f"model-{number + 1:05}-of-{parts:05}.safetensors"
        part = {name: tensors[name] for name in names[number::parts]}
        save_file(part, folder / file, {"format": "pt"})
        files |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": files | places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def test_shards_are_read_as_one_file(tmp_path):
    expected = huggingface.read(make_folder(tmp_path, "bart"))
    params = jax.tree.map(np.array, expected.params)  # of the file that goes
    shard(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")  # passed over
    found = huggingface.read(tmp_path)
    assert found.config == expected.config
    jax.tree.map(np.testing.assert_array_equal, found.params, params)


def test_a_single_file_comes_before_shards(tmp_path):
    """As in transformers."""
    expected = huggingface.read(make_folder(tmp_path, "bart"))
    whole = (tmp_path / "model.safetensors").read_bytes()
    shard(tmp_path)
    other = tmp_path / "model-00001-of-00003.safetensors"
    save_file({name: x + 1 for name, x in load_file(other).items()}, other)
    (tmp_path / "model.safetensors").write_bytes(whole)
    found = huggingface.read(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)


def pack(header, body=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


DAMAGED = {
    "empty": (b"", "is no file of safetensors"),
    "cut in the numbers": (pack({"a": entry()}, b"12"), "fetch it again"),
    "quantised": (
        pack({"a": entry("I8", (4,))}, b"1234"),
        "the tensor a in {} has the type I8, and only F32, F16, BF16 are read",
    ),
    "pickle": (pickle.dumps({}, 2), "is pickled, which can run code, and is never"),
    "archive of torch": (b"PK\x03\x04" + bytes(50), "is pickled, which can run code"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "run `git lfs pull`"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_tensors(name, tmp_path):
    content, line = DAMAGED[name]
    path = make_folder(tmp_path, "bart") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(line.format(path))) as caught:
        huggingface.read(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("places", "line"),
    [
        ({"a": "missing.safetensors"}, "missing.safetensors: No such file"),
        (
            {"a": "model-00001-of-00003.safetensors"},
            "model-00001-of-00003.safetensors lacks the tensor a, which",
        ),
        (
            {"model.shared.weight": "model-00002-of-00003.safetensors"},
            "model-00002-of-00003.safetensors lacks the tensor model.shared.weight",
        ),
    ],
)
def test_an_index_that_does_not_fit(places, line, tmp_path):
    """A file or a tensor that it names and that is not there is named."""
    files = shard(make_folder(tmp_path, "bart"), **places)
    assert files["model.shared.weight"] == "model-00001-of-00003.safetensors"
    with pytest.raises(InputError, match=re.escape(line)):
        huggingface.read(tmp_path)


def test_a_folder_that_has_no_model(tmp_path):
    """Each line says what is missing and where it comes from."""

    def refusal(folder):
        with pytest.raises(InputError) as caught:
            huggingface.read(folder)
        return str(caught.value)

    assert "is no folder: name that of a downloaded model" in refusal(tmp_path / "no")
    hub = Path("Helsinki-NLP/opus-mt-en-de")
    assert "hf download Helsinki-NLP/opus-mt-en-de --local-dir=" in refusal(hub)
    assert "has no config.json: name the folder that" in refusal(tmp_path)
    config = tmp_path / "config.json"
    config.write_text('{"model": {}, "data": {}, "training": {}}')
    assert f"is the directory of a run: use it by --workdir={tmp_path}" in refusal(
        tmp_path
    )
    config.write_text("{")
    assert "config.json is no JSON (Expecting" in refusal(tmp_path)
    config.write_text("[]")
    assert "config.json must hold an object of JSON" in refusal(tmp_path)
    (make_folder(tmp_path, "bart") / "model.safetensors").unlink()
    assert "has no model.safetensors: fetch it" in refusal(tmp_path)
    for pickled in ("tf_model.h5", "flax_model.msgpack", "pytorch_model.bin"):
        (tmp_path / pickled).touch()
        line = refusal(tmp_path)
        assert "save_pretrained(FOLDER)" in line
        assert "that can run code or" in line
    assert "only as flax_model.msgpack" in refusal(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "index.json has no weight_map" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "adapter_config.json",
            "is adapters of PEFT without their model: merge them by",
        ),
        ("m.gguf", "is a model in GGUF: import the model that was quantised"),
        (
            "model.bin",
            "is a model of CTranslate2: import the one that it was made from",
        ),
    ],
)
@pytest.mark.parametrize("settings", [None, "{}"])
def test_a_folder_of_another_library(tmp_path, name, line, settings):
    (tmp_path / name).touch()
    if settings is not None:
        (tmp_path / "config.json").write_text(settings)
    with pytest.raises(InputError, match=line):
        huggingface.read(tmp_path)
    file = "import the model that" if name == "m.gguf" else f"is in: {tmp_path}"
    with pytest.raises(InputError, match=file):
        huggingface.read(tmp_path / name)
