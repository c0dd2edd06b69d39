"""Text of one side and text with labels is found by name, and broken text is refused in
one line.
"""

import gzip
import json

import numpy as np
import pytest

from jaxformer.data import labelled
from jaxformer.data.config import DataConfig
from jaxformer.data.corpus import TrainingText, load_evaluation
from jaxformer.data.labelled import begin_entities
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.texts import library_files
from jaxformer.errors import InputError


def read(name, kind):
    return list(load(name, "", "", kind))


def texts(name, kind="text"):
    pairs = read(name, kind)
    assert all(pair.source == pair.target for pair in pairs)
    return [pair.source for pair in pairs]


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def test_files_of_text(tmp_path):
    """Lines, documents and whole files; patterns in the order of names, compressed or
    not. An empty file is no document.
    """
    path = write(tmp_path / "a.txt", "one\n  two\n\n\nthree\n")
    assert texts(f"text:{path}") == ["one", "  two", "", "", "three"]
    assert texts(f"documents:{path}") == ["one\n  two", "three"]
    assert texts(f"files:{path}", "masked") == ["one\n  two\n\n\nthree"]
    write(tmp_path / "code" / "empty.py", "")
    write(tmp_path / "code" / "b,1.py", "b\n\tb\n")
    with gzip.open(tmp_path / "code" / "a.py.gz", "wt") as file:
        file.write("a")
    assert texts(f"files:{tmp_path}/**/*.py*") == ["a", "b\n\tb"]
    assert texts(rf"files:{tmp_path}/code/b\,1.py") == ["b\n\tb"]
    lines = [{"text": "x\ny", "body": "z"}]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, lines)))
    assert texts(f"jsonl:{path}") == ["x\ny"]
    assert texts(f"jsonl:{path}#body") == ["z"]


def test_the_library_of_python_is_divided():
    """Each file is in one split, whatever the machine; tests are in none."""
    splits = [set(library_files(split)) for split in ("train", "valid", "test")]
    names = {path.name for split in splits for path in split}
    assert sum(map(len, splits)) == len(set.union(*splits))
    assert {"argparse.py", "ast.py", "textwrap.py"} <= names
    assert "test_argparse.py" not in names
    assert len(splits[0]) > 10 * len(splits[1]) > 0 < len(splits[2])
    assert library_files("valid") == sorted(splits[1])


def test_bundled_text():
    """Both languages in turn: as texts, or with the language as a label."""
    pairs = list(load("bundled:en-de/valid", "en", "de"))
    assert texts("bundled:en-de/valid")[:4] == [*pairs[0], *pairs[1]]
    found = read("bundled:en-de/valid", "labelled")
    assert found[:2] == [Pair(pairs[0].source, "en"), Pair(pairs[0].target, "de")]


def test_labelled_tables(tmp_path):
    """Quotes are literal. Columns have numbers, or names that the first line has."""
    rows = ["q\t#1 String\t#2 String", '1\tsay "a\t"b" c', "0\td\t"]
    path = write(tmp_path / "mrpc.tsv", "\n".join(rows))
    pairs = [Pair('say "a\t"b" c', "1"), Pair("d\t", "0")]
    assert read(f"tsv:{path}##1 String,#2 String,q", "labelled") == pairs
    assert read(f"tsv:{path}#2,3,1", "labelled")[1:] == pairs
    cola = write(tmp_path / "cola.tsv", "gj04\t0\t*\tThey drank.\n")
    assert read(f"tsv:{cola}#4,2", "labelled") == [Pair("They drank.", "0")]
    assert read(f"tsv:{cola}#4,2", "scored") == [Pair("They drank.", "0")]


def test_labelled_records(tmp_path):
    """A second text is absent, or empty, which is not the same. Labels may be numbers;
    no label is dropped by cleaning.
    """
    records = [
        {"text": "a\tb", "label": 3},
        {"text": "a", "text2": "", "label": "x"},
        {"text": "a", "label": -1},
        {"text": "a", "label": "-"},
    ]
    path = write(tmp_path / "r.jsonl", "\n".join(map(json.dumps, records)))
    labels = [("a b", "3"), ("a\t", "x"), ("a", ""), ("a", "")]
    assert read(f"jsonl:{path}", "labelled") == labels
    config = DataConfig(kind="labelled", labels="3,x")
    assert load_evaluation(f"jsonl:{path}", config)[0] == labels[:2]
    numbers = [{"a": "x", "b": 0.5}, {"a": "y", "b": -1}]
    path = write(tmp_path / "s.jsonl", "\n".join(map(json.dumps, numbers)))
    assert read(f"jsonl:{path}#a,b", "scored") == [("x", "0.5"), ("y", "-1")]
    of_tfds = [({"text": "a", "label": np.int64(1)}, "record 1")]
    (pair,) = labelled._read_labelled(lambda: iter(of_tfds), [], "labelled")
    assert pair == Pair("a", "1")


