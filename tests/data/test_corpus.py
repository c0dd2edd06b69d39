"""What ``data.train`` names becomes training data: text or prepared folders, mixed,
cleaned, tagged.
"""

import itertools

import numpy as np
import pytest
from pairs import BASE, config_of

from jaxformer.data import corpus, encoding, sources
from jaxformer.data.cleaning import Counts
from jaxformer.data.corpus import TrainingText, load_evaluation
from jaxformer.data.preparing import prepare
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError


@pytest.fixture(scope="module")
def vocabularies(prepared):
    return Vocabularies.load(prepared / "vocabulary")


def load_with(vocabularies, **options):
    return TrainingText.open(config_of(**options)).load(vocabularies, seed=3)


def write_text(folder, pairs):
    """Write pairs as two files, and name them."""
    for side, name in enumerate(("s", "t")):
        lines = "".join(pair[side] + "\n" for pair in pairs)
        (folder / name).write_text(lines, "utf-8")
    return f"text:{folder}/s,{folder}/t"


def first_batches(data, count=30):
    return [batch for batch, _ in itertools.islice(data.batches(), count)]


@pytest.mark.parametrize(
    "options",
    [
        {
            "packing": True,
            "drop_duplicates": True,
            "max_length_ratio": 1.5,
            "vocabulary_model": "unigram",
            "source_eos": False,
        },
        {
            "train": "bundled:en-de/valid + bundled:en-de/test",
            "shared_vocabulary": False,
            "language_tags": True,
        },
    ],
)
def test_prepared_equals_text(tmp_path, options):
    """The same batches in the same order, and the same identity."""
    done = prepare(config_of(**options), tmp_path / "prepared")
    vocabularies = Vocabularies.load(tmp_path / "prepared" / "vocabulary")
    straight = load_with(vocabularies, **options)
    train = f"prepared:{tmp_path}/prepared"
    mapped = load_with(vocabularies, **{**options, "train": train})
    np.testing.assert_equal(first_batches(straight), first_batches(mapped))
    assert straight.hash == mapped.hash
    assert straight.statistics == mapped.statistics
    assert done.counts == dict(straight.counts)
    assert [*mapped.counts.values()] == [sum(done.counts.values(), Counts())]
    assert done.lengths[0].sum() == done.lengths[1].sum() >= straight.statistics.pairs


def test_a_folder_prepared_for_something_else_is_refused(
    tmp_path, prepared, vocabularies
):
    """Also one of another vocabulary than the run's."""
    train = f"prepared:{prepared}"
    others = {"source_eos": False, "vocabulary_model": "unigram"}
    for options, message in (
        ({"max_length": 61}, "with data.max_length=60 and lacks longer pairs"),
        (
            others,
            "set --config.data.vocabulary_model=bpe --config.data.source_eos=True",
        ),
    ):
        text = TrainingText.open(config_of(train=train, **options))
        with pytest.raises(InputError, match=message):
            text.vocabularies(tmp_path)
        with pytest.raises(InputError, match=message):
            text.load(vocabularies, seed=3)
    other = Vocabulary.train(["a b c"], 8)
    message = r"was encoded with another vocabulary .*prepare it again"
    with pytest.raises(InputError, match=message):
        load_with(Vocabularies(other, other), train=train)


def test_a_lower_limit_of_tokens_is_that_of_the_text(
    prepared, vocabularies, monkeypatch
):
    """Longer pairs are dropped and counted at the start, from the same folder; ``~``
    is the home folder.
    """
    monkeypatch.setenv("HOME", str(prepared.parent))
    straight, mapped = (
        load_with(vocabularies, max_length=20, train=train)
        for train in (BASE["train"], "prepared:~/prepared")
    )
    np.testing.assert_equal(first_batches(straight), first_batches(mapped))
    assert straight.hash == mapped.hash
    (one,), (other,) = straight.counts.values(), mapped.counts.values()
    assert one == other
    assert one.dropped["max_length"] > 0


def test_a_mixture_of_text(tmp_path):
    """Each part is counted and weighed. Each source begins with the tag of its own
    target language (Johnson et al. 2017, section 3).
    """
    names = ["bundled:en-de/valid", "bundled:en-de/test"]
    train = f"{names[0]} + 3 * {names[1]} [de>en]"
    options = {"train": train, "language_tags": True, "vocabulary_size": 600}
    text = TrainingText.open(config_of(**options))
    vocabularies = text.vocabularies(tmp_path)
    data = text.load(vocabularies, seed=0)
    shares = [(names[0], 0, 500, 1.0), (names[1], 500, 1000, 3.0)]
    assert list(data.shares) == shares
    read = {name: counts.read for name, counts in data.counts.items()}
    assert read == dict.fromkeys(names, 500)
    assert data.statistics.pairs == 2000
    first = [int(data.store.source[i][0]) for i in range(1000)]
    tags = [vocabularies.source.tag_id(language) for language in ("de", "en")]
    assert first == [tags[0]] * 500 + [tags[1]] * 500


