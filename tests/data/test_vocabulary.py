import copy
import doctest
import io
import pickle
import string
import types

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data import DataConfig, Pair, Vocabularies, Vocabulary, load, vocabulary
from jaxformer.data.sources import reversal
from jaxformer.data.vocabulary import load_or_train
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/valid", "en", "de"))
SENTENCES = [text for pair in PAIRS for text in pair]
SPECIAL_TEXTS = [
    "</s>",
    "<pad>",
    "<s>",
    "<unk>",
    "a </s> b",
    "<pad><pad>",
    "</s></s>",
    "x</s>",
]


def train_elsewhere(**options):
    """Train with SentencePiece itself, as users bring their models."""
    writer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=writer,
        vocab_size=300,
        minloglevel=2,
        **options,
    )
    return writer.getvalue()


@pytest.fixture(scope="module")
def english_german():
    return Vocabulary.train(SENTENCES, 500)


@pytest.fixture(scope="module")
def permuted():
    return Vocabulary(train_elsewhere(pad_id=7, unk_id=2, bos_id=0, eos_id=11))


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes(model):
    first, second = (
        Vocabulary.train(iter(SENTENCES), 400, model=model) for _ in range(2)
    )
    assert first.model == second.model
    assert first.hash == second.hash
    assert len(first.hash) == 64
    assert first.hash != Vocabulary.train(SENTENCES[:-1], 400, model=model).hash


def test_special_ids_of_our_models(english_german):
    """Padding is not unk."""
    ids = (
        english_german.pad_id,
        english_german.unk_id,
        english_german.bos_id,
        english_german.eos_id,
    )
    assert ids == (0, 1, 2, 3)
    assert english_german.size == 500


def test_special_ids_are_read_from_the_model(permuted):
    """A model with other ids works as well as ours."""
    assert (permuted.pad_id, permuted.unk_id, permuted.bos_id, permuted.eos_id) == (
        7,
        2,
        0,
        11,
    )
    assert permuted.pieces([7, 2, 0, 11]) == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = permuted.encode("Insert a new table.")
    assert permuted.decode([0, *ids, 11, 7, 7]) == "Insert a new table."
    assert not {7, 0, 11} & set(ids)


def test_special_pieces_of_other_names():
    """Ids follow the role of a piece, not its name."""
    renamed = Vocabulary(
        train_elsewhere(pad_id=4, pad_piece="[PAD]", eos_piece="[END]")
    )
    assert renamed.pieces([renamed.pad_id, renamed.eos_id]) == ["[PAD]", "[END]"]


@pytest.mark.parametrize("name", ["pad", "bos", "eos"])
def test_a_model_without_a_special_piece_is_refused(name):
    """No id is invented."""
    with pytest.raises(InputError, match=f"no control piece for {name}: .*--{name}_id"):
        Vocabulary(
            train_elsewhere(
                **{"pad_id": 3, "unk_id": 0, "bos_id": 1, "eos_id": 2, f"{name}_id": -1}
            )
        )


def test_a_padding_piece_that_text_can_spell_is_refused():
    """A user-defined piece comes from text, so it cannot pad."""
    with pytest.raises(InputError, match="no control piece for pad"):
        Vocabulary(train_elsewhere(pad_id=-1, user_defined_symbols="<pad>"))


@pytest.mark.parametrize("text", SPECIAL_TEXTS)
def test_text_never_becomes_a_control_id(english_german, permuted, text):
    """Words that look like control pieces are words."""
    for model in (english_german, permuted):
        assert not {model.pad_id, model.bos_id, model.eos_id} & set(model.encode(text))


def test_decoding_ends_at_the_first_eos(english_german):
    """Padding, bos and what follows the first eos go."""
    v = english_german
    ids = v.encode("Insert a new table.")
    assert (
        v.decode([v.bos_id, *ids, v.eos_id, *ids, v.eos_id, v.pad_id])
        == "Insert a new table."
    )
    assert (
        v.decode([v.pad_id, *ids[:2], v.pad_id, *ids[2:], v.pad_id])
        == "Insert a new table."
    )
    assert v.decode([v.eos_id, *ids]) == ""
    assert v.decode([]) == v.decode([v.pad_id]) == ""
    assert v.decode(np.array([*ids, v.eos_id, 9, 9], np.int32)) == "Insert a new table."


def test_decoding_without_eos_is_full(english_german):
    """A hypothesis that reached the longest length loses nothing."""
    assert (
        english_german.decode(english_german.encode("Insert a new table."))
        == "Insert a new table."
    )


def test_decoding_and_encoding_are_stable(english_german):
    """encode(decode(ids)) returns the ids that encode returned."""
    for ids in english_german.encode_batch(SENTENCES):
        # every character of the training text is a piece
        assert english_german.unk_id not in ids
        assert english_german.encode(english_german.decode(ids)) == ids