def test_tagged_words(tmp_path):
    """Sentences end at blank lines and at borders of documents."""
    lines = [
        "-DOCSTART- -X- O O",
        "",
        "EU NNP I-NP I-ORG",
        "ok VB O O",
        "",
        "",
        "x a O O",
    ]
    path = write(tmp_path / "c.txt", "\n".join(lines))
    expected = [Pair("EU ok", "B-ORG O"), Pair("x", "O")]
    assert read(f"conll:{path}", "tagged") == expected
    assert read(f"conll:{path}#1,2", "tagged")[0] == Pair("EU ok", "NNP VB")
    path = write(tmp_path / "t.tsv", "10 000\tO\nkm\tO\n")
    (pair,) = read(f"conll:{path}", "tagged")
    assert len(pair.source.split(" ")) == 2


def test_entities_begin_with_b():
    """Neighbours of one type stay apart; tags of IOB2 and others stay."""
    one = ["I-A", "I-A", "B-A", "O", "I-B", "I-A"]
    two = ["B-A", "I-A", "B-A", "O", "B-B", "B-A"]
    assert begin_entities(one) == two == begin_entities(two)
    assert begin_entities(["NN", "S-A", "O"]) == ["NN", "S-A", "O"]


def squad(answers, context="It is in\tParis."):
    asked = {"id": "7", "question": "Where?\n", "answers": answers}
    return {"data": [{"paragraphs": [{"context": context, "qas": [asked]}]}]}


def test_questions(tmp_path):
    """The places of answers stay those of the text, in characters."""
    answers = [
        {"text": "Paris", "answer_start": 9},
        {"text": "Paris.", "answer_start": 9},
    ]
    path = write(tmp_path / "q.json", json.dumps(squad(answers)))
    (pair,) = read(f"squad:{path}", "spans")
    assert pair == ("Where? \tIt is in Paris.", "9 14 9 15")
    path = write(tmp_path / "n.json", json.dumps(squad([]), indent=1))
    assert read(f"squad:{path}", "spans")[0].target == "-1 -1"


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        (
            "text",
            "tsv:F",
            "a",
            r"no data set 'tsv:.*' of data.kind=text: a name starts",
        ),
        ("text", "python:trian", "", "no data set 'python:trian'.*mean python:train"),
        ("text", "jsonl:F", '{"body": "a"}', "line 1: no field 'text': .* body"),
        ("text", "jsonl:F#a,b", "{}", "must name one field"),
        ("masked", "documents:F", "", "is empty"),
        ("labelled", "tsv:F", "a\tx\nb", "line 2: column 2 of 1"),
        ("labelled", "tsv:F#txt,label", "text\tlabel", "no column 'txt' .*mean text"),
        ("labelled", "tsv:F#1", "a\tb", "must name a text"),
        ("labelled", "jsonl:F", '{"text": 3, "label": 1}', "'text' holds int"),
        ("scored", "tsv:F", "a\tnan", "line 1: 'nan' is no finite number"),
        ("tagged", "conll:F", "word", "line 1: 1 columns"),
        ("tagged", "conll:F#1", "a b", "columns of word and tag"),
        ("spans", "squad:F", "{", "not JSON"),
        ("spans", "squad:F", "[]", "not the form of SQuAD"),
        (
            "spans",
            "squad:F",
            json.dumps(squad([{"text": "Rome", "answer_start": 9}])),
            "question '7': the answer 'Rome' is not at character 9",
        ),
    ],
)
def test_broken_text_is_refused(tmp_path, kind, name, content, message):
    path = write(tmp_path / "file", content)
    with pytest.raises(InputError, match=message) as error:
        read(name.replace("F", str(path)), kind)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "text", "max_length_ratio": 3.0}, "is for data.kind=pairs, not text"),
        (
            {"kind": "tagged", "unicode_normalization": "NFC"},
            "not tagged: leave it out",
        ),
        ({"kind": "labelled", "packing": True}, "data.packing=True is for"),
        ({"kind": "masked", "window": 8}, "is for data.kind=text, not masked"),
        ({"kind": "text", "window": 512}, "is more than data.max_length=256"),
        ({"kind": "text", "window": 8, "packing": True}, "fills rows already"),
        ({"labels": "a,b"}, "data.kind=labelled or tagged, not pairs"),
        ({"vocabulary_model": "bytes", "byte_fallback": True}, "SentencePiece"),
        ({"kind": "words"}, "data.kind must be one of"),
    ],
)
def test_keys_of_other_kinds_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        DataConfig(**options)


def test_mixtures_have_every_kind(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    name = f"2 * text:{path} + documents:{path}"
    text = TrainingText.open(DataConfig(kind="text", train=name))
    assert [len(list(corpus)) for corpus in text.corpora] == [2, 1]
    with pytest.raises(InputError, match="needs blanks around"):
        TrainingText.open(DataConfig(kind="text", train=f"2*documents:{path}"))
