import logging
import socket

import pytest
from archive_server import archive_server, break_off, status, tar_gz
from pairs import CODES, refuse, run, texts

from jaxformer.data import hub, load
from jaxformer.errors import InputError

SGM = (
    '<refset setid="s">\n<doc sysid="ref" docid="d" genre="news"'
    ' origlang="de">\n<p>\n{}</p>\n</doc>\n</refset>\n'
)


def sgm(lines):
    return SGM.format(
        "".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, 1))
    ).encode()


def archive(german, english):
    """Pack a test set as WMT published it."""
    sides = {"src.de": german, "ref.en": english}
    return tar_gz(
        {
            f"test-full/newstest2014-deen-{name}.sgm": sgm(lines)
            for name, lines in sides.items()
        }
    )


@pytest.fixture
def test_set(monkeypatch, tmp_path):
    """Point sacreBLEU's wmt14/full to an address and a folder of ours."""
    pytest.importorskip("sacrebleu")
    from sacrebleu.dataset import DATASETS

    known = DATASETS["wmt14/full"]
    monkeypatch.setattr(known, "_outdir", str(tmp_path / "wmt14/full"))
    monkeypatch.setattr(known, "_rawdir", str(tmp_path / "wmt14/full/raw"))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))

    def point(address, md5=None):
        monkeypatch.setattr(known, "data", [address])
        monkeypatch.setattr(known, "md5", md5 and [md5])

    return point


def test_a_test_set_of_sacrebleu_in_its_folder(tmp_path):
    """A folder that sacreBLEU filled before is read without a network, in both
    directions.
    """
    pytest.importorskip("sacrebleu")
    folder = tmp_path / "wmt14" / "full"
    folder.mkdir(parents=True)
    sides = dict(zip(CODES, zip(*texts(4), strict=True), strict=True))
    for pair in ("de-en", "en-de"):
        fields = dict(
            zip(("src", "ref"), (sides[code] for code in pair.split("-")), strict=True)
        )
        for field in ("src", "ref", "docid", "genre", "origlang"):
            lines = fields.get(field, ["x"] * 4)
            (folder / f"wmt14_full.{pair}.{field}").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )
    code = (
        "from jaxformer.data import load\nfor pair in (('de', 'en'), ('en', 'de')):"
        " print(list(map(tuple, load('sacrebleu:wmt14/full', *pair))))"
    )
    found = run(code, SACREBLEU=str(tmp_path))
    assert found.stdout.splitlines() == [
        str(texts(4)),
        str([pair[::-1] for pair in texts(4)]),
    ]


def test_a_test_set_of_sacrebleu_is_fetched_once(server, test_set):
    """From the address to pairs; afterwards from the folder."""
    german, english = ["Eins", "zwei &amp; drei"], ["One", "two &amp; three"]
    test_set(server.serve("/test-full.tgz", archive(german, english)))
    assert list(load("sacrebleu:wmt14/full", *CODES)) == list(
        zip(german, english, strict=True)
    )
    assert len(list(load("sacrebleu:wmt14/full", *CODES))) == 2
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("path", "md5", "message"),
    [
        ("/missing.tgz", None, r"HTTP Error 404"),
        ("/broken.tgz", 500 * "0", r"HTTP Error 500"),
        ("/short.tgz", None, r"IncompleteRead"),
        ("/page.tgz", None, r"could not be opened"),
        ("/page.tgz", "0" * 32, r"wrong checksum or certificate"),
    ],
)
def test_a_test_set_that_cannot_be_fetched(
    server, test_set, tmp_path, capfd, caplog, path, md5, message
):
    """One line with the test set, the address and the cure; nothing from sacreBLEU's
    own log.
    """
    server.serve("/broken.tgz", b"", status(500))
    server.serve("/short.tgz", b"half and half", break_off(4))
    server.serve("/page.tgz", b"<html>sorry</html>")
    address = server.address + path
    test_set(address, md5)
    refuse(
        "sacrebleu:wmt14/full",
        rf"^cannot get sacrebleu:wmt14/full from {address} \(.*{message}.*\): .*remove"
        rf" {tmp_path}/wmt14/full",
    )
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_server_that_is_gone_and_what_it_leaves(server, test_set):
    """A refused connection, then the cure: with the folder removed, or never filled,
    the next attempt succeeds.
    """
    with archive_server() as gone:
        pass
    test_set(f"{gone.address}/test-full.tgz")
    level = logging.getLogger("sacrebleu").level
    refuse("sacrebleu:wmt14/full", r"Connection refused")
    assert logging.getLogger("sacrebleu").level == level
    test_set(server.serve("/test-full.tgz", archive(["a"], ["b"])))
    assert list(load("sacrebleu:wmt14/full", *CODES)) == [("a", "b")]


def test_a_test_set_with_unequal_sides_is_refused(server, test_set):
    """No pairing by the shorter file."""
    test_set(server.serve("/test-full.tgz", archive(["a", "b", "c"], ["d", "e"])))
    refuse("sacrebleu:wmt14/full", r"\.src has 3 lines and .*\.ref has 2")


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("wmt14/ful", CODES, r"no test set 'wmt14/ful'; did you mean wmt14/full\?"),
        ("newstest", CODES, r"`sacrebleu --list` shows them"),
        (
            "wmt14",
            ("de", "sv"),
            r"does not go from 'de' to 'sv': it has cs-en, en-cs, de-en, en-de",
        ),
        (
            "multi30k/2016",
            ("de", "en"),
            r"does not go from 'de' to 'en': it has en-fr, en-de, en-cs",
        ),
    ],
)
def test_an_unknown_test_set_or_direction(name, languages, message):
    pytest.importorskip("sacrebleu")
    with pytest.raises(InputError, match=message):
        load(f"sacrebleu:{name}", *languages)


def test_waiting_has_an_end(test_set, monkeypatch):
    """A server that accepts and never answers is given up, and the setting of the
    process comes back.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        test_set(f"http://127.0.0.1:{server.getsockname()[1]}/test-full.tgz")
        monkeypatch.setattr(hub, "_SACREBLEU_SECONDS", 0.2)
        refuse("sacrebleu:wmt14/full", r"timed out")
    assert socket.getdefaulttimeout() is None