@settings(deadline=None, max_examples=100)
@given(ids=st.lists(st.integers(-(2**31), 2**31) | st.integers(490, 520), max_size=12))
def test_decoding_takes_any_number(english_german, ids):
    """An id that the model lacks reads as unk."""
    assert "\n" not in english_german.decode(ids)
    assert len(english_german.pieces(ids)) == len(ids)


def test_an_id_out_of_range_is_visible(english_german):
    """It decodes as unk does, next to known pieces."""
    ids = english_german.encode("table")
    for strange in (english_german.size, 2**40, -1):
        assert (
            english_german.decode([*ids, strange])
            == english_german.decode([*ids, english_german.unk_id])
            != "table"
        )


@settings(deadline=None, max_examples=100)
@given(text=st.text(alphabet=st.characters(exclude_categories=[])))
def test_any_text_can_be_encoded(english_german, text):
    """Also lone surrogates and control characters; no id is out of range or special."""
    ids = english_german.encode(text)
    assert all(0 <= token < english_german.size for token in ids)
    assert not {
        english_german.pad_id,
        english_german.bos_id,
        english_german.eos_id,
    } & set(ids)


def test_normalisation_is_the_documented_one(english_german):
    """NFKC, and runs of white space become one space."""
    v = english_german
    assert v.decode(v.encode("  ｔａｂｌｅ　 ﬁle \t\n x  ")) == "table file x"
    assert v.encode("") == v.encode("  \t ") == []


def test_byte_fallback_keeps_unknown_characters():
    """Without it an emoji is unk, with it nothing is lost."""
    plain, bytes_too = (
        Vocabulary.train(SENTENCES, 600, byte_fallback=choice)
        for choice in (False, True)
    )
    assert plain.unk_id in plain.encode("table 😀")
    assert bytes_too.unk_id not in bytes_too.encode("table 😀 漢")
    assert bytes_too.decode(bytes_too.encode("table 😀 漢")) == "table 😀 漢"
    newline = bytes_too.pieces(range(bytes_too.size)).index("<0x0A>")
    assert bytes_too.decode(
        [*bytes_too.encode("a"), newline, *bytes_too.encode("b")]
    ).split("\n") == ["a  b"]


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_a_size_that_the_text_does_not_allow(model):
    """The most, or the least, is named, and it works."""
    with pytest.raises(
        InputError,
        match=r"40000 pieces is too large for this text: it allows at most \d+",
    ) as error:
        Vocabulary.train(SENTENCES, 40_000, model=model)
    most = int(str(error.value).split()[-1])
    assert Vocabulary.train(SENTENCES, most, model=model).size == most
    with pytest.raises(
        InputError, match=r"20 pieces is too small for this text: .* need \d+;"
    ):
        Vocabulary.train(SENTENCES, 20, model=model)
    with pytest.raises(InputError, match="no room"):
        Vocabulary.train(SENTENCES, 1, model=model)


@pytest.mark.parametrize("sentences", [[], [""], ["", "  "]])
def test_a_text_without_characters(sentences):
    with pytest.raises(InputError, match="no characters"):
        Vocabulary.train(sentences, 100)


def test_nothing_is_written_to_the_terminal(capfd):
    Vocabulary.train(SENTENCES, 300)
    for attempt in (
        lambda: Vocabulary.train(SENTENCES, 40_000),
        lambda: Vocabulary(b"junk"),
    ):
        with pytest.raises(InputError):
            attempt()
    assert capfd.readouterr() == ("", "")


def test_save_and_load(tmp_path, english_german):
    english_german.save(tmp_path / "a" / "b.model")
    loaded = Vocabulary.load(tmp_path / "a" / "b.model")
    assert loaded == english_german
    assert loaded.hash == english_german.hash
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.model"]


def test_copies_work(english_german):
    for twin in (
        pickle.loads(pickle.dumps(english_german)),
        copy.deepcopy(english_german),
    ):
        assert twin == english_german
        assert twin.encode("Insert a table.") == english_german.encode(
            "Insert a table."
        )


def test_it_cannot_be_changed(english_german):
    with pytest.raises(AttributeError):
        english_german.pad_id = 5


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100])
def test_a_damaged_file_is_named(tmp_path, english_german, content):
    (tmp_path / "x.model").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.model: not a SentencePiece model"):
        Vocabulary.load(tmp_path / "x.model")
    (tmp_path / "x.model").write_bytes(english_german.model[:1000])
    with pytest.raises(InputError, match=r"x\.model: not a SentencePiece model"):
        Vocabulary.load(tmp_path / "x.model")
    with pytest.raises(InputError, match=r"no vocabulary .*y\.model"):
        Vocabulary.load(tmp_path / "y.model")


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_the_reversal_vocabulary(model):
    """At 57 pieces each letter is one token, and no more pieces are possible."""
    pairs = reversal("train")[:2000]
    v = Vocabulary.train([text for pair in pairs for text in pair], 57, model=model)
    for pair in pairs[:200]:
        assert v.pieces(v.encode(pair.source)) == [
            f"▁{letter}" for letter in pair.source.split()
        ]
    assert {piece[-1] for piece in v.pieces(range(4, 57))} == set(
        string.ascii_lowercase
    ) | {"▁"}


