import doctest
import gzip
import json
import pickle
import random
import subprocess
import sys
import tracemalloc

import pytest

from jaxformer.data import load, records, sources
from jaxformer.data.sources import escape, reversal
from jaxformer.errors import InputError


def write(path, content):
    path.write_bytes(content)
    return path


def test_text_files_stay_aligned(tmp_path):
    """Line i of one file is with line i of the other, also where one is empty."""
    write(tmp_path / "a.en", b"one\n\nthree\nfour\n")
    write(tmp_path / "a.de", b"eins\nzwei\n\nvier")
    pairs = load(f"text:{tmp_path}/a.en,{tmp_path}/a.de", "en", "de")
    assert list(pairs) == [
        ("one", "eins"),
        ("", "zwei"),
        ("three", ""),
        ("four", "vier"),
    ]


def test_unequal_files_are_refused_with_both_counts(tmp_path):
    """No pairing by the shorter file."""
    write(tmp_path / "a.en", b"one\ntwo\nthree\n")
    write(tmp_path / "a.de", b"eins\nzwei\n")
    corpus = load(f"text:{tmp_path}/a.en,{tmp_path}/a.de", "en", "de")
    with pytest.raises(InputError, match=r"a\.en has 3 lines .*a\.de has 2"):
        list(corpus)


def test_patterns_read_several_files_as_one(tmp_path):
    """The files of both sides follow one another in the order of their names."""
    for part, numbers in {"1": range(3), "2": range(3, 8)}.items():
        write(
            tmp_path / f"{part}.en.gz",
            gzip.compress("".join(f"en {n}\n" for n in numbers).encode()),
        )
        write(tmp_path / f"{part}.de", "".join(f"de {n}\n" for n in numbers).encode())
    pairs = [(f"en {n}", f"de {n}") for n in range(8)]
    assert list(load(f"text:{tmp_path}/*.en.gz,{tmp_path}/*.de", "en", "de")) == pairs
    write(tmp_path / "a.tsv", b"s 0\tt 0\n")
    write(tmp_path / "b.tsv", b"s 1\tt 1")
    assert list(load(f"tsv:{tmp_path}/*.tsv", "en", "de")) == [
        ("s 0", "t 0"),
        ("s 1", "t 1"),
    ]


def test_commas_in_paths(tmp_path):
    """A path with a comma can be named."""
    (tmp_path / "a, b").mkdir()
    source, target = (
        write(tmp_path / "a, b" / "x.en", b"one\n"),
        write(tmp_path / "a, b" / "x,y.de", b"eins\n"),
    )
    assert list(load(f"text:{escape(source)},{escape(target)}", "en", "de")) == [
        ("one", "eins")
    ]
    with pytest.raises(InputError, match=r"a comma in a path: \\,"):
        load(f"text:{source},{target}", "en", "de")


@pytest.mark.parametrize(
    "name", ["text:one", "text:one,", "text:,two", "text:one,two,three"]
)
def test_text_needs_two_files(name):
    with pytest.raises(InputError, match="text:SOURCE,TARGET"):
        load(name, "en", "de")


def test_missing_files_are_found_at_once(tmp_path):
    for name in (
        f"text:{tmp_path}/a,{tmp_path}/b",
        f"tsv:{tmp_path}/a",
        f"jsonl:{tmp_path}/a",
    ):
        with pytest.raises(InputError, match=r"^no file .*/a$"):
            load(name, "en", "de")


def test_tsv(tmp_path):
    """Columns are split only at tabs; nothing is quoted; empty ones count."""
    path = write(
        tmp_path / "a.tsv",
        'one "1"\teins, \u2028\tx\n\tzwei\tx\nthree\t\tx\r\n'.encode(),
    )
    assert list(load(f"tsv:{path}", "en", "de")) == [
        ('one "1"', "eins, \u2028"),
        ("", "zwei"),
        ("three", ""),
    ]
    assert list(load(f"tsv:{path}#3,1", "en", "de")) == [
        ("x", 'one "1"'),
        ("x", ""),
        ("x", "three"),
    ]
    with pytest.raises(
        InputError,
        match=r"a\.tsv, line 1: column 4 of 3: separate source and target with a tab",
    ):
        list(load(f"tsv:{path}#1,4", "en", "de"))
    for columns in ("#0,1", "#2,2"):
        with pytest.raises(InputError, match="two columns, counted from 1"):
            load(f"tsv:{path}{columns}", "en", "de")


def test_a_row_of_one_column_is_named(tmp_path):
    path = write(tmp_path / "a.tsv", b"one\teins\ntwo zwei\n")
    with pytest.raises(
        InputError,
        match=r"a\.tsv, line 2: column 2 of 1: separate source and target with a tab",
    ):
        list(load(f"tsv:{path}", "en", "de"))


