"""What ``data.train`` names becomes training data: text or prepared folders, mixed,
cleaned, tagged.
"""

import dataclasses
import itertools
import time

import numpy as np
import pytest

from jaxformer.data import (
    Cleaning,
    DataConfig,
    TrainingText,
    Vocabularies,
    corpus,
    encoding,
    load,
    load_evaluation,
    prepare,
)
from jaxformer.errors import InputError

BASE = {
    "train": "bundled:en-de/valid",
    "vocabulary_size": 600,
    "max_length": 60,
    "tokens_per_batch": 700,
    "num_buckets": 4,
    "workers": 1,
}


def config_of(**options):
    return DataConfig(**{**BASE, **options})


def training_of(tmp_path, *, seed=3, **options):
    text = TrainingText.open(config_of(**options))
    return text.load(text.vocabularies(tmp_path / "vocabulary"), seed=seed)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus") / "prepared"
    prepare(config_of(), folder)
    return folder


def first_batches(data, count=30):
    return [batch for batch, _ in itertools.islice(data.batches(), count)]


def same(one, other):
    return len(one) == len(other) and all(
        first.keys() == second.keys()
        and all(np.array_equal(first[name], second[name]) for name in first)
        for first, second in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packing": True},
        {
            "drop_duplicates": True,
            "max_length_ratio": 1.5,
            "vocabulary_model": "unigram",
            "source_eos": False,
        },
        {"shared_vocabulary": False, "language_tags": True},
    ],
)
def test_prepared_equals_text(tmp_path, options):
    """The same batches in the same order, and the same identity."""
    straight = training_of(tmp_path, **options)
    done = prepare(config_of(**options), tmp_path / "prepared")
    prepared = training_of(
        tmp_path, **{**options, "train": f"prepared:{tmp_path}/prepared"}
    )
    assert same(first_batches(straight), first_batches(prepared))
    assert straight.hash == prepared.hash
    assert straight.statistics == prepared.statistics
    assert (
        done.counts
        == dict(straight.counts)
        == {"bundled:en-de/valid": next(iter(prepared.counts.values()))}
    )
    assert done.lengths[0].sum() == done.lengths[1].sum() >= straight.statistics.pairs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 61}, "with data.max_length=60 and lacks longer pairs"),
        (
            {"source_eos": False},
            "with other values: set --config.data.source_eos=True, or",
        ),
        ({"drop_duplicates": True}, "set --config.data.drop_duplicates=False, or"),
        ({"vocabulary_model": "unigram"}, "set --config.data.vocabulary_model=bpe, or"),
        (
            {"source_language": "de", "target_language": "en"},
            (
                "set --config.data.source_language=en"
                " --config.data.target_language=de, or"
            ),
        ),
        ({"language_tags": True}, "set --config.data.language_tags=False, or"),
        ({"segmentation_alpha": 0.1}, "a prepared folder has no text"),
        ({"vocabulary_size": 500}, "set --config.data.vocabulary_size=600, or"),
        ({"shared_vocabulary": False}, "set --config.data.shared_vocabulary=True, or"),
    ],
)
def test_a_folder_prepared_for_something_else_is_refused(
    tmp_path, prepared, options, message
):
    with pytest.raises(InputError, match=message) as caught:
        training_of(tmp_path, train=f"prepared:{prepared}", **options)
    assert "\n" not in str(caught.value)


def test_a_run_keeps_its_vocabulary(tmp_path, prepared):
    """A prepared folder of another vocabulary than the run's is refused."""
    other = TrainingText.open(config_of(vocabulary_model="unigram")).vocabularies(
        tmp_path / "other"
    )
    text = TrainingText.open(config_of(train=f"prepared:{prepared}"))
    with pytest.raises(
        InputError, match=r"was encoded with another vocabulary .*prepare it again"
    ):
        text.load(other, seed=0)


