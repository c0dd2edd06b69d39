import gzip
import io
import os
import random
import tarfile
import time
import tracemalloc
import zipfile
from xml.sax.saxutils import escape

import pytest

from jaxformer.data import archives
from jaxformer.data.archives import Files, Memory, Table, read_segments, unpack
from jaxformer.errors import InputError

SIDES = Files({"en": "training/corpus.de-en.en", "de": "training/corpus.de-en.de"})
WORDS = [
    "the",
    "cat",
    "–",
    "sat",
    "ü",
    "ß",
    "„quoted“",
    "100",
    "%",
    "«",
    "œuvre",
    "»",
    "漢字",
    "&amp;",
    "a<b",
]


def draw_lines(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randrange(12))) for _ in range(count)]


def text(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def tar(path, members, mode="w:gz"):
    """Write an archive of names with their content, or with a prepared TarInfo."""
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            member = (
                content
                if isinstance(content, tarfile.TarInfo)
                else tarfile.TarInfo(name)
            )
            if isinstance(content, bytes):
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            else:
                archive.addfile(member)
    return path


def entry(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def outputs(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir(exist_ok=True)
    return {"en": folder / "a.en", "de": folder / "a.de"}


def refused(archive, form, tmp_path, **options):
    with pytest.raises(InputError) as error:
        unpack(archive, form, outputs(tmp_path), **options)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path / "out") == []
    return str(error.value)


def members(english, german, form=SIDES):
    return [(form.members["en"], english), (form.members["de"], german)]


@pytest.mark.parametrize(
    ("name", "mode"),
    [("a.tgz", "w:gz"), ("a.tar.gz", "w:gz"), ("a.tar", "w"), ("a.zip", "")],
)
@pytest.mark.parametrize("prefix", ["", "./"])
def test_two_members_of_an_archive(tmp_path, name, mode, prefix):
    """Whatever their order and whatever else it holds, their lines come out as they
    are.
    """
    english, german = draw_lines(500, 1), draw_lines(500, 2)
    wanted = members(text(english), text(german))
    content = [
        ("README", b"\xff"),
        wanted[1],
        ("training/corpus.fr-en.en", b"x\n"),
        wanted[0],
        ("last", b""),
    ]
    content = [(prefix + name, data) for name, data in content]
    archive = (
        tar(tmp_path / name, content, mode)
        if mode
        else zipped(tmp_path / name, content)
    )
    paths = outputs(tmp_path)
    unpacked = unpack(archive, SIDES, paths)
    assert (unpacked.pairs, unpacked.skipped) == (500, 0)
    assert paths["en"].read_bytes() == text(english)
    assert paths["de"].read_bytes() == text(german)
    assert unpacked.sha256 == {
        language: archives.hashlib.sha256(paths[language].read_bytes()).hexdigest()
        for language in paths
    }


def test_gzipped_members_of_a_plain_archive(tmp_path):
    """The form of the French-English 10^9 corpus."""
    form = Files({"fr": "giga.fr.gz", "en": "giga.en.gz"})
    lines = draw_lines(300, 3)
    archive = tar(
        tmp_path / "giga.tar",
        [(name, gzip.compress(text(lines))) for name in form.members.values()],
        "w",
    )
    paths = {"en": tmp_path / "a.en", "fr": tmp_path / "a.fr"}
    assert unpack(archive, form, paths).pairs == 300
    assert paths["fr"].read_bytes() == paths["en"].read_bytes() == text(lines)


def test_line_ends_are_made_alike(tmp_path):
    r"""``\n`` alone splits; a byte order mark, ``\r\n`` and a missing last end
    change nothing.
    """
    line = "one\u2028two\x0bthree\x85four\rfive"
    english = f"\ufeff{line}\r\n\r\n last".encode()
    paths = outputs(tmp_path)
    unpack(tar(tmp_path / "a.tgz", members(english, b"1\n\n3\n")), SIDES, paths)
    assert paths["en"].read_bytes() == f"{line}\n\n last\n".encode()
    assert paths["de"].read_bytes() == b"1\n\n3\n"


def test_unequal_sides_are_refused(tmp_path):
    """With both counts, and nothing is left."""
    message = refused(
        tar(tmp_path / "a.tgz", members(b"1\n2\n3\n", b"1\n2\n")), SIDES, tmp_path
    )
    assert (
        "training/corpus.de-en.en has 3 lines and training/corpus.de-en.de has 2 lines"
        in message
    )


def test_invalid_utf8_is_named_by_member_and_line(tmp_path):
    """No replacement characters in a corpus."""
    message = refused(
        tar(tmp_path / "a.tgz", members(b"1\n2\n", b"1\nf\xfcnf\n")), SIDES, tmp_path
    )
    assert "a.tgz: training/corpus.de-en.de, line 2: not UTF-8" in message


def test_names_lead_nowhere(tmp_path):
    """Paths out of the folder, absolute names, links and devices in an archive write
    nothing.
    """
    victim = tmp_path / "victim"
    victim.write_text("kept")
    hostile = [
        ("../victim", b"x"),
        ("../out/a.fr", b"x"),
        (str(victim), b"x"),
        (f"training/../../{victim.name}", b"x"),
        ("out", entry("out", tarfile.SYMTYPE, str(tmp_path))),
        ("out/victim", b"x"),
        ("hard", entry("hard", tarfile.LNKTYPE, "/etc/passwd")),
        ("device", entry("device", tarfile.CHRTYPE)),
        ("pipe", entry("pipe", tarfile.FIFOTYPE)),
    ]
    paths = outputs(tmp_path)
    before = sorted(os.listdir(tmp_path))
    unpack(tar(tmp_path / "a.tgz", hostile + members(b"1\n", b"1\n")), SIDES, paths)
    assert victim.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "a.tgz"])
    assert sorted(os.listdir(tmp_path / "out")) == ["a.de", "a.en"]


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.CHRTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
    ],
)
def test_a_member_that_is_no_file_is_refused(tmp_path, kind):
    """A link under the name of a corpus does not read what it points at."""
    name = SIDES.members["de"]
    content = [(SIDES.members["en"], b"1\n"), (name, entry(name, kind, "/etc/passwd"))]
    assert "is a link, a device or a folder" in refused(
        tar(tmp_path / "a.tgz", content), SIDES, tmp_path
    )