def test_jsonl_by_language(tmp_path):
    """The languages name the fields, and so the direction, at the top or under
    `translation`.
    """
    draw = random.Random(11)
    texts = [
        (
            "".join(draw.choices('aä\u2028\n\t"', k=9)),
            "".join(draw.choices("bß😀 ", k=9)),
        )
        for _ in range(50)
    ]
    flat = [
        json.dumps({"id": n, "en": en, "de": de}, ensure_ascii=n % 2 > 0)
        for n, (en, de) in enumerate(texts)
    ]
    nested = [
        json.dumps({"id": "x", "translation": {"de": de, "fr": "", "en": en}})
        for en, de in texts
    ]
    for lines in (flat, nested):
        path = write(tmp_path / "a.jsonl", "\n".join(lines).encode())
        assert list(load(f"jsonl:{path}", "en", "de")) == texts
        assert list(load(f"jsonl:{path}", "de", "en")) == [(de, en) for en, de in texts]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"en": "two"}', r"no language 'de': the fields are en$"),
        (
            b'{"en": "two", "deu": "zwei"}',
            r"no language 'de': the fields are en, deu; did you mean deu\?",
        ),
        (
            b'{"translation": {"en": "two", "fr": "deux"}}',
            r"no language 'de': the fields are en, fr",
        ),
        (b'{"en": "two", "de": null}', r"field 'de' holds NoneType and not text"),
        (b'{"en": "two", "de": ["zwei"]}', r"field 'de' holds list and not text"),
        (b'["two", "zwei"]', r"needs an object with the fields 'en' and 'de'"),
        (
            b'{"en": "two", "de": "zwei"',
            r"not JSON \(.*, column 27\); write one object a line",
        ),
        (b"", r"not JSON"),
        pytest.param(
            b"[" * 100_000, r"not JSON \(its brackets are nested too deep\)", id="deep"
        ),
        (
            b'{"en": "two", "de": "zw\\ud800ei"}',
            r"field 'de' has U\+D800, half of a surrogate pair",
        ),
        (
            b'{"translation": {"en": "\\uDFFF", "de": "zwei"}}',
            r"field 'en' has U\+DFFF, half of a surrogate pair",
        ),
    ],
)
def test_a_bad_line_of_jsonl_is_named(tmp_path, line, message):
    good = b'{"en": "one", "de": "eins"}'
    path = write(tmp_path / "a.jsonl", b"\n".join([good, line, good]))
    with pytest.raises(InputError, match=rf"a\.jsonl, line 2: .*{message}") as error:
        list(load(f"jsonl:{path}", "en", "de"))
    assert "\n" not in str(error.value)


def test_a_corpus_is_read_anew_each_time(tmp_path):
    """Iterating twice, side by side, or in another process gives the same pairs."""
    write(tmp_path / "a.tsv", b"".join(b"s %d\tt %d\n" % (n, n) for n in range(100)))
    write(tmp_path / "a.en", b"one\ntwo\n")
    write(tmp_path / "a.jsonl", b'{"en": "one", "de": "eins"}')
    names = [
        f"tsv:{tmp_path}/a.tsv",
        f"text:{tmp_path}/a.en,{tmp_path}/a.en",
        f"jsonl:{tmp_path}/a.jsonl",
    ]
    for name in [*names, "bundled:en-de/valid", "synthetic:copy/valid"]:
        corpus = load(name, "en", "de")
        assert corpus.name == name
        first = list(corpus)
        assert all(a == b for a, b in zip(corpus, corpus, strict=True))
        assert list(pickle.loads(pickle.dumps(corpus))) == first == list(corpus)


