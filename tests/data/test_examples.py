"""Text of one side and text with labels become token ids in their frames."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.data.config import DataConfig
from jaxformer.data.encoding import Tokenizer
from jaxformer.data.examples import encode_examples, encode_validation, join_texts
from jaxformer.data.frame import ENCODER, Frame, Template, make_frame
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.data.vocabulary_labels import LabelVocabulary
from jaxformer.data.windows import question_windows
from jaxformer.errors import InputError

LINES = [pair.source for pair in load("bundled:en-de/valid", "en", "de")]
ROBERTA = Template(source=("{bos}", "{text}", "{eos}", "{eos}", "{text2}", "{eos}"))
WORDS = ["open", "the", "file", "editor", "settings", "\x01", "x"]


@functools.cache
def vocabulary(model="bpe"):
    return Vocabulary.train(LINES, 400, model=model, mask=True)


def vocabularies(labels=None, template=ENCODER, **options):
    text = vocabulary(**options)
    return Vocabularies(text, labels or text, template)


def encode(kind, pairs, labels=None, *, template=ENCODER, **options):
    config = DataConfig(kind=kind, **{"max_length": 24, **options})
    pairs = [Pair(*pair) for pair in pairs]
    return encode_examples(pairs, vocabularies(labels, template), config)


def rows(side):
    return [side[index].tolist() for index in range(len(side))]


def test_texts_end_and_are_one_sided():
    """A text without a token makes no example; nothing is cut."""
    text = vocabulary()
    found = encode("text", [(line, line) for line in ["a b", "\x01", LINES[0] * 9]])
    assert found.pairs.source is found.pairs.target
    assert [*found.pairs.sides] == ["target"]
    assert rows(found.pairs.target)[0] == [*text.encode("a b"), text.eos_id]
    assert found.origins.tolist() == [0, 2]
    assert found.pairs.target.lengths[1] > 24


def test_masked_texts_are_divided():
    """Every token is in one piece, each in the frame."""
    text = vocabulary()
    longer = " ".join(LINES[:5])
    found = encode("masked", [("x", "x"), (longer, longer)])
    assert found.pairs.source is found.pairs.target
    pieces = rows(found.pairs.target)
    assert all(piece[0] == text.bos_id and piece[-1] == text.eos_id for piece in pieces)
    assert all(len(piece) == 24 for piece in pieces[1:-1])
    inner = [token for piece in pieces[1:] for token in piece[1:-1]]
    assert inner == text.encode(longer)
    assert found.origins.tolist() == [0, *[1] * (len(pieces) - 1)]


def test_labels_and_numbers():
    """The label of the text, in the order that was given; numbers to the bit."""
    text = vocabulary()
    labels = LabelVocabulary.from_labels(["pos", "neg"])
    found = encode("labelled", [("a b", "neg"), ("\x01", "pos"), ("c", "pos")], labels)
    assert rows(found.pairs.source)[0] == [
        text.bos_id,
        *text.encode("a b"),
        text.eos_id,
    ]
    assert rows(found.pairs.target) == [[1], [0]]
    assert found.origins.tolist() == [0, 2]
    numbers = ["-1.25", "0", "3.4e38", "1e-3"]
    kind = LabelVocabulary.of_kind("scored")
    found = encode("scored", [("a", number) for number in numbers], kind)
    bits = found.pairs.target.padded(4, 1)
    assert bits.view(np.float32).ravel().tolist() == np.float32(numbers).tolist()


@pytest.mark.parametrize(("template", "between"), [(ENCODER, 1), (ROBERTA, 2)])
def test_two_texts(template, between):
    """The second comes after the separators of the frame, and may be empty."""
    text = vocabulary()
    labels = LabelVocabulary.from_labels(["0", "1"])
    pairs = [("a b\tc", "0"), ("a b\t", "1"), ("a b", "1")]
    found = rows(encode("labelled", pairs, labels, template=template).pairs.source)
    first, second = text.encode("a b"), text.encode("c")
    end = [text.eos_id]
    head = [text.bos_id, *first, *end * between]
    assert found == [[*head, *second, *end], [*head, *end], [text.bos_id, *first, *end]]
    plain = Template(source=("{bos}", "{text}", "{eos}"))
    with pytest.raises(InputError, match="no place for a second one"):
        encode("labelled", pairs, labels, template=plain)


@given(
    first=st.integers(0, 30), second=st.integers(0, 30), max_length=st.integers(4, 40)
)
def test_the_longer_text_is_cut(first, second, max_length):
    """One token after another from the longer one, and only where it must be."""
    frame = Frame((7,), (8,), (), 7, 8, source_between=(8,))
    texts = [*range(100, 100 + first)], [*range(200, 200 + second)]
    tokens, cut = join_texts(*texts, frame, max_length)
    one, two = (list(text) for text in texts)
    while len(one) + len(two) + 3 > max_length:
        (one if len(one) > len(two) else two).pop()
    assert tokens == [7, *one, 8, *two, 8]
    assert cut == (len(one) + len(two) < first + second)
    single, cut = join_texts(texts[0], None, frame, max_length)
    assert single == [7, *texts[0][: max_length - 2], 8]
    assert cut == (first > max_length - 2)


@settings(deadline=None, max_examples=30)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=14))
def test_tags_are_at_the_first_piece_of_a_word(words):
    """Other positions have no tag; a word without a piece keeps its place. Otherwise
    the pieces are those of the sentence.
    """
    text = vocabulary()
    labels = LabelVocabulary.from_labels(["O", *(f"T{i}" for i in range(14))])
    pair = " ".join(words), " ".join(f"T{i}" for i in range(len(words)))
    found = encode("tagged", [pair], labels, max_length=200)
    (source,), (target,) = rows(found.pairs.source), rows(found.pairs.target)
    assert len(source) == len(target)
    assert [tag - 1 for tag in target if tag < labels.size] == [*range(len(words))]
    starts = [place for place, tag in enumerate(target) if tag < labels.size]
    pieces = [source[a:b] for a, b in zip(starts, [*starts[1:], -1], strict=True)]
    for word, ids in zip(words, pieces, strict=True):
        assert ids == (text.encode(word) or [text.unk_id])
    if "\x01" not in words:
        assert source[1:-1] == text.encode(pair[0])
    cut = encode("tagged", [pair], labels, max_length=8)
    assert rows(cut.pairs.target)[0] == [*target[:-1][:7], labels.pad_id]
    assert cut.cut == (len(source) > 8)


@settings(deadline=None, max_examples=30)
@given(
    number=st.integers(0, 40),
    max_length=st.integers(30, 80),
    stride=st.none() | st.integers(1, 60),
)
def test_answers_are_found_in_windows(number, max_length, stride):
    """The tokens of the target are those of the answer, in every window that has all
    of it, by default at least in one; the others point to the beginning.
    """
    text = vocabulary()
    context = " ".join(LINES[:8])
    words = context.split(" ")
    begin = len(" ".join(words[:number])) + (number > 0)
    answer = words[number]
    pair = f"which?\t{context}", f"{begin} {begin + len(answer)}"
    kind = LabelVocabulary.of_kind("spans")
    found = encode("spans", [pair], kind, max_length=max_length, stride=stride)
    sources, targets = rows(found.pairs.source), rows(found.pairs.target)
    assert all(len(source) <= max_length for source in sources)
    held = [
        text.decode(source[a : b + 1])
        for source, (a, b) in zip(sources, targets, strict=True)
        if (a, b) != (0, 0)
    ]
    # An answer may lie across the windows of a wide stride.
    assert held or stride is not None
    assert {*held} <= {text.decode(text.encode(answer))}
    head = [text.bos_id, *text.encode("which?"), text.eos_id]
    assert all(source[: len(head)] == head for source in sources)
    seen = {token for source in sources for token in source[len(head) : -1]}
    assert seen == {*text.encode(context)}
    missing = encode("spans", [(pair[0], "-1 -1")], kind, max_length=max_length)
    assert {*map(tuple, rows(missing.pairs.target))} == {(0, 0)}


@settings(deadline=None, max_examples=30)
@given(
    words=st.integers(1, 40),
    max_length=st.integers(9, 40),
    stride=st.none() | st.integers(1, 60),
)
def test_a_token_is_central_in_one_window(words, max_length, stride):
    """That with the most tokens on its poorer side, then the longest, then the
    first.
    """
    text = vocabulary()
    context, frame = " ".join(["file"] * words), make_frame(vocabularies(), ("", ""))
    windows = question_windows([], context, text, frame, max_length, stride)
    for token in range(len(text.encode(context))):
        around, owners = [], []
        for number, window in enumerate(windows):
            left, size = token - window.start, len(window.places)
            if 0 <= left < size:
                around.append((min(left, size - 1 - left) + size / 100, -number))
                owners += [number] * window.central[left]
        assert owners == [-max(around)[1]]


def test_unknown_labels_and_no_room():
    labels = LabelVocabulary.from_labels(["positive", "negative"])
    with pytest.raises(InputError, match=r"'a b': no label 'negativ'.*mean negative"):
        encode("labelled", [("a b", "negativ")], labels)
    with pytest.raises(InputError, match="2 words and 1 tags"):
        encode("tagged", [("a b", "positive")], labels)
    with pytest.raises(InputError, match="max_length=2 has no room for a text"):
        encode("masked", [("a", "a")], max_length=2)
    spans = LabelVocabulary.of_kind("spans")
    with pytest.raises(InputError, match="no room for a question"):
        encode("spans", [("a\tb", "0 1")], spans, max_length=3)


def test_validation_of_text():
    """Windows divide it; without them a text that is too long is refused, as one that
    has no token.
    """
    config = DataConfig(kind="text", max_length=16, window=16)
    pairs = [Pair(line, line) for line in LINES[:9]]
    both = vocabularies(template=None)
    whole = encode_examples(pairs, both, config).pairs.target.tokens
    windows = encode_validation(pairs, both, config, 16).pairs
    assert windows.target.take(np.arange(len(windows))).tokens.tolist() == [*whole]
    config = dataclasses.replace(config, window=None)
    with pytest.raises(InputError, match=r"text \d+ has \d+ tokens .* set data.window"):
        encode_validation(pairs, both, config, 16)
    with pytest.raises(InputError, match="none of its texts has a token"):
        encode_validation([Pair("\x01", "\x01")], both, config, 16)


def test_what_is_dropped_and_cut_is_counted():
    """Texts without a token and long ones are dropped, labelled ones are cut."""
    texts = ["a b", "\x01", " ".join(LINES[:9])]
    config = DataConfig(kind="text", max_length=24)
    piece = Tokenizer(vocabularies(template=None), config, ("", ""))(
        [Pair(text, text) for text in texts]
    )
    assert piece.counts.dropped == {"empty": 1, "max_length": 1}
    assert len(piece.pairs) == piece.counts.kept == 1
    labels = LabelVocabulary.from_labels(["0", "1"])
    config = DataConfig(kind="labelled", max_length=24)
    piece = Tokenizer(vocabularies(labels), config, ("", ""))(
        [Pair(text, "1") for text in texts]
    )
    assert piece.counts.dropped["empty"] == 1
    assert piece.counts.changed == {"cut": 1}
    assert piece.pairs.source.lengths.max() == 24


def test_frames_with_two_texts():
    """Text cannot spell the mask; a frame has at most one second text, after the
    first.
    """
    text = vocabulary()
    assert text.mask_id == 4
    assert text.mask_id not in text.encode("a <mask> b")
    frame = make_frame(vocabularies(), ("", ""))
    assert (frame.added, frame.source_between) == (2, (text.eos_id,))
    for source in (["{text2}", "{text}"], ["{text}", "{text2}", "{text2}"]):
        with pytest.raises(InputError, match=r"has \{text2\} once, after \{text\}"):
            Template(source=tuple(source))
    with pytest.raises(InputError, match=r"no part '\{text2\}'"):
        Template(target=("{text2}", "{text}", "{eos}"))
    assert Template.from_json(ROBERTA.to_json()) == ROBERTA


def test_byte_level_pieces():
    """White space survives, tags and answers are found as with other pieces."""
    pytest.importorskip("tokenizers")
    code = "def f(x):\n    return  x\n\n# \u00fc\u20ac \u2028\n"
    text = Vocabulary.train([code, *LINES], 400, model="bytes", mask=True)
    assert text.decode(text.encode(code), lines=True) == code
    assert text.decode(text.encode("a\nb")) == "a b"
    assert text.size == 400
    assert text.mask_id not in text.encode("<mask>")
    assert text == Vocabulary.train([code, *LINES], 400, model="bytes", mask=True)
    labels = LabelVocabulary.from_labels(["A", "B", "C"])
    both = Vocabularies(text, labels, ENCODER)
    config = DataConfig(kind="tagged")
    found = encode_examples([Pair("open the file", "A B C")], both, config).pairs
    assert found.source[0][1:-1].tolist() == text.encode("open the file")
    tags = [tag for tag in found.target[0].tolist() if tag < 3]
    assert tags == [0, 1, 2]
    both = Vocabularies(text, LabelVocabulary.of_kind("spans"), ENCODER)
    pair = Pair("which?\topen the file.", "9 13")
    found = encode_examples([pair], both, DataConfig(kind="spans")).pairs
    begin, end = found.target[0]
    assert text.decode(found.source[0][begin : end + 1]).strip() == "file"
    with pytest.raises(InputError, match="bytes and special pieces need 260"):
        Vocabulary.train(LINES, 100, model="bytes")
    with pytest.raises(InputError, match="allows at most"):
        Vocabulary.train(["a b"], 300, model="bytes")


def test_labels_round_trip(tmp_path):
    """Through files; sorted, numbers as numbers; what is no label is refused."""
    pairs = [Pair("a", label) for label in ["10", "9", "", "9"]]
    found = LabelVocabulary.collect("labelled", None, pairs)
    assert found.labels == ("9", "10")
    assert found.decode([1, 0, found.pad_id]) == "10 9"
    given = LabelVocabulary.collect("labelled", "b, a", [])
    both = Vocabularies(vocabulary(), given, ENCODER)
    both.save(tmp_path)
    again = Vocabularies.load(tmp_path)
    assert (again, again.hash) == (both, both.hash)
    assert again.labels.labels == ("b", "a")
    assert both.text_hash == vocabularies().hash != both.hash
    tags = LabelVocabulary.collect("tagged", None, [Pair("a b", "O B-X")])
    assert tags.labels == ("B-X", "O")
    number = LabelVocabulary.of_kind("scored")
    assert number.decode(number.encode("0.5")) == "0.5"
    assert Vocabularies(vocabulary(), number).token_dtype == "<i4"
    for kind, named, given in (
        ("labelled", "a,a", []),
        ("labelled", "a", []),
        ("labelled", None, [Pair("a", "x")]),
        ("labelled", None, [Pair("a", str(i)) for i in range(10_001)]),
    ):
        with pytest.raises(InputError):
            LabelVocabulary.collect(kind, named, given)