@pytest.mark.xfail(
    strict=True, reason="they are copied to temporary files at each start"
)
@pytest.mark.parametrize(
    ("parts", "options"),
    [(2, {}), (3, {"temperature": 2.0}), (1, {"max_length": 20})],
)
def test_prepared_folders_are_mapped_and_not_copied(
    tmp_path, monkeypatch, parts, options
):
    """Several are one view, as one is; a lower ``max_length`` and weights too."""
    vocabulary, names = None, []
    for part in range(parts):
        folder = tmp_path / str(part)
        prepare(config_of(), folder, vocabulary=vocabulary)
        vocabulary = tmp_path / "0" / "vocabulary"
        names.append(f"prepared:{folder}")
    config = config_of(**options, train=" + ".join(names))
    written: list[int] = []
    monkeypatch.setattr(
        corpus.TokenWriter, "add", lambda _, pairs: written.append(len(pairs))
    )
    text = TrainingText.open(config)
    text.load(Vocabularies.load(vocabulary), seed=0)
    assert not written


def test_temperature_repeats_the_smaller(tmp_path, vocabularies):
    pairs = list(load("bundled:en-de/test", "en", "de"))[:100]
    mixture = f"bundled:en-de/valid + {write_text(tmp_path, pairs)}"
    data = load_with(vocabularies, train=mixture, temperature=2.0)
    assert [share.weight for share in data.shares] == [1.0, pytest.approx(5**0.5)]


def test_each_epoch_has_its_own_segmentation(vocabularies):
    """Each pair once an epoch in other pieces; loaded again and resumed in the second
    epoch, the data are the same. A stream closes while text is read ahead.
    """
    options = {"segmentation_alpha": 0.3, "packing": False}
    data, again = (load_with(vocabularies, **options) for _ in range(2))
    stream, size = data.batches(), len(data.plan(0))
    straight = list(itertools.islice(stream, size + 8))
    stream.close()
    position = straight[size + 2][1]
    assert position.epoch == 1
    resumed = [batch for batch, _ in itertools.islice(again.batches(position), 5)]
    np.testing.assert_equal([batch for batch, _ in straight[-5:]], resumed)
    epochs, target = [], vocabularies.target
    for epoch in (0, 1):
        plan = data.plan(epoch)
        rows = [
            row for number in range(len(plan)) for row in plan.batch(number)["target"]
        ]
        epochs.append(
            sorted(target.decode(row) for row in rows if row[0] != target.pad_id)
        )
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == data.statistics.pairs
    first, second = (data.plan(epoch).store for epoch in (0, 1))
    assert first.hash != second.hash


def test_text_that_changes_while_it_is_read_again_is_noticed(tmp_path, vocabularies):
    """Each epoch of another segmentation reads the same pairs, or training stops. The
    best segmentation identifies the text.
    """
    pairs = list(load("bundled:en-de/test", "en", "de"))[:200]
    options = {"train": write_text(tmp_path, pairs), "segmentation_alpha": 0.2}
    data = load_with(vocabularies, **options)
    assert data.hash == load_with(vocabularies, train=options["train"]).hash
    assert len(data.plan(1).pairs) == 200
    write_text(tmp_path, pairs[:-5])
    message = r"data\.train has changed since training began .* of 195 pairs"
    with pytest.raises(InputError, match=message):
        data.plan(2)


@pytest.mark.parametrize(
    ("train", "options", "message"),
    [
        ("bundled:en-de/valid + prepared:x", {}, "mixes text with prepared folders"),
        ("prepared:x", {"segmentation_alpha": 0.1}, "has no text: train from the text"),
        (
            "bundled:en-de/test + bundled:en-de/test [de>en]",
            {},
            "set data.language_tags=True for several languages",
        ),
        (
            "text:s,t [en>de] + text:s,t [de>en]",
            {"language_tags": True},
            "is named in two directions",
        ),
        ("2 * tsv:x", {"temperature": 2.0}, "both set how often pairs occur"),
    ],
)
def test_names_that_do_not_fit_are_refused(train, options, message):
    with pytest.raises(InputError, match=message):
        TrainingText.open(config_of(train=train, **options))


def test_a_large_text_reports_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "_REPORT_EVERY", 200)
    monkeypatch.setattr(encoding, "CHUNK", 100)
    lines = []
    text = TrainingText.open(config_of(drop_duplicates=True))
    for _ in range(2):  # the second time the vocabulary is not trained
        vocabularies = text.vocabularies(tmp_path, report=lines.append)
    text.load(vocabularies, seed=0, report=lines.append)
    assert lines == [
        "training the vocabulary on bundled:en-de/valid",
        "bundled:en-de/valid: searching for duplicates",
        "bundled:en-de/valid: 200 pairs read",
        "bundled:en-de/valid: 400 pairs read",
        "bundled:en-de/valid: 200 pairs read",
        "bundled:en-de/valid: 400 pairs read",
    ]