def test_a_corpus_streams(tmp_path):
    """Pairs of 300 MB pass through a small part of that memory."""
    part = gzip.compress(
        b"".join(
            b"%d\t" % n + b"a sentence of words " * 250 + b"\n" for n in range(200)
        )
    )
    write(tmp_path / "a.tsv.gz", part * 300)
    tracemalloc.start()
    try:
        size = sum(
            len(pair.source) + len(pair.target)
            for pair in load(f"tsv:{tmp_path}/a.tsv.gz", "en", "de")
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 300_000_000
    assert peak < 0.05 * size


def test_the_bundled_corpus_in_both_directions():
    counts = [
        sum(1 for _ in load(f"bundled:en-de/{split}", "en", "de"))
        for split in ("train", "valid", "test")
    ]
    assert counts == [18_315, 500, 500]
    forward, backward = (
        list(load("bundled:en-de/test", *pair)) for pair in (("en", "de"), ("de", "en"))
    )
    assert [(pair.target, pair.source) for pair in forward] == backward
    assert any("ü" in pair.target for pair in forward)
    assert not any("ü" in pair.source for pair in forward)


@pytest.mark.parametrize(
    ("name", "source", "target", "message"),
    [
        (
            "bundled:en-de/dev",
            "en",
            "de",
            r"bundled:en-de/train, bundled:en-de/valid, bundled:en-de/test",
        ),
        ("bundled:en-de", "en", "de", r"did you mean bundled:en-de/"),
        ("bundled:en-fr/train", "en", "fr", r"there are bundled:en-de/train"),
        ("bundled:../data/en-de/train", "en", "de", r"there are bundled:en-de/train"),
        ("bundled:en-de/train", "en", "fr", r"no language 'fr': it has en and de"),
        ("bundled:en-de/train", "de", "de", r"both 'de'"),
        ("synthetic:reverse", "en", "de", r"synthetic:reverse/train"),
        ("synthetic:copies/train", "en", "de", r"did you mean synthetic:copy/train\?"),
        ("bundeld:en-de/train", "en", "de", r"did you mean bundled:\?"),
        ("bundled:en-de/train", "en", "dee", r"it has en and de; did you mean de\?"),
        ("json:a", "en", "de", r"did you mean jsonl:\?"),
        ("sacrebelu:wmt14", "en", "de", r"did you mean sacrebleu:\?"),
        ("jsonl:a", "en", "en", r"both 'en'"),
        ("tsv:", "en", "de", r"something must follow"),
        (
            "train.en",
            "en",
            "de",
            (
                r"bundled: or text: or tsv: or jsonl: or synthetic: or tfds: or hf: or"
                r" sacrebleu:"
            ),
        ),
        ("tsv", "en", "de", r"a name starts with bundled: or"),
        ("prepare:x", "en", "de", r"or prepared:; did you mean prepared:\?"),
        ("t.en,t.de", "en", "de", r"; did you mean text:t\.en,t\.de\?$"),
        ("a/t.tsv.gz", "en", "de", r"; did you mean tsv:a/t\.tsv\.gz\?$"),
        ("t.jsonl", "en", "de", r"; did you mean jsonl:t\.jsonl\?$"),
        (
            "tsv:t.tsv#1",
            "en",
            "de",
            (
                r"no file t\.tsv#1 \(tsv:t\.tsv#1: the columns are two numbers:"
                r" tsv:FILE#1,2\)"
            ),
        ),
        (
            "jsonl:t.jsonl#fr",
            "en",
            "de",
            (
                r"no file t\.jsonl#fr \(.*: the fields are named by the languages,"
                r" \[en>fr\]"
            ),
        ),
        ("text: ,b", "en", "de", r"must name one source and one target file"),
        ("", "en", "de", r"a name starts with bundled: or"),
    ],
)
def test_an_unknown_name_names_what_exists(name, source, target, message):
    with pytest.raises(InputError, match=message) as error:
        load(name, source, target)
    assert "\n" not in str(error.value)


def test_names_as_people_type_them(tmp_path, monkeypatch):
    """A blank after the comma, and ``~`` for the home folder; a corpus says which
    files it reads.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.en").write_text("one\n")
    (tmp_path / "a.de").write_text("eins\n")
    for name in (
        f"text:{tmp_path}/a.en, {tmp_path}/a.de",
        "text:~/a.en,~/a.de",
        "text:~/*.en, ~/*.de",
    ):
        corpus = load(name, "en", "de")
        assert [tuple(pair) for pair in corpus] == [("one", "eins")]
        assert corpus.files == (tmp_path / "a.en", tmp_path / "a.de")


def test_a_prepared_folder_without_its_kind(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=rf"; did you mean prepared:{tmp_path}\?$"):
        load(str(tmp_path), "en", "de")


def test_an_empty_line_of_a_table(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tb\n\nc\td\n")
    with pytest.raises(InputError, match=r"t\.tsv, line 2 is empty: remove it"):
        list(load(f"tsv:{tmp_path}/t.tsv", "en", "de"))


def test_the_reversal_task():
    splits = {
        split: list(load(f"synthetic:reverse/{split}", "forwards", "backwards"))
        for split in ("train", "valid", "test")
    }
    assert {split: len(pairs) for split, pairs in splits.items()} == {
        "train": 20_000,
        "valid": 500,
        "test": 500,
    }
    everything = [pair for pairs in splits.values() for pair in pairs]
    # nothing tested was trained on, nothing occurs twice
    assert len({pair.source for pair in everything}) == 21_000
    assert all(pair.target == pair.source[::-1] for pair in everything)
    for pairs in splits.values():
        lengths = {len(pair.source.split(" ")) for pair in pairs}
        assert lengths <= set(range(1, 13))
        assert set(range(3, 13)) <= lengths
        assert {letter for pair in pairs for letter in pair.source} == set(
            "abcdefghijklmnopqrstuvwxyz "
        )


def test_the_copy_task():
    """The same sequences as the reversal task's, unchanged."""
    for split in ("train", "valid", "test"):
        assert list(load(f"synthetic:copy/{split}", "a", "b")) == [
            (pair.source,) * 2 for pair in reversal(split)
        ]


def test_the_reversal_task_is_the_same_in_every_process():
    """Nothing depends on the hash seed or on what ran before."""
    code = (
        "from jaxformer.data.sources import reversal;"
        " print(hash(0), [pair.source for pair in reversal('valid')])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert str([pair.source for pair in reversal("valid")]) in runs.pop()


def test_the_examples_of_the_docstrings():
    assert all(doctest.testmod(module).attempted for module in (sources, records))
    assert not any(doctest.testmod(module).failed for module in (sources, records))
