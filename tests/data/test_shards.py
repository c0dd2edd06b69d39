"""Prepared folders: the same pairs as the text, whole or refused."""

import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import Encoded, Prepared, Sentences, ShardWriter
from jaxformer.data.shards import is_finished, read_manifest
from jaxformer.errors import InputError

FACTS = {"vocabulary": "hash", "counts": {}, "lengths": [[], []]}


def drawn(count, seed=0, largest=60_000):
    generator = np.random.default_rng(seed)
    sides = [
        [
            generator.integers(4, largest, generator.integers(1, 9)).tolist()
            for _ in range(count)
        ]
        for _ in "ab"
    ]
    return Encoded(Sentences.of(sides[0], 0), Sentences.of(sides[1], 1))


def write(directory, pairs, pieces=3, size=60_000, per_shard=7):
    writer = ShardWriter(directory, {"train": "x"}, pairs_per_shard=per_shard)
    for part in np.array_split(np.arange(len(pairs)), pieces):
        writer.add(pairs.take(part), size)
    writer.finish(FACTS)
    writer.close()
    return directory


def reopen(directory, size=60_000):
    return Prepared.open(directory, pad_id=(0, 1), vocabulary_size=size)


def plain(found):
    return [(list(found.source[i]), list(found.target[i])) for i in range(len(found))]


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "prepared", drawn(40))


@settings(deadline=None, max_examples=30)
@given(
    count=st.integers(1, 40),
    per_shard=st.integers(1, 50),
    size=st.sampled_from([60_000, 70_000]),
    data=st.data(),
)
def test_pairs_come_back_from_any_shards(
    tmp_path_factory, count, per_shard, size, data
):
    """In any order, twice if asked twice, none if asked for none; told apart as the
    same pairs in memory are.
    """
    pairs = drawn(count, seed=count, largest=size)
    store = reopen(
        write(
            tmp_path_factory.mktemp("p") / "d", pairs, size=size, per_shard=per_shard
        ),
        size,
    )
    assert len(store) == count
    assert store.hash == pairs.hash
    assert store.source_lengths.tolist() == pairs.source_lengths.tolist()
    assert store.target_lengths.tolist() == pairs.target_lengths.tolist()
    chosen = np.array(
        data.draw(st.lists(st.integers(0, count - 1), max_size=12)), np.int32
    )
    taken = store.take(chosen)
    assert plain(taken) == plain(pairs.take(chosen))
    assert (taken.source.pad_id, taken.target.pad_id) == (0, 1)


def test_a_lower_limit_leaves_out_longer_pairs(folder):
    """As if the text had been read with that limit, and told apart from the whole."""
    pairs, store = drawn(40), reopen(folder)
    limited = store.limited(5)
    kept = np.flatnonzero((pairs.source_lengths <= 5) & (pairs.target_lengths <= 5))
    assert 0 < len(limited) == len(kept) < 40
    assert plain(limited.take(np.arange(len(limited)))) == plain(pairs.take(kept))
    assert limited.hash != store.hash
    assert store.limited(100) is store


def test_a_border_between_the_sides_of_a_pair_cannot_move(folder):
    """An index with the same sums and another border, or with two pairs exchanged, is
    refused when it is opened.

    Folders of earlier versions, whose manifest has no hash of the index, are still
    read.
    """
    lengths = np.load(folder / "lengths.npy")
    moved, exchanged = lengths.copy(), lengths.copy()
    moved[3] += (1, -1)
    exchanged[[0, 1]] = lengths[[1, 0]]
    for changed in (moved, exchanged):
        np.save(folder / "lengths.npy", changed)
        with pytest.raises(
            InputError,
            match=(
                r"lengths.npy has changed since it was written: put it back, or remove"
            ),
        ):
            reopen(folder)
    np.save(folder / "lengths.npy", lengths)
    manifest = read_manifest(folder)
    del manifest["lengths_hash"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert plain(reopen(folder).take(np.arange(40))) == plain(drawn(40))


def test_an_unfinished_folder_is_refused_and_made_anew(tmp_path):
    """What a killed process left is recognised; the same request starts again,
    another is refused.
    """
    writer = ShardWriter(tmp_path / "p", {"train": "x"}, pairs_per_shard=7)
    writer.add(drawn(20), 60_000)
    writer.close()
    with pytest.raises(
        InputError,
        match="was not finished: give the same `jaxformer prepare` command again",
    ):
        reopen(tmp_path / "p")
    with pytest.raises(InputError, match="was begun for something else"):
        ShardWriter(tmp_path / "p", {"train": "y"})
    pairs = drawn(9, seed=3)
    write(tmp_path / "p", pairs)
    assert plain(reopen(tmp_path / "p").take(np.arange(9))) == plain(pairs)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "00000.records", "00001.records", "lengths.npy", "manifest.json"
    ]  # fmt: skip


