"""Every kind of data has the exact order, position and hash of pairs."""

import itertools
from collections import Counter

import numpy as np
import pytest
from kinds import config_of_kind, shared_data

from jaxformer.data import encoding
from jaxformer.data.corpus import TrainingText
from jaxformer.data.pipeline import Position
from jaxformer.data.prepared import Manifest
from jaxformer.data.preparing import prepare
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.data.vocabulary_labels import LabelVocabulary
from jaxformer.errors import InputError

CASES = [
    ("text", {}),
    ("text", {"window": 20}),
    ("text", {"packing": True, "packed_length": 48}),
    ("masked", {}),
    ("masked", {"packing": True, "packed_length": 48, "shape_multiple": 8}),
    ("labelled", {"shape_multiple": 8}),
    ("scored", {}),
    ("tagged", {"shape_multiple": 8}),
    ("tagged", {"packing": True, "packed_length": 48}),
    ("spans", {"shape_multiple": 8, "stride": 5}),
]
# Their second texts are drawn anew for each epoch.
DRAWN = [*CASES, ("documents", {})]


@pytest.fixture(scope="module")
def names():
    return shared_data()


@pytest.fixture(scope="module")
def found(names, tmp_path_factory):
    """The vocabularies of each kind, trained once."""
    made = {}
    for kind, name in names.items():
        folder = tmp_path_factory.mktemp(kind)
        made[kind] = TrainingText.open(config_of_kind(kind, name)).vocabularies(folder)
        assert Vocabularies.load(folder).hash == made[kind].hash
    return made


def load_kind(names, found, kind, options, seed=1):
    config = config_of_kind(kind, names[kind], **options)
    return TrainingText.open(config).load(found[kind], seed=seed)


def epoch_of(data, epoch, **hosts):
    """Return the batches of an epoch."""
    batches = data.batches(Position(epoch, 0), **hosts)
    found = [
        batch
        for batch, after in itertools.takewhile(
            lambda pair: pair[1].epoch == epoch, batches
        )
    ]
    batches.close()
    following = data.batches(Position(epoch, len(found)), **hosts)
    found.append(next(following)[0])
    following.close()
    return found


def tokens_in(batches, pad_id):
    """Count the texts of batches, or the tokens of windows, without padding."""
    side = "source" if "source" in batches[0] else "target"
    rows = [row for batch in batches for row in batch[side]]
    return Counter(int(token) for row in rows for token in row if token != pad_id)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_every_epoch_holds_everything_once(names, found, kind, options):
    """In another order each; the statistics are those of an epoch."""
    data = load_kind(names, found, kind, options)
    pad_id = found[kind].source.pad_id
    side = data.store.sides.get("source", data.store.target)
    rows = side.take(np.arange(len(side)))
    expected = Counter(rows.tokens.tolist())
    epochs = [epoch_of(data, epoch) for epoch in range(2)]
    for batches in epochs:
        assert tokens_in(batches, pad_id) == expected
        assert len({tuple(batch["target"].shape) for batch in batches}) <= 3
    first, second = ([batch["target"].tolist() for batch in each] for each in epochs)
    assert first != second
    facts = data.statistics
    assert facts.batches == len(epochs[0])
    one_sided = kind in ("text", "masked")
    assert facts.source_tokens == (0 if one_sided else len(rows.tokens))
    slots = sum(
        side.size
        for batch in epochs[0]
        for name, side in batch.items()
        if "segments" not in name
    )
    real = facts.source_tokens + facts.target_tokens
    assert facts.padding == pytest.approx(1 - real / slots)