def test_a_link_in_a_zip_archive_is_refused(tmp_path):
    link = zipfile.ZipInfo(SIDES.members["de"])
    link.external_attr = 0o120777 << 16
    archive = zipped(
        tmp_path / "a.zip", [(SIDES.members["en"], b"1\n"), (link, b"/etc/passwd")]
    )
    assert "is a link" in refused(archive, SIDES, tmp_path)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "a.tar"])
def test_a_missing_member_is_named(tmp_path, name):
    content = [("corpus.de-en.de", b"1\n"), (SIDES.members["en"], b"1\n")]
    archive = (
        zipped(tmp_path / name, content)
        if name == "a.zip"
        else tar(tmp_path / name, content, "w:gz" if name == "a.tgz" else "w")
    )
    assert f"{name} has no member training/corpus.de-en.de" in refused(
        archive, SIDES, tmp_path
    )


@pytest.mark.parametrize("name", ["a.tgz", "a.tar", "a.zip"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9])
def test_a_truncated_archive_is_refused(tmp_path, name, share):
    """And nothing half-written is left."""
    noise = text([random.Random(seed).randbytes(400).hex() for seed in range(500)])
    content = members(noise, noise)
    archive = (
        zipped(tmp_path / name, content)
        if name == "a.zip"
        else tar(tmp_path / name, content, "w:gz" if name == "a.tgz" else "w")
    )
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    message = refused(archive, SIDES, tmp_path)
    assert name in message
    assert "truncated or damaged" in message or "has no member" in message


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "a.tsv.gz"])
def test_a_damaged_archive_is_refused(tmp_path, name):
    """One byte in the middle is enough."""
    noise = text(
        [random.Random(seed).randbytes(400).hex() + "\tx" for seed in range(500)]
    )
    form = SIDES
    if name == "a.tsv.gz":
        archive, form = tmp_path / name, Table(("de", "en"))
        archive.write_bytes(gzip.compress(noise))
    else:
        archive = (zipped if name == "a.zip" else tar)(
            tmp_path / name, members(noise, noise)
        )
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0xFF
    archive.write_bytes(content)
    assert name in refused(archive, form, tmp_path)


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.tgz").write_bytes(b"<html>log in first</html>")
    assert "a.tgz is truncated or damaged" in refused(
        tmp_path / "a.tgz", SIDES, tmp_path
    )
    assert "no file" in refused(tmp_path / "missing.tgz", SIDES, tmp_path)


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "a.tsv.gz", "inner.tar"])
def test_a_bomb_does_not_fill_the_disk(tmp_path, name):
    """A small archive that grows without end is stopped at the limit."""
    bomb, form = b"0" * 99 + b"\n", SIDES
    bomb *= 100_000
    if name == "a.tsv.gz":
        archive, form = tmp_path / name, Table(("de", "en"))
        archive.write_bytes(gzip.compress(bomb))
    elif name == "inner.tar":
        form = Files({"en": "a.en.gz", "de": "a.de.gz"})
        archive = tar(
            tmp_path / name,
            members(gzip.compress(bomb), gzip.compress(bomb), form),
            "w",
        )
    else:
        archive = (zipped if name == "a.zip" else tar)(
            tmp_path / name, members(bomb, bomb)
        )
    assert archive.stat().st_size < 500_000
    assert f"{name} holds more than 1,000,000 bytes" in refused(
        archive, form, tmp_path, most_bytes=1_000_000
    )