def test_a_lower_limit_of_tokens_is_that_of_the_text(prepared):
    """Longer pairs are dropped and counted at the start, from the same folder."""
    vocabularies = Vocabularies.load(prepared / "vocabulary")
    straight, mapped = (
        TrainingText.open(config_of(max_length=20, train=train)).load(
            vocabularies, seed=3
        )
        for train in (BASE["train"], f"prepared:{prepared}")
    )
    assert same(first_batches(straight), first_batches(mapped))
    assert straight.hash == mapped.hash
    (one,), (other,) = straight.counts.values(), mapped.counts.values()
    assert one == other
    assert one.dropped["max_length"] > 0


def test_text_and_prepared_folders_do_not_mix(tmp_path):
    with pytest.raises(InputError, match="mixes text with prepared folders"):
        TrainingText.open(config_of(train=f"bundled:en-de/valid + prepared:{tmp_path}"))


def test_a_mixture_of_text(tmp_path):
    """Each part is counted, weighed and named in the log's own terms."""
    data = training_of(
        tmp_path,
        train="bundled:en-de/valid + 3 * bundled:en-de/test [de>en]",
        language_tags=True,
    )
    assert [
        (share.name, share.stop - share.start, share.weight) for share in data.shares
    ] == [("bundled:en-de/valid", 500, 1.0), ("bundled:en-de/test", 500, 3.0)]
    assert {name: counts.read for name, counts in data.counts.items()} == {
        "bundled:en-de/valid": 500,
        "bundled:en-de/test": 500,
    }
    assert data.statistics.pairs == 2000


def test_temperature_repeats_the_smaller(tmp_path):
    pairs = list(load("bundled:en-de/test", "en", "de"))[:100]
    for side, name in enumerate(("s", "t")):
        (tmp_path / name).write_text(
            "".join(pair[side] + "\n" for pair in pairs), "utf-8"
        )
    mixture = f"bundled:en-de/valid + text:{tmp_path}/s,{tmp_path}/t"
    data = training_of(tmp_path, train=mixture, temperature=2.0)
    assert [share.weight for share in data.shares] == [1.0, pytest.approx(5**0.5)]
    with pytest.raises(InputError, match="both set how often pairs occur"):
        training_of(
            tmp_path, train=f"{mixture} + 2 * bundled:en-de/test", temperature=2.0
        )


def test_tags_ask_for_the_language_of_each_part(tmp_path):
    """Each source begins with the tag of its own target language (Johnson et al.
    2017, section 3).
    """
    text = TrainingText.open(
        config_of(
            train="bundled:en-de/valid + bundled:en-de/test [de>en]", language_tags=True
        )
    )
    vocabularies = text.vocabularies(tmp_path / "vocabulary")
    data = text.load(vocabularies, seed=0)
    vocabulary = vocabularies.source
    first = {
        int(data.store.take(np.array([i])).source.tokens[0])
        for i in range(data.shares[0].stop)
    }
    second = {
        int(data.store.take(np.array([i])).source.tokens[0])
        for i in range(data.shares[1].start, data.shares[1].stop)
    }
    assert first == {vocabulary.tag_id("de")}
    assert second == {vocabulary.tag_id("en")}
    assert first != second
    plain = TrainingText.open(config_of()).vocabularies(tmp_path / "plain")
    with pytest.raises(InputError, match="no tag <2de>"):
        TrainingText.open(config_of(language_tags=True)).load(plain, seed=0)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_each_epoch_has_its_own_segmentation(tmp_path, model):
    """Each pair once an epoch in other pieces; loaded again and resumed in the second
    epoch, the data are the same.
    """
    options = {"segmentation_alpha": 0.3, "vocabulary_model": model}
    data, again = (training_of(tmp_path, **options) for _ in range(2))
    vocabulary = (
        TrainingText.open(config_of(**options))
        .vocabularies(tmp_path / "vocabulary")
        .target
    )
    straight = list(itertools.islice(data.batches(), len(data.plan(0)) + 8))
    position = straight[len(data.plan(0)) + 2][1]
    assert position.epoch == 1
    resumed = [batch for batch, _ in itertools.islice(again.batches(position), 5)]
    assert same([batch for batch, _ in straight[-5:]], resumed)
    epochs = []
    for epoch in (0, 1):
        plan = data.plan(epoch)
        rows = [
            row
            for number in range(len(plan))
            for row in plan.batch(number, 0, 1)["target"]
        ]
        epochs.append(
            sorted(
                vocabulary.decode(row) for row in rows if row[0] != vocabulary.pad_id
            )
        )
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == data.statistics.pairs
    first, second = (data.plan(epoch).store.take(np.arange(200)) for epoch in (0, 1))
    assert first.hash != second.hash


