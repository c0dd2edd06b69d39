"""A prepared folder is opened whole or refused in one line."""

import json
import os

import numpy as np
import pytest

from jaxformer.data import Encoded, Sentences, Vocabularies, Vocabulary
from jaxformer.data.cleaning import Counts
from jaxformer.data.download import digest
from jaxformer.data.prepared import Manifest, open_pairs
from jaxformer.data.store import LENGTHS, TOKENS, TokenWriter
from jaxformer.errors import InputError

SHARED = Vocabulary.train(["a b c"], 8)
VOCABULARIES = Vocabularies(SHARED, SHARED)


def draw_pairs(count):
    draw = np.random.default_rng(0).integers
    sides = [[draw(4, 8, n).tolist() for n in draw(1, 9, count)] for _ in range(2)]
    return Encoded(*(Sentences.from_lists(side, 0) for side in sides))


@pytest.fixture
def folder(tmp_path):
    pairs, form = draw_pairs(40), (VOCABULARIES.pad_ids, VOCABULARIES.token_dtype)
    with TokenWriter(*form, tmp_path) as writer:
        for part in np.array_split(np.arange(40), 3):
            writer.add(pairs.take(part))
        found = writer.finish()
    files = {name: digest(tmp_path / name) for name in (*TOKENS, LENGTHS)}
    counts, lengths = {"x": Counts(3)}, ([1], [2])
    Manifest({"max_length": 60}, "v", counts, lengths, found.hash, files).save(tmp_path)
    return tmp_path


def reopen(directory):
    return open_pairs(directory, Manifest.load(directory), VOCABULARIES)


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


def test_pairs_are_unchanged_where_the_folder_is_moved(folder):
    """The hash is that of the same pairs in memory."""
    moved = folder.rename(folder.with_name("elsewhere"))
    found = reopen(moved)
    assert plain(found) == plain(draw_pairs(40))
    assert found.hash == draw_pairs(40).hash
    assert Manifest.load(moved).counts == {"x": Counts(3)}
    names = sorted(path.name for path in moved.iterdir())
    assert names == ["lengths.npy", "manifest.json", "source.bin", "target.bin"]


def edit(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "target.bin").unlink(),
            r"target\.bin is missing: put it",
        ),
        (
            lambda folder: os.truncate(folder / "source.bin", 10),
            r"source\.bin is damaged",
        ),
        (lambda folder: flip(folder / "target.bin"), r"target\.bin is damaged"),
        (lambda folder: flip(folder / "lengths.npy"), r"lengths\.npy is damaged"),
        (
            lambda folder: (folder / "manifest.json").unlink(),
            "is not a prepared folder .*:",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("{"),
            r"manifest\.json is damaged .*: remove .* and prepare it again",
        ),
        (
            lambda folder: (folder / "manifest.json").write_text("[]"),
            "was prepared by another version",
        ),
        (
            lambda folder: edit(folder, counts={}),
            r"manifest\.json is damaged \(its hash differs\)",
        ),
        (
            lambda folder: edit(folder, format=1),
            "prepared by another version, in a format",
        ),
    ],
)
def test_damage_is_named(folder, change, message):
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        reopen(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_file_is_not_a_prepared_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file, not a prepared folder"):
        reopen(tmp_path / "file")