def test_a_bomb_beside_the_members_counts(tmp_path):
    archive = tar(
        tmp_path / "a.tgz", [("other", bytes(10_000_000)), *members(b"1\n", b"1\n")]
    )
    assert "holds more than" in refused(archive, SIDES, tmp_path, most_bytes=1_000_000)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MOST_BYTES_A_LINE", 100_000)
    archive = tar(tmp_path / "a.tgz", members(b"1\n", b"1\n" + b"x" * 20_000_000))
    tracemalloc.start()
    message = refused(archive, SIDES, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "corpus.de-en.de, line 2: longer than 100,000 bytes" in message
    assert peak < 5_000_000


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="a device that is always full"
)
def test_a_full_disk_is_one_line(tmp_path):
    archive = tar(tmp_path / "a.tgz", members(b"1\n" * 50_000, b"1\n" * 50_000))
    paths = outputs(tmp_path)
    paths["de"].symlink_to("/dev/full")
    with pytest.raises(
        InputError, match=r"cannot unpack .*a\.tgz: No space left on device; make room"
    ):
        unpack(archive, SIDES, paths)
    assert os.listdir(tmp_path / "out") == []


def test_a_table_of_two_columns(tmp_path):
    """Rows of another number of columns are no pairs, and counted; both sides drop
    together.
    """
    german, english = draw_lines(400, 4), draw_lines(400, 5)
    rows = [f"{left}\t{right}" for left, right in zip(german, english, strict=True)]
    mixed = [*rows[:100], "alone", *rows[100:300], "one\ttwo\tthree", "", *rows[300:]]
    archive = tmp_path / "a.de-en.tsv.gz"
    archive.write_bytes(gzip.compress(text(mixed)))
    paths = outputs(tmp_path)
    unpacked = unpack(archive, Table(("de", "en")), paths)
    assert (unpacked.pairs, unpacked.skipped) == (400, 3)
    assert paths["de"].read_bytes() == text(german)
    assert paths["en"].read_bytes() == text(english)


def memory(units):
    """Write a translation memory of units, each a list of language and text."""
    variants = [
        "".join(
            f'<tuv xml:lang="{lang}"><prop type="x">1</prop><seg>{body}</seg></tuv>'
            for lang, body in unit
        )
        for unit in units
    ]
    body = "\n".join(f"<tu><prop>0.9</prop>{variant}</tu>" for variant in variants)
    return gzip.compress(
        '<?xml version="1.0" encoding="UTF-8"?><tmx'
        f' version="1.4"><header/><body>{body}</body></tmx>'.encode()
    )


def test_a_translation_memory(tmp_path):
    """Languages in either order and with regions, entities, marks within a text;
    units without a side are counted.
    """
    archive = tmp_path / "a.tmx.gz"
    german, english = draw_lines(200, 6), draw_lines(200, 7)
    units = [
        [("en", escape(right)), ("DE-de", escape(left))]
        for left, right in zip(german, english, strict=True)
    ]
    units[::2] = [unit[::-1] for unit in units[::2]]
    units += [
        [("en", "alone")],
        [],
        [("en", "a <hi>b</hi>\n c"), ("fr", "x"), ("de", "&#228;")],
    ]
    archive.write_bytes(memory(units))
    paths = outputs(tmp_path)
    unpacked = unpack(archive, Memory(("de", "en")), paths)
    assert (unpacked.pairs, unpacked.skipped) == (201, 2)
    assert paths["de"].read_bytes() == text([*german, "ä"])
    assert paths["en"].read_bytes() == text([*english, "a b c"])


def test_a_translation_memory_streams(tmp_path):
    """A unit that was read is forgotten: memory does not grow with the file."""
    archive = tmp_path / "a.tmx.gz"
    peaks = []
    for count in (1_000, 8_000):
        archive.write_bytes(
            memory([[("en", "word " * 20), ("de", "Wort " * 20)]] * count)
        )
        tracemalloc.start()
        assert unpack(archive, Memory(("de", "en")), outputs(tmp_path)).pairs == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_what_is_no_translation_memory_is_refused(tmp_path):
    archive = tmp_path / "a.tmx.gz"
    archive.write_bytes(gzip.compress(b"<tmx><body><tu></body></tmx>"))
    assert "a.tmx.gz is no translation memory" in refused(
        archive, Memory(("de", "en")), tmp_path
    )