PAIRS = list(load("bundled:en-de/valid", "en", "de"))
# What each step drops.
BAD = {
    "drop_duplicates": (True, PAIRS[:50] * 20),
    "drop_identical": (True, [Pair("qqq zzz", "qqq zzz")]),
    "max_words": (80, [Pair("qqq zzz " * 50, "jjj xxx")]),
    "max_characters": (900, [Pair("qqq zzz", "jjj xxx " * 150)]),
    "max_length_ratio": (9.0, [Pair("qqq zzz " * 10, "jjj")]),
    "kind": ("pairs", [Pair("qqq zzz", "\u200b"), Pair("", "jjj xxx")]),
}


@pytest.mark.parametrize(
    ("key", "shared"), [*((key, True) for key in BAD), ("drop_duplicates", False)]
)
def test_the_vocabulary_is_learned_from_what_is_kept(
    tmp_path, monkeypatch, key, shared
):
    """Pairs that cleaning drops change nothing, in this process or in workers."""
    value, bad = BAD[key]
    monkeypatch.setattr(encoding, "CHUNK", 100)
    if key == "max_words":
        monkeypatch.setattr(encoding, "_FEWEST_CHUNKS", 4)
    hashes = []
    for name, text in (("clean", PAIRS), ("all", [*PAIRS, *bad * 30])):
        (tmp_path / name).mkdir()
        config = config_of(
            train=write_text(tmp_path / name, text),
            shared_vocabulary=shared,
            workers=2,
            **{key: value},
        )
        found = TrainingText.open(config).vocabularies(tmp_path / name / "vocabulary")
        hashes.append(found.hash)
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize("form", ["text", "tsv"])
@pytest.mark.parametrize("encoding_of", ["latin-1", "cp1251", "shift_jis"])
def test_lines_that_are_not_utf_8_are_dropped_if_asked(tmp_path, form, encoding_of):
    """On either side, and counted; otherwise the first is named, and how many."""
    word = {"latin-1": "für", "cp1251": "для", "shift_jis": "ために"}[encoding_of]
    lines = [[pair.source.encode(), pair.target.encode()] for pair in PAIRS]
    lines[7][0] = lines[9][1] = lines[30][0] = word.encode(encoding_of)
    if form == "text":
        for side in (0, 1):
            (tmp_path / f"{side}").write_bytes(b"\n".join(each[side] for each in lines))
        train, number, count = f"text:{tmp_path}/0,{tmp_path}/1", 8, 2
    else:
        (tmp_path / "t").write_bytes(b"\n".join(b"\t".join(each) for each in lines))
        train, number, count = f"tsv:{tmp_path}/t", 8, 3
    text = TrainingText.open(config_of(train=train))
    message = rf"line {number}: not UTF-8 \(.*; {count} such lines\)"
    with pytest.raises(InputError, match=message):
        text.vocabularies(tmp_path / "vocabulary")
    text = TrainingText.open(config_of(train=train, drop_invalid=True))
    vocabularies = text.vocabularies(tmp_path / "vocabulary")
    data = text.load(vocabularies, seed=0)
    (counts,) = data.counts.values()
    assert (counts.read, counts.dropped["drop_invalid"]) == (len(PAIRS), 3)
    kept = [pair for index, pair in enumerate(PAIRS) if index not in (7, 9, 30)]
    (tmp_path / "kept").mkdir()
    clean = config_of(train=write_text(tmp_path / "kept", kept))
    assert data.hash == TrainingText.open(clean).load(vocabularies, seed=0).hash


def test_a_plus_in_a_path_is_escaped(tmp_path):
    """Between blanks it would begin the next data set of a mixture."""
    folder = tmp_path / "a + b, c"
    folder.mkdir()
    plain = write_text(folder, PAIRS[:20])
    with pytest.raises(
        InputError, match=r"is no data set: write SCHEME:NAME, and \\\+"
    ):
        TrainingText.open(config_of(train=plain))
    name = f"text:{sources.escape(folder / 's')},{sources.escape(folder / 't')}"
    mixed = f"{name} + 2 * {name}"
    for train, count in ((name, 1), (mixed, 2)):
        text = TrainingText.open(config_of(train=train))
        assert [*text.kept()] == PAIRS[:20] * count


def test_text_for_evaluation_is_one_data_set():
    name = "bundled:en-de/test"
    pairs, languages = load_evaluation(f"{name} [de>en]", config_of(language_tags=True))
    assert (len(pairs), languages) == (500, ("de", "en"))
    assert pairs[0].target == next(iter(load(name, "en", "de"))).source
    with pytest.raises(
        InputError, match=r"into en and the run into de: set data\.lang"
    ):
        load_evaluation(f"{name} [de>en]", config_of())
    for wrong in (f"{name} + {name}", f"2 * {name}", "prepared:x"):
        with pytest.raises(
            InputError, match="is not for evaluation: name one data set"
        ):
            load_evaluation(wrong, config_of())