@pytest.mark.parametrize(("kind", "options"), DRAWN)
def test_resuming_and_hosts(names, found, kind, options):
    """From every position the same batches come, in data that are loaded again; the
    rows of three hosts are those of one.
    """
    data, again = (load_kind(names, found, kind, options) for _ in range(2))
    assert data.hash == again.hash
    stream = [*itertools.islice(data.batches(), 30)]
    for number, (_, position) in enumerate(stream[:-2]):
        following = again.batches(position)
        batch, after = next(following)
        following.close()
        assert after == stream[number + 1][1]
        same(batch, stream[number + 1][0])
    hosts = [epoch_of(data, 1, host=host, hosts=3) for host in range(3)]
    for whole, *parts in zip(epoch_of(data, 1), *hosts, strict=True):
        for name in whole:
            rows = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(rows[: len(whole[name])], whole[name])


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def test_worker_processes_change_nothing(monkeypatch, names, found):
    """Labels, frame and settings reach them."""
    plain = load_kind(names, found, "tagged", {})
    monkeypatch.setattr(encoding, "CHUNK", 40)
    monkeypatch.setattr(encoding, "_FEWEST_CHUNKS", 2)
    assert load_kind(names, found, "tagged", {"workers": 2}).hash == plain.hash


def test_shapes_of_labels(names, found):
    """Labels are not rounded up; tags have the shape of their text."""
    for kind, length in (
        ("labelled", 1),
        ("scored", 1),
        ("spans", 2),
        ("tagged", None),
    ):
        data = load_kind(names, found, kind, {"shape_multiple": 8})
        batch, _ = next(data.batches())
        rows, longest = batch["source"].shape
        assert longest % 8 == 0
        assert batch["target"].shape == (rows, length or longest)


@pytest.mark.parametrize(("kind", "options"), DRAWN)
def test_prepared_equals_text(names, found, tmp_path, kind, options):
    """The same batches and hash; texts of one side have one file of tokens."""
    given = tmp_path / "given"
    found[kind].save(given)
    config = config_of_kind(kind, names[kind], **options)
    prepare(config, tmp_path / "p", vocabulary=given)
    one_sided = kind in ("text", "masked", "documents")
    assert (tmp_path / "p" / "source.bin").exists() == (not one_sided)
    name = f"prepared:{tmp_path}/p"
    text = TrainingText.open(config_of_kind(kind, name, **options))
    vocabularies = text.vocabularies(tmp_path / "unused")
    assert vocabularies.hash == found[kind].hash
    data, plain = (
        text.load(vocabularies, seed=1),
        load_kind(names, found, kind, options),
    )
    assert data.hash == plain.hash
    for (first, _), (second, _) in itertools.islice(
        zip(data.batches(), plain.batches(), strict=False), 12
    ):
        same(first, second)
    manifest = Manifest.load(tmp_path / "p")
    other = config_of_kind("masked" if kind == "text" else "text", name)
    with pytest.raises(InputError, match="was prepared with other values"):
        manifest.check_request(other)


def test_a_prepared_folder_with_the_vocabulary_of_another_run(names, found, tmp_path):
    """That of a masked language model serves text with labels, and stays as it is."""
    folder = tmp_path / "vocabulary"
    found["masked"].save(folder)
    before = {path.name for path in folder.iterdir()}
    config = config_of_kind("labelled", names["labelled"])
    prepare(config, tmp_path / "p", vocabulary=folder)
    assert {path.name for path in folder.iterdir()} == before
    made = Manifest.load(tmp_path / "p").read_vocabularies()
    assert made.text_hash == found["masked"].hash
    assert made.labels.labels == ("0", "1", "2")


def test_labels_of_another_run(names, found, tmp_path):
    """Those that are there stay, unless others are given or they are of another
    kind.
    """
    text = found["masked"].source
    kept = LabelVocabulary.from_labels(["2", "1", "0"])
    Vocabularies(text, kept, found["masked"].template).save(tmp_path)
    for kind, options, labels in (
        ("labelled", {}, ("2", "1", "0")),
        ("labelled", {"labels": "1,0,2"}, ("1", "0", "2")),
        ("scored", {}, ()),
    ):
        opened = TrainingText.open(config_of_kind(kind, names[kind], **options))
        assert opened.vocabularies(tmp_path).labels.labels == labels