def sgml(segments, tag="srcset"):
    body = "\n".join(
        f'<seg id="{identifier}">{content}</seg>' for identifier, content in segments
    )
    return (
        f'<{tag} setid="newstest" srclang="any">\n<doc'
        f' docid="d">\n<p>\n{body}\n</p>\n</doc>\n</{tag}>\n'.encode()
    )


def test_segments_of_a_test_set():
    """In order, entities decoded once, whatever way the tags are written."""
    content = (
        '\ufeff<refset setid="n" srclang="any" trglang="de">\r\n<DOC sysid="ref"'
        ' docid="a">\r\n<hl>\n<seg id="1">R&amp;D &quot;x&quot; &lt;b&gt; caf&eacute;'
        " &#233; &#xE9;</seg></hl>\n<p><SEG id='2'> Procter & Gamble, AT&T; &amp;lt;"
        ' &unknown; &#0000; &copy \n of two lines </SEG><seg  n="0" id = 3 >„ü“ a < b >'
        ' c</seg ></p>\n<seg id="4"></seg>\n<seg'
        ' id="5">a\u00a0b\u2028c</seg></DOC></refset>'
    ).encode()
    assert read_segments(content, "a.sgm") == [
        ("1", 'R&D "x" <b> café é é'),
        ("2", "Procter & Gamble, AT&T; &lt; &unknown; &#0000; &copy of two lines"),
        ("3", "„ü“ a < b > c"),
        ("4", ""),
        ("5", "a\u00a0b\u2028c"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no <seg"),
        (b"plain text\n", "holds no <seg"),
        (
            b'\n<seg id="1">a\n<seg id="2">b</seg>',
            r"a\.sgm, line 2: a <seg> does not end before the next",
        ),
        (b'<seg id="1">a</seg>\n<seg id="2">b', "the last <seg> does not end"),
        (b'<seg id="1">a</seg>\n<seg>b</seg>', r"a\.sgm, line 2: a <seg> has no id"),
        (b'<seg id="1">a</seg>\n<seg id="2">\xff</seg>', r"a\.sgm, line 2: not UTF-8"),
    ],
)
def test_a_damaged_test_set_is_refused(content, message):
    with pytest.raises(InputError, match=message):
        read_segments(content, "a.sgm")


NEWS = Files({"en": "test/news-src.en.sgm", "de": "test/news-ref.de.sgm"})


def test_a_test_set_becomes_lines(tmp_path):
    """Of both sides, with the same segments."""
    lines = {"en": draw_lines(60, 8), "de": draw_lines(60, 9)}
    # they begin again with each document
    ids = [str(1 + number % 20) for number in range(60)]
    content = [
        (NEWS.members[side], sgml(zip(ids, map(escape, lines[side]), strict=True)))
        for side in ("en", "de")
    ]
    paths = outputs(tmp_path)
    assert unpack(tar(tmp_path / "a.tgz", content), NEWS, paths).pairs == 60
    for side, path in paths.items():
        expected = [
            archives._decode_entities(escape(line)).strip() for line in lines[side]
        ]
        assert path.read_bytes() == text(expected)


@pytest.mark.parametrize(
    ("german", "message"),
    [
        (
            [("1", "a"), ("2", "b")],
            "news-src.en.sgm has 3 lines and test/news-ref.de.sgm has 2 lines",
        ),
        (
            [("1", "a"), ("3", "c"), ("2", "b")],
            (
                "segment 2 of test/news-src.en.sgm is '2' and of test/news-ref.de.sgm"
                " is '3'"
            ),
        ),
    ],
)
def test_other_segments_on_one_side_are_refused(tmp_path, german, message):
    """A source and a reference that do not match score nothing."""
    english = [("1", "a"), ("2", "b"), ("3", "c")]
    content = [
        (NEWS.members["en"], sgml(english)),
        (NEWS.members["de"], sgml(german, "refset")),
    ]
    assert message in refused(tar(tmp_path / "a.tgz", content), NEWS, tmp_path)


def test_segments_that_do_not_end_take_linear_time():
    """A test set of a megabyte of them is refused at once."""
    begun = time.monotonic()
    with pytest.raises(
        InputError, match="line 1: a <seg> does not end before the next"
    ):
        read_segments(b'<seg id="1">a\n' * 60_000, "a.sgm")
    assert time.monotonic() - begun < 10  # in quadratic time it takes minutes
