"""Vectors of words from text files of other programs."""

import numpy as np
import pytest
import tokenizers

from jaxformer.data.sources import load
from jaxformer.data.vocabulary import TOKENIZER, Vocabulary
from jaxformer.data.word_vectors import read_vectors
from jaxformer.errors import InputError

SENTENCES = [text for pair in load("bundled:en-de/valid", "en", "de") for text in pair]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


def make_vocabulary(model):
    if model != "words":
        return Vocabulary.train(SENTENCES, 500, model=model)
    words = {word: id_ for id_, word in enumerate([*SPECIAL, "table", "the", "New"])}
    model = tokenizers.models.WordLevel(words, unk_token="<unk>")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Vocabulary.from_files({TOKENIZER: backend.to_str().encode()})


@pytest.mark.parametrize("model", ["bpe", "unigram", "bytes", "words"])
@pytest.mark.parametrize("header", ["", "{} 3\n"], ids=["GloVe", "word2vec"])
def test_rows_of_whole_words(tmp_path, model, header):
    """The tokens that begin with a space get the vector of their word, each its first;
    special pieces, parts of words and words of several tokens or with blanks get none.
    """
    vocabulary = make_vocabulary(model)
    names = vocabulary.pieces(range(vocabulary.size))
    mark = "" if model == "words" else "▁"
    whole = {
        name.removeprefix(mark): token
        for token, name in enumerate(names)
        if name.startswith(mark) and name.removeprefix(mark).isalpha()
    }
    parts = [name for name in names if name.isalpha() and name not in whole]
    words = ["</s>", *whole, *parts, "the\xa0one", "at a@b.c", "notoneword", *whole]
    vectors = np.random.default_rng(0).normal(size=(len(words), 3)).astype(np.float32)
    lines = [
        f"{word} {' '.join(map(str, vector.tolist()))} \n"
        for word, vector in zip(words, vectors, strict=True)
    ]
    file = tmp_path / "vectors.txt"
    file.write_text(header.format(len(words)) + "".join(lines), encoding="utf-8")
    tokens, rows = read_vectors(str(file), vocabulary, 3)
    assert [*tokens] == [*whole.values()]
    assert len(whole) >= 3
    np.testing.assert_array_equal(rows, vectors[1 : len(whole) + 1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the 1 2", "vectors of 2 numbers, and the model is 3 wide: set model.d_model"),
        ("9 2\nthe 1 2", "vectors of 2 numbers"),
        ("2 3\nthe 1 2 3", "is cut: it has 1 of 2 vectors"),
        ("notoneword 1 2 3", "no word of .* is one token of the vocabulary"),
        ("the 1 2 x", "could not convert string to float: 'x'"),
        ("the 1 nan 3", "not finite, or only zeros"),
        ("the 0 0 0", "not finite, or only zeros"),
    ],
)
def test_what_does_not_fit(tmp_path, line, message):
    """Another width, no known word and no numbers are refused in one line."""
    file = tmp_path / "vectors.txt"
    file.write_text(f"{line}\n")
    with pytest.raises(InputError, match=message) as refusal:
        read_vectors(str(file), make_vocabulary("words"), 3)
    assert "\n" not in str(refusal.value)