def test_text_that_changes_while_it_is_read_again_is_noticed(tmp_path):
    """Each epoch of another segmentation reads the same pairs, or training stops."""
    pairs = list(load("bundled:en-de/test", "en", "de"))
    for side, name in enumerate(("s", "t")):
        (tmp_path / name).write_text(
            "".join(pair[side] + "\n" for pair in pairs), "utf-8"
        )
    data = training_of(
        tmp_path, train=f"text:{tmp_path}/s,{tmp_path}/t", segmentation_alpha=0.2
    )
    assert len(data.plan(1).pairs) == 500
    for name in ("s", "t"):
        lines = (tmp_path / name).read_text("utf-8").splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:-5]), "utf-8")
    with pytest.raises(
        InputError,
        match=(
            r"the text of data\.train has changed since training began .* of 495 pairs"
        ),
    ):
        data.plan(2)


def test_another_text_of_the_same_counts_has_another_identity(tmp_path):
    """Also where each epoch draws its own segmentation: the best one tells texts
    apart.
    """
    pairs = list(load("bundled:en-de/test", "en", "de"))
    hashes = []
    for chosen in (pairs, [*pairs[1:], pairs[0]], pairs):
        for side, name in enumerate(("s", "t")):
            (tmp_path / name).write_text(
                "".join(pair[side] + "\n" for pair in chosen), "utf-8"
            )
        data = training_of(
            tmp_path, train=f"text:{tmp_path}/s,{tmp_path}/t", segmentation_alpha=0.2
        )
        hashes.append(data.hash)
    assert hashes[0] == hashes[2] != hashes[1]
    assert (
        training_of(tmp_path, train=f"text:{tmp_path}/s,{tmp_path}/t").hash == hashes[0]
    )


def test_an_epoch_that_nobody_waits_for_is_not_read_to_its_end(tmp_path):
    """The stream closes although the next epoch's text is being read."""
    asked = []
    data = training_of(tmp_path, segmentation_alpha=0.2)
    store = data.store

    def endless(epoch, unwanted):
        while epoch and not unwanted():
            asked.append(epoch)
            time.sleep(0.001)
        return store

    stream = dataclasses.replace(data, resample=endless).batches()
    next(stream)
    stream.close()
    assert asked


def test_a_mixture_is_the_same_text_and_prepared(tmp_path):
    """Several parts in one folder: the same batches and the same identity."""
    mixture = "bundled:en-de/valid + bundled:en-de/test"
    straight = training_of(tmp_path, train=mixture)
    prepare(config_of(train=mixture), tmp_path / "prepared")
    prepared = training_of(tmp_path, train=f"prepared:{tmp_path}/prepared")
    assert straight.hash == prepared.hash
    assert same(first_batches(straight), first_batches(prepared))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (
            "bundled:en-de/valid + bundled:en-de/test [de>en]",
            "set data.language_tags=True for several languages",
        ),
        (
            "text:{0}/s,{0}/t [en>de] + text:{0}/s,{0}/t [de>en]",
            "is named in two directions",
        ),
    ],
)
def test_directions_that_cannot_be_meant(tmp_path, train, message):
    """What a model could not tell apart is refused, and so is one source file for
    two directions.
    """
    for name in ("s", "t"):
        (tmp_path / name).write_text("a\n")
    with pytest.raises(InputError, match=message):
        TrainingText.open(
            config_of(train=train.format(tmp_path), language_tags="two" in message)
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"drop_remainder": True, "tokens_per_batch": 100_000},
            "drop_remainder=True leaves no batch",
        ),
        (
            {"train": "0.0001 * bundled:en-de/valid"},
            "the weights of data.train leave no pair",
        ),
    ],
)
def test_an_epoch_without_batches(tmp_path, options, message):
    """Named before anything is computed from it."""
    with pytest.raises(InputError, match=message):
        _ = training_of(tmp_path, **options).statistics


