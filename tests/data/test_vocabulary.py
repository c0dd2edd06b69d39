import io
import types
import unicodedata

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxformer.data.config import DataConfig
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.data.vocabulary_sentencepiece import SentencePieceVocabulary
from jaxformer.data.vocabulary_training import load_or_train
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/valid", "en", "de"))
SENTENCES = [text for pair in PAIRS for text in pair]
both_models = pytest.mark.parametrize("model", ["bpe", "unigram"])


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
    return SentencePieceVocabulary(
        train_elsewhere(pad_id=7, unk_id=2, bos_id=0, eos_id=11)
    )


def special(vocabulary):
    return [getattr(vocabulary, f"{name}_id") for name in ("pad", "unk", "bos", "eos")]


@both_models
def test_the_same_text_gives_the_same_bytes(model):
    first, second, other = (
        Vocabulary.train(iter(sentences), 400, model=model)
        for sentences in (SENTENCES, SENTENCES, SENTENCES[:-1])
    )
    assert first.model == second.model
    assert first.hash == second.hash != other.hash


def test_special_ids_are_read_from_the_model(english_german, permuted):
    """A model with other ids, or other names of its special pieces, works too."""
    assert special(english_german) == [0, 1, 2, 3]
    assert english_german.size == 500
    assert special(permuted) == [7, 2, 0, 11]
    assert permuted.pieces([7, 2, 0, 11]) == ["<pad>", "<unk>", "<s>", "</s>"]
    ids = permuted.encode("Insert a new table.")
    assert permuted.decode([0, *ids, 11, 7, 7]) == "Insert a new table."
    assert not {7, 0, 11} & set(ids)
    options = {"pad_id": 4, "pad_piece": "[PAD]", "eos_piece": "[END]"}
    renamed = SentencePieceVocabulary(train_elsewhere(**options))
    assert renamed.pieces([renamed.pad_id, renamed.eos_id]) == ["[PAD]", "[END]"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pad", {"pad_id": -1}),
        ("bos", {"pad_id": 3, "bos_id": -1}),
        ("pad", {"pad_id": -1, "user_defined_symbols": "<pad>"}),
    ],
)
def test_a_model_without_a_special_piece_is_refused(name, options):
    """Also one that text can spell."""
    with pytest.raises(InputError, match=f"no control piece for {name}: .*--{name}_id"):
        SentencePieceVocabulary(train_elsewhere(**options))


def test_decoding_ends_at_the_first_eos(english_german):
    """It skips padding and bos; an unknown id reads as unk."""
    v, text = english_german, "Insert a new table."
    ids = v.encode(text)
    assert v.decode(ids) == text
    assert v.decode([v.bos_id, *ids, v.eos_id, *ids, v.eos_id, v.pad_id]) == text
    assert v.decode([v.pad_id, *ids[:2], v.pad_id, *ids[2:], v.pad_id]) == text
    assert v.decode(np.array([*ids, v.eos_id, 9, 9], np.int32)) == text
    assert v.decode([v.eos_id, *ids]) == v.decode([]) == v.decode([v.pad_id]) == ""
    for strange in (v.size, 2**40, -1):
        assert v.decode([*ids, strange]) == v.decode([*ids, v.unk_id]) != text


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(-(2**31), 2**31) | st.integers(490, 520), max_size=12))
def test_any_number_can_be_decoded(english_german, ids):
    assert "\n" not in english_german.decode(ids)
    assert len(english_german.pieces(ids)) == len(ids)


@settings(deadline=None, max_examples=60)
@given(text=st.text(alphabet=st.characters(exclude_categories=[])))
@example("a </s><pad> <unk>b x<s>")
def test_any_text_can_be_encoded(english_german, permuted, text):
    """Also halves of surrogate pairs and control characters; it never becomes a control
    id.
    """
    for model in (english_german, permuted):
        ids = model.encode(text)
        assert all(0 <= token < model.size for token in ids)
        assert not {model.pad_id, model.bos_id, model.eos_id} & set(ids)