class TestLoadOrTrain:
    def test_shared(self, tmp_path):
        config = DataConfig(vocabulary_size=400)
        trained = load_or_train(tmp_path / "v", config, PAIRS)
        assert trained.shared
        assert trained.source is trained.target
        assert [path.name for path in (tmp_path / "v").iterdir()] == ["shared.model"]
        # the second time nothing is trained
        assert load_or_train(tmp_path / "v", config, []) == trained
        assert Vocabularies.load(tmp_path / "v").hash == trained.hash

    def test_separate(self, tmp_path):
        config = DataConfig(
            vocabulary_size=400, source_vocabulary_size=300, shared_vocabulary=False
        )
        trained = load_or_train(tmp_path, config, PAIRS)
        assert (trained.source.size, trained.target.size) == (300, 400)
        assert not trained.shared
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "source.model",
            "target.model",
        ]
        assert (
            load_or_train(tmp_path, config, [])
            == Vocabularies.load(tmp_path)
            == trained
        )
        assert trained.source == Vocabulary.train([pair.source for pair in PAIRS], 300)
        assert trained.target == Vocabulary.train([pair.target for pair in PAIRS], 400)
        assert trained.hash != Vocabularies(trained.target, trained.source).hash

    def test_training_that_was_interrupted_is_completed(self, tmp_path):
        config = DataConfig(vocabulary_size=300, shared_vocabulary=False)
        whole = load_or_train(tmp_path, config, PAIRS)
        (tmp_path / "target.model").unlink()
        assert load_or_train(tmp_path, config, PAIRS) == whole

    def test_the_config_options_reach_the_training(self, tmp_path):
        config = DataConfig(
            vocabulary_size=500, vocabulary_model="unigram", byte_fallback=True
        )
        assert load_or_train(tmp_path, config, PAIRS).source == Vocabulary.train(
            [pair.source for pair in PAIRS] + [pair.target for pair in PAIRS],
            500,
            model="unigram",
            byte_fallback=True,
        )

    def test_a_refused_size_names_its_key_and_leaves_nothing(self, tmp_path):
        """The person learns what to set."""
        config = DataConfig(
            vocabulary_size=40_000, source_vocabulary_size=300, shared_vocabulary=False
        )
        with pytest.raises(InputError, match=r"^data\.vocabulary_size: .*at most"):
            load_or_train(tmp_path, config, PAIRS)
        config = DataConfig(
            vocabulary_size=300, source_vocabulary_size=40_000, shared_vocabulary=False
        )
        with pytest.raises(
            InputError, match=r"^data\.source_vocabulary_size: .*at most"
        ):
            load_or_train(tmp_path, config, PAIRS)
        assert not list(tmp_path.iterdir())

    def test_a_directory_of_another_config_is_refused(self, tmp_path):
        load_or_train(tmp_path, DataConfig(vocabulary_size=300), PAIRS)
        with pytest.raises(
            InputError, match=r"data\.vocabulary_size is 400 and .* has 300 pieces"
        ):
            load_or_train(tmp_path, DataConfig(vocabulary_size=400), PAIRS)
        with pytest.raises(InputError, match=r"data\.shared_vocabulary=True"):
            load_or_train(
                tmp_path,
                DataConfig(vocabulary_size=300, shared_vocabulary=False),
                PAIRS,
            )

    def test_an_empty_directory_is_named(self, tmp_path):
        with pytest.raises(InputError, match=r"no vocabulary in .*shared\.model"):
            Vocabularies.load(tmp_path)
        Vocabulary.train(SENTENCES, 300).save(tmp_path / "source.model")
        with pytest.raises(InputError, match=r"no vocabulary .*target\.model"):
            Vocabularies.load(tmp_path)

    def test_no_text_at_all(self, tmp_path):
        with pytest.raises(InputError, match="no characters"):
            load_or_train(tmp_path, DataConfig(), [Pair("", " ")])


@pytest.mark.parametrize(
    ("sizes", "dtype"), [((8, 8), "<u2"), ((8, 65_536), "<u2"), ((65_537, 8), "<i4")]
)
def test_the_smallest_dtype_holds_all_ids(sizes, dtype):
    sides = (types.SimpleNamespace(size=size, pad_id=size - 1) for size in sizes)
    vocabularies = Vocabularies(*sides)
    assert vocabularies.token_dtype == dtype
    assert vocabularies.pad_ids == tuple(size - 1 for size in sizes)


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(vocabulary).failed == 0
