"""A prepared folder is opened whole or refused in one line."""

import json
import os
import shutil

import numpy as np
import pytest

from jaxformer.data import Encoded, Sentences, Vocabularies, Vocabulary
from jaxformer.data.cleaning import Counts
from jaxformer.data.download import digest
from jaxformer.data.prepared import Manifest, open_pairs
from jaxformer.data.preparing import new_folder
from jaxformer.data.store import LENGTHS, TOKENS, TokenWriter
from jaxformer.errors import InputError

SHARED = Vocabulary.train(["a b c"], 8)
VOCABULARIES = Vocabularies(SHARED, SHARED)


def drawn(count, seed=0):
    generator = np.random.default_rng(seed)
    sides = [
        [generator.integers(4, 8, n).tolist() for n in generator.integers(1, 9, count)]
        for _ in range(2)
    ]
    return Encoded(*(Sentences.from_lists(side, 0) for side in sides))


def write(directory, pairs):
    with new_folder(directory) as folder:
        with TokenWriter(
            VOCABULARIES.pad_ids, VOCABULARIES.token_dtype, folder
        ) as writer:
            for part in np.array_split(np.arange(len(pairs)), 3):
                writer.add(pairs.take(part))
            found = writer.finish()
        files = {name: digest(folder / name) for name in (*TOKENS, LENGTHS)}
        Manifest(
            {"max_length": 60}, "v", {"x": Counts(3)}, ([1], [2]), found.hash, files
        ).save(folder)
    return directory


def reopen(directory):
    return open_pairs(directory, Manifest.load(directory), VOCABULARIES)


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "prepared", drawn(40))


def test_pairs_are_unchanged_where_the_folder_is_moved(folder, tmp_path):
    """The hash is that of the same pairs in memory."""
    shutil.move(folder, tmp_path / "elsewhere")
    found = reopen(tmp_path / "elsewhere")
    assert plain(found) == plain(drawn(40))
    assert found.hash == drawn(40).hash
    assert Manifest.load(tmp_path / "elsewhere").counts == {"x": Counts(3)}
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == [
        "lengths.npy", "manifest.json", "source.bin", "target.bin"
    ]  # fmt: skip


def edit(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def earlier(folder):
    """Make it what an earlier version wrote."""
    edit(folder, format=1, shards=[{"file": "00000.records", "pairs": 1, "bytes": 1}])


DAMAGE = {
    "missing": (
        lambda folder: (folder / "target.bin").unlink(),
        r"target\.bin is missing: put it back, or remove .* and prepare it again",
    ),
    "cut": (
        lambda folder: os.truncate(folder / "source.bin", 10),
        r"source\.bin is damaged",
    ),
    "bit": (lambda folder: flip(folder / "target.bin"), r"target\.bin is damaged"),
    "border": (lambda folder: flip(folder / "lengths.npy"), r"lengths\.npy is damaged"),
    "no manifest": (
        lambda folder: (folder / "manifest.json").unlink(),
        r"is not a prepared folder .*: make one with jaxformer prepare",
    ),
    "no JSON": (
        lambda folder: (folder / "manifest.json").write_text("{"),
        r"manifest\.json is damaged",
    ),
    "deep": (
        lambda folder: (folder / "manifest.json").write_text("[" * 100_000),
        r"manifest\.json is damaged \(its brackets are nested too deep\)",
    ),
    "list": (
        lambda folder: (folder / "manifest.json").write_text("[]"),
        "was prepared by another version",
    ),
    "edited": (
        lambda folder: edit(folder, counts={}),
        r"manifest\.json is damaged \(its hash differs\)",
    ),
    "earlier": (
        earlier,
        "was prepared by another version, in a format that this one does not read:"
        " remove .* and prepare it again",
    ),
    "later": (lambda folder: edit(folder, format=3), "prepared by another version"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named(folder, damage):
    change, message = DAMAGE[damage]
    change(folder)
    with pytest.raises(InputError, match=message) as caught:
        reopen(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_file_is_not_a_prepared_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file, not a prepared folder"):
        reopen(tmp_path / "file")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    """A failed block leaves nothing; what a killed process left is removed."""

    def fail(directory):
        with new_folder(directory) as folder:
            (folder / "source.bin").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail(tmp_path / "p")
    assert not (tmp_path / "p").exists()
    (tmp_path / "p" / ".unfinished").mkdir(parents=True)
    (tmp_path / "p" / ".unfinished" / "source.bin").write_text("half")
    assert plain(reopen(write(tmp_path / "p", drawn(9)))) == plain(drawn(9))
    assert len(list((tmp_path / "p").iterdir())) == 4


def test_two_processes_do_not_write_one_folder(tmp_path):
    """The second is refused, and the first continues."""
    with new_folder(tmp_path / "p") as folder:
        with (
            pytest.raises(InputError, match="another process prepares"),
            new_folder(tmp_path / "p"),
        ):
            pass
        (folder / "x").write_text("x")
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["x"]


def test_a_folder_of_other_files_is_left_as_it_is(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with (
        pytest.raises(InputError, match="holds other files: choose an empty --output"),
        new_folder(tmp_path),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