def test_normalisation_is_the_documented_one(english_german):
    """Runs of white space become one space, all else stays. Every character of the
    training text is a piece.
    """
    v = english_german
    assert v.decode(v.encode("  table  file \t\n x  ")) == "table file x"
    assert v.encode("") == v.encode("  \t ") == []
    for ids in v.encode_batch(SENTENCES):
        assert v.unk_id not in ids
        assert v.encode(v.decode(ids)) == ids


def test_byte_fallback_keeps_unknown_characters():
    """Without it an emoji is unk; a byte that is a line end becomes a space."""
    plain, spelled = (
        Vocabulary.train(SENTENCES, 600, byte_fallback=choice)
        for choice in (False, True)
    )
    text = "table 😀 漢"
    assert plain.unk_id in plain.encode(text)
    assert spelled.unk_id not in spelled.encode(text)
    assert spelled.decode(spelled.encode(text)) == text
    newline = spelled.pieces(range(spelled.size)).index("<0x0A>")
    ids = [*spelled.encode("a"), newline, *spelled.encode("b")]
    assert spelled.decode(ids) == "a  b"


@both_models
def test_a_size_that_the_text_does_not_allow(model, capfd):
    """The most, or the least, is named, and it works; SentencePiece writes nothing."""
    few = SENTENCES[:100]
    message = r"40000 .* large .*: it allows at most \d+$"
    with pytest.raises(InputError, match=message) as error:
        Vocabulary.train(few, 40_000, model=model)
    most = int(str(error.value).split()[-1])
    assert Vocabulary.train(few, most, model=model).size == most
    with pytest.raises(InputError, match=r"20 pieces is too small for .* need \d+;"):
        Vocabulary.train(few, 20, model=model)
    with pytest.raises(InputError, match="no room"):
        Vocabulary.train(few, 1, model=model)
    for sentences in ([], ["", "  "]):
        with pytest.raises(InputError, match="no characters"):
            Vocabulary.train(sentences, 100, model=model)
    with pytest.raises(InputError):
        SentencePieceVocabulary(b"junk")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, None])
def test_a_damaged_file_is_named(tmp_path, english_german, content):
    model = english_german.model[:1000] if content is None else content
    (tmp_path / "x.model").write_bytes(model)
    with pytest.raises(InputError, match=r"x\.model: not a SentencePiece model"):
        Vocabulary.load(tmp_path / "x.model")
    with pytest.raises(InputError, match=r"no vocabulary .*y\.model"):
        Vocabulary.load(tmp_path / "y.model")


LONG = {  # of one line each: letters with and without spaces, of one to four bytes
    "ru": "Съешь ещё этих мягких французских булок, да выпей чаю. ",
    "zh": "天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏閏餘成歲律呂調陽",
    "got": "𐌱𐌰𐌹𐍂𐌹𐌸 𐌲𐌿𐌸 𐍆𐌰𐌲𐌹𐌽𐍉𐌳 ",
}


def just_enough(texts):
    """Return the size of a vocabulary of only the special pieces and characters."""
    return 4 + len({" ", *unicodedata.normalize("NFKC", "".join(texts))} - {"▅"})