def test_a_folder_is_finished_for_one_request(folder, tmp_path):
    assert is_finished(folder, {"train": "x"})
    assert not is_finished(tmp_path / "missing", {"train": "x"})
    with pytest.raises(InputError, match="was prepared with train='x', not 'y'"):
        is_finished(folder, {"train": "y"})
    with pytest.raises(InputError, match="choose another folder"):
        ShardWriter(folder, {"train": "x"})


def test_two_processes_do_not_write_one_folder(tmp_path):
    """The second is refused, and the first goes on."""
    writer = ShardWriter(tmp_path / "p", {})
    with pytest.raises(InputError, match="another process prepares"):
        ShardWriter(tmp_path / "p", {})
    writer.add(drawn(5), 60_000)
    writer.finish(FACTS)
    writer.close()
    assert len(reopen(tmp_path / "p")) == 5


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file: choose another --output"):
        ShardWriter(tmp_path / "file", {})
    with pytest.raises(InputError, match="is a file, and no prepared folder"):
        reopen(tmp_path / "file")


def test_a_folder_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="holds other files: choose an empty --output"):
        ShardWriter(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def missing_shard(folder):
    (folder / "00002.records").unlink()


def cut_shard(folder):
    os.truncate(folder / "00001.records", 100)


def missing_index(folder):
    (folder / "lengths.npy").unlink()


def damaged_index(folder):
    (folder / "lengths.npy").write_bytes(b"\x93NUMPY")


def index_of_another(folder):
    np.save(folder / "lengths.npy", np.zeros((3, 2), np.int32))


def no_manifest(folder):
    (folder / "manifest.json").unlink()


def damaged_manifest(folder):
    (folder / "manifest.json").write_text("{")


def edited(**changes):
    def damage(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))

    return damage


def deep_manifest(folder):
    (folder / "manifest.json").write_text("[" * 100_000)


def later_format(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            missing_shard,
            (
                r"00002\.records is missing: put it back, or remove .*prepared and"
                r" prepare it again"
            ),
        ),
        (cut_shard, r"00001\.records has 100 bytes, and [\d,]+ when it was written"),
        (missing_index, r"lengths\.npy is missing"),
        (damaged_index, r"lengths\.npy is damaged"),
        (index_of_another, r"lengths\.npy is of another folder"),
        (no_manifest, r"is no prepared folder .*make one by jaxformer prepare"),
        (damaged_manifest, r"manifest\.json is damaged"),
        (later_format, "has another format than 1"),
        (
            deep_manifest,
            r"manifest\.json is damaged \(its brackets are nested too deep\)",
        ),
        (edited(pairs="3"), r"manifest\.json is damaged \('pairs' is no int\)"),
        (
            edited(vocabulary=None),
            r"manifest\.json is damaged \('vocabulary' is no str\)",
        ),
        (edited(request=[]), r"manifest\.json is damaged \('request' is no dict\)"),
        (
            edited(request={"files": 3}),
            r"manifest\.json is damaged \('request' is incomplete\)",
        ),
        (edited(shards=[{}]), r"manifest\.json is damaged \('shards' is incomplete\)"),
        (
            edited(shards=[{"file": "../a", "pairs": 1, "bytes": 1}]),
            r"manifest\.json is damaged \('shards' is incom",
        ),
        (
            edited(counts={"a": {"read": "x"}}),
            r"manifest\.json is damaged \('counts' is incomplete\)",
        ),
        (
            edited(lengths=[[1], [10**30]]),
            r"manifest\.json is damaged \('lengths' is incomplete\)",
        ),
    ],
)
def test_damage_is_named(folder, damage, message):
    damage(folder)
    with pytest.raises(InputError, match=message) as caught:
        reopen(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_shards_that_do_not_fit_the_index_are_noticed(folder):
    """A file of the same size and another content, also where an earlier version
    recorded no hash of the index.
    """
    manifest = read_manifest(folder)
    del manifest["lengths_hash"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lengths = np.load(folder / "lengths.npy")
    np.save(folder / "lengths.npy", lengths + np.int32(1))
    with pytest.raises(InputError, match="do not fit their index"):
        reopen(folder).take(np.arange(5))
    np.save(folder / "lengths.npy", lengths)
    shard = folder / "00000.records"
    shard.write_bytes(b"\x00" * manifest["shards"][0]["bytes"])
    with pytest.raises(
        InputError,
        match=r"00000\.records is damaged .*: remove .* and prepare it again",
    ):
        reopen(folder).take(np.arange(5))


def test_a_folder_can_be_moved(folder, tmp_path):
    shutil.move(folder, tmp_path / "elsewhere")
    assert plain(reopen(tmp_path / "elsewhere").take(np.arange(40))) == plain(drawn(40))