def test_a_large_text_tells_how_far_it_is(tmp_path, monkeypatch):
    """Now and then, the same from all roads, and of the vocabulary where one is
    trained.
    """
    monkeypatch.setattr(corpus, "_REPORT_EVERY", 300)
    monkeypatch.setattr(encoding, "CHUNK", 100)
    told = []
    text = TrainingText.open(config_of())
    vocabularies = text.vocabularies(tmp_path / "vocabulary", report=told.append)
    assert told == ["training the vocabulary on bundled:en-de/valid"]
    vocabularies.save(tmp_path / "vocabulary")
    text.load(
        text.vocabularies(tmp_path / "vocabulary", report=told.append),
        seed=0,
        report=told.append,
    )
    read = sum(1 for _ in text.pairs)
    assert told[1:] == [
        f"bundled:en-de/valid: {count:,} pairs read"
        for count in range(300, read + 1, 300)
    ]
    assert len(told) > 1


def test_the_home_folder(tmp_path, prepared, monkeypatch):
    """``~`` is the home folder in every name of files."""
    monkeypatch.setenv("HOME", str(prepared.parent))
    assert training_of(tmp_path, train="prepared:~/prepared").statistics.pairs


def test_cleaning_keys_are_those_of_the_configuration():
    """Every step has a key in the section ``data``, with the same default."""
    for field in dataclasses.fields(Cleaning):
        assert getattr(DataConfig(), field.name) == field.default
    config = config_of(max_words=9, detect_languages=True)
    assert config.cleaning == Cleaning(max_words=9, detect_languages=True)
    with pytest.raises(InputError, match=r"^data\.max_length_ratio "):
        DataConfig(max_length_ratio=0.5)


def test_what_is_judged_is_one_set_of_text(tmp_path):
    pairs, language = load_evaluation(
        "bundled:en-de/test [de>en]", config_of(language_tags=True)
    )
    assert (len(pairs), language) == (500, "en")
    assert pairs[0].target == next(iter(load("bundled:en-de/test", "en", "de"))).source
    with pytest.raises(
        InputError, match=r"into en and the run into de: set data\.language_tags=True"
    ):
        load_evaluation("bundled:en-de/test [de>en]", config_of())
    for name in (
        "bundled:en-de/test + bundled:en-de/valid",
        "2 * bundled:en-de/test",
        "prepared:x",
    ):
        with pytest.raises(
            InputError, match="is not for evaluation: name one data set"
        ):
            load_evaluation(name, config_of())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text:{0}/a.en,{0}/a.de", "{0}/a.en"),
        ("text:{0}/a.en,{0}/a.de [en>de]", "{0}/a.en"),
        ("tsv:{0}/a.tsv#2,1", "{0}/a.tsv"),
        ("text:{0}/*.en,{0}/*.de", "text:{0}/*.en,{0}/*.de"),
        ("tsv:{0}/?.tsv", "tsv:{0}/?.tsv"),
        ("bundled:en-de/test", "bundled:en-de/test"),
    ],
)
def test_a_line_of_a_source_is_one_of_its_file(name, said, tmp_path):
    """Where all sources are in one file an error names it, else the set, whose
    lines are counted as if they did.
    """
    for file in ("a.en", "a.de", "b.en", "b.de", "a.tsv", "b.tsv"):
        (tmp_path / file).write_text("a\ta\n")
    assert corpus.name_sources(name.format(tmp_path), config_of()) == said.format(
        tmp_path
    )
