import hashlib
import json
import pickle
import random

import pytest

from jaxformer.data import sources
from jaxformer.data.sources import escape, load
from jaxformer.errors import InputError


def write(path, content):
    path.write_bytes(content)
    return path


def read(name, *languages):
    return list(load(name, *(languages or ("en", "de"))))


def refuse(name, message, *languages):
    with pytest.raises(InputError, match=message) as error:
        read(name, *languages)
    assert "\n" not in str(error.value)


def test_text_files_stay_aligned(tmp_path):
    """Line i of one file is with line i of the other, also where one is empty."""
    write(tmp_path / "a.en", b"one\n\nthree\nfour\n")
    write(tmp_path / "a.de", b"eins\nzwei\n\nvier")
    texts = [("one", "eins"), ("", "zwei"), ("three", ""), ("four", "vier")]
    assert read(f"text:{tmp_path}/a.en,{tmp_path}/a.de") == texts
    write(tmp_path / "a.de", b"eins\nzwei\n")
    refuse(f"text:{tmp_path}/a.en,{tmp_path}/a.de", r"a\.en has 4 lines .*a\.de has 2")


def test_paths_as_people_type_them(tmp_path, monkeypatch):
    """A comma in a path, a blank after the comma, and ``~`` for the home folder; a
    corpus says which files it reads.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    source, target = tmp_path / "a, b.en", tmp_path / "a, b.de"
    write(source, b"one\n")
    write(target, b"eins\n")
    for name in (
        f"text:{escape(source)},{escape(target)}",
        rf"text:{tmp_path}/a\, b.en, {tmp_path}/a\, b.de",
        r"text:~/a\, b.en,~/a\, b.de",
        "text:~/*.en, ~/*.de",
    ):
        corpus = load(name, "en", "de")
        assert list(corpus) == [("one", "eins")]
        assert corpus.files == (source, target)
    refuse(f"text:{source},{target}", r"a comma in a path: \\,")


def test_tsv(tmp_path):
    """Columns are split only at tabs; nothing is quoted; empty ones count."""
    content = 'one "1"\teins, \u2028\tx\n\tzwei\tx\nthree\t\tx\r\n'
    name = f"tsv:{write(tmp_path / 'a.tsv', content.encode())}"
    texts = [('one "1"', "eins, \u2028"), ("", "zwei"), ("three", "")]
    assert read(name) == texts
    assert read(f"{name}#3,1") == [("x", source) for source, _ in texts]
    message = "column 4 of 3: separate columns with tabs"
    refuse(f"{name}#1,4", rf"a\.tsv, line 1: {message}")
    for columns in ("#0,1", "#2,2"):
        refuse(f"{name}{columns}", "two columns, counted from 1")
    write(tmp_path / "a.tsv", b"one\teins\n\ntwo\tzwei")
    refuse(name, r"a\.tsv, line 2: column 2 of 1: .*, and remove empty lines")


@pytest.mark.parametrize("nested", [False, True])
def test_jsonl_by_language(tmp_path, nested):
    """The languages name the fields, and so the direction, at the top or under
    `translation`.
    """
    draw = random.Random(11).choices
    texts = [
        ("".join(draw('aä\u2028\n\t"', k=9)), "".join(draw("bß😀 ", k=9)))
        for _ in range(50)
    ]
    records = [
        {"id": n, "en": en, "fr": "", "de": de} for n, (en, de) in enumerate(texts)
    ]
    if nested:
        records = [{"id": "x", "translation": record} for record in records]
    lines = [json.dumps(one, ensure_ascii=n % 2 > 0) for n, one in enumerate(records)]
    path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
    assert read(f"jsonl:{path}", "en", "de") == texts
    assert read(f"jsonl:{path}", "de", "en") == [(de, en) for en, de in texts]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"en": "two"}', "no language 'de': the fields are en$"),
        (b'{"en": "two", "dex": ""}', r"fields are en, dex; did you mean dex\?"),
        (b'{"en": "two", "de": ["zwei"]}', "field 'de' holds list and not text"),
        (b'["two", "zwei"]', "needs an object with the fields 'en' and 'de'"),
        (b'{"en": "two"', r"not JSON \(.*, column 13\); write one object a line"),
        (b'{"en": "two", "de": "\\ud800"}', r"field 'de' is not UTF-8 \(surrogates"),
    ],
)
def test_a_bad_line_of_jsonl_is_named(tmp_path, line, message):
    good = b'{"en": "one", "de": "eins"}'
    path = write(tmp_path / "a.jsonl", b"\n".join([good, line, good]))
    refuse(f"jsonl:{path}", rf"a\.jsonl, line 2: .*{message}")


def test_a_corpus_is_read_again_each_time(tmp_path):
    """Two iterations at once, or in another process, have the same pairs."""
    write(tmp_path / "a.tsv", b"".join(b"s %d\tt %d\n" % (n, n) for n in range(100)))
    write(tmp_path / "a.jsonl", b'{"en": "one", "de": "eins"}')
    names = [
        f"tsv:{tmp_path}/a.tsv",
        f"text:{tmp_path}/a.tsv,{tmp_path}/a.tsv",
        f"jsonl:{tmp_path}/a.jsonl",
        "bundled:en-de/valid",
        "synthetic:copy/valid",
    ]
    for name in names:
        corpus = load(name, "en", "de")
        assert corpus.name == name
        assert all(a == b for a, b in zip(corpus, corpus, strict=True))
        assert list(pickle.loads(pickle.dumps(corpus))) == list(corpus)


def test_the_bundled_corpus_in_both_directions():
    splits = [read(f"bundled:en-de/{split}") for split in ("train", "valid", "test")]
    assert [len(pairs) for pairs in splits] == [18_315, 500, 500]
    for codes in (("de", "en"), ("deu_Latn", "en_XX")):
        assert read("bundled:en-de/test", *codes) == [pair[::-1] for pair in splits[2]]
    assert any("ü" in pair.target for pair in splits[2])
    assert not any("ü" in pair.source for pair in splits[2])
    message = r"no language 'dee': it has en and de; did you mean de\?"
    refuse("bundled:en-de/train", message, "en", "dee")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bundled:en-de/dev", "there are bundled:en-de/train, bundled:en-de/valid, "),
        ("synthetic:copies/train", r"did you mean synthetic:copy/train\?"),
        ("tsv:", "something must follow"),
        (
            "",
            "starts with bundled: or text: or tsv: or jsonl: or synthetic: or tfds: o",
        ),
        ("prepare:x", r"or prepared:; did you mean prepared:\?"),
        ("t.en,t.de", r"; did you mean text:t\.en,t\.de\?$"),
        ("jsonl:t", "^no file t$"),
        ("tsv:t#1", r"no file t#1 \(tsv:t#1: the columns are two numbers: tsv:FILE#"),
        ("text: ,b", "must name one source and one target file: text:SOURCE,TARGET"),
    ],
)
def test_an_unknown_name_names_what_exists(name, message):
    refuse(name, message)


def test_a_prepared_folder_without_its_scheme(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    refuse(str(tmp_path), rf"; did you mean prepared:{tmp_path}\?$")


def test_the_synthetic_tasks():
    """No sequence occurs twice, and none is both trained on and tested. Every machine
    draws the same.
    """
    splits = {split: read(f"synthetic:reverse/{split}") for split in sources.SPLITS}
    assert [len(pairs) for pairs in splits.values()] == [20_000, 500, 500]
    everything = [pair for pairs in splits.values() for pair in pairs]
    digest = hashlib.sha256("\n".join(pair.source for pair in everything).encode())
    assert digest.hexdigest().startswith("9e7463b4f442c417")
    assert len({pair.source for pair in everything}) == 21_000
    assert all(pair.target == pair.source[::-1] for pair in everything)
    for split, pairs in splits.items():
        lengths = {len(pair.source.split(" ")) for pair in pairs}
        assert set(range(3, 13)) <= lengths <= set(range(1, 13))
        letters = {letter for pair in pairs for letter in pair.source}
        assert letters == set("abcdefghijklmnopqrstuvwxyz ")
        copies = [(pair.source, pair.source) for pair in pairs]
        assert read(f"synthetic:copy/{split}") == copies