@pytest.mark.parametrize("language", LONG)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("side", [0, 1])
@both_models
def test_long_lines_are_learned_too(tmp_path, language, shared, side, model):
    """No character of a line of any length is unknown, on either side."""
    line = LONG[language] * (80_000 // len(LONG[language]))
    texts = [line, "a short line ▅ with a sign"]
    pairs = [Pair(*(texts if side == 0 else texts[::-1]))] * 2
    config = DataConfig(
        vocabulary_size=just_enough(pairs[0] if shared else pairs[0][1:]),
        source_vocabulary_size=None if shared else just_enough(pairs[0][:1]),
        vocabulary_model=model,
        shared_vocabulary=shared,
    )
    found = load_or_train(tmp_path, config, pairs)
    for vocabulary, text in zip((found.source, found.target), pairs[0], strict=True):
        assert vocabulary.unk_id not in vocabulary.encode(text.replace("▅", ""))


def test_a_long_line_of_another_kind_is_learned(tmp_path):
    config = DataConfig(kind="text", vocabulary_size=5 + just_enough(LONG["zh"]))
    found = load_or_train(tmp_path, config, [Pair(LONG["zh"] * 200, "")]).source
    assert found.unk_id not in found.encode(LONG["zh"])


class TestLoadOrTrain:
    def test_shared(self, tmp_path):
        """The second time nothing is trained. The options reach the training."""
        options = {"vocabulary_model": "unigram", "byte_fallback": True}
        config = DataConfig(vocabulary_size=500, **options)
        trained = load_or_train(tmp_path / "v", config, PAIRS)
        assert trained.shared
        assert trained.source is trained.target
        assert [path.name for path in (tmp_path / "v").iterdir()] == ["shared.model"]
        assert load_or_train(tmp_path / "v", config, []) == trained
        assert Vocabularies.load(tmp_path / "v").hash == trained.hash
        options = {"model": "unigram", "byte_fallback": True}
        assert trained.source == Vocabulary.train(SENTENCES, 500, **options)

    def test_separate(self, tmp_path):
        """Training that was interrupted is completed."""
        sizes = {"vocabulary_size": 400, "source_vocabulary_size": 300}
        config = DataConfig(shared_vocabulary=False, **sizes)
        trained = load_or_train(tmp_path, config, PAIRS)
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == ["source.model", "target.model"]
        loaded = Vocabularies.load(tmp_path)
        assert load_or_train(tmp_path, config, []) == loaded == trained
        assert trained.source == Vocabulary.train([pair.source for pair in PAIRS], 300)
        assert trained.target == Vocabulary.train([pair.target for pair in PAIRS], 400)
        assert not trained.shared
        assert trained.hash != Vocabularies(trained.target, trained.source).hash
        (tmp_path / "target.model").unlink()
        with pytest.raises(InputError, match=r"no vocabulary .*target\.model"):
            Vocabularies.load(tmp_path)
        assert load_or_train(tmp_path, config, PAIRS) == trained

    def test_a_refused_size_names_its_key_and_leaves_nothing(self, tmp_path):
        keys = ["vocabulary_size", "source_vocabulary_size"]
        for key, other in (keys, keys[::-1]):
            config = DataConfig(shared_vocabulary=False, **{key: 40_000, other: 300})
            with pytest.raises(InputError, match=rf"^data\.{key}: .*at most"):
                load_or_train(tmp_path, config, PAIRS)
        assert not list(tmp_path.iterdir())

    def test_a_directory_of_another_config_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"no vocabulary in .*shared\.model"):
            Vocabularies.load(tmp_path)
        load_or_train(tmp_path, DataConfig(vocabulary_size=300), PAIRS)
        for options, message in (
            ({"vocabulary_size": 400}, r"data\.vocabulary_size is 400 and .* has 300"),
            ({"vocabulary_size": 300, "shared_vocabulary": False}, "_vocabulary=True"),
        ):
            with pytest.raises(InputError, match=message):
                load_or_train(tmp_path, DataConfig(**options), PAIRS)


@pytest.mark.parametrize(
    ("sizes", "dtype"), [((8, 65_536), "<u2"), ((65_537, 8), "<i4")]
)
def test_the_smallest_dtype_holds_all_ids(sizes, dtype):
    sides = (
        types.SimpleNamespace(size=size, pad_id=size - 1, files={}) for size in sizes
    )
    vocabularies = Vocabularies(*sides)
    assert vocabularies.token_dtype == dtype
    assert vocabularies.pad_ids == tuple(size - 1 for size in sizes)
