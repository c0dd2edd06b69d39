import logging

import pytest
from archive_server import archive_server, tar_gz
from pairs import CODES, refuse

from jaxformer.data import sacrebleu_sets
from jaxformer.data.sources import load
from jaxformer.errors import InputError

SGM = (
    '<refset setid="s">\n<doc sysid="ref" docid="d" genre="news"'
    ' origlang="de">\n<p>\n{}</p>\n</doc>\n</refset>\n'
)


def archive(german, english):
    """Pack a test set as WMT published it."""
    members = {}
    for name, lines in {"src.de": german, "ref.en": english}.items():
        segments = [f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, 1)]
        path = f"test-full/newstest2014-deen-{name}.sgm"
        members[path] = SGM.format("".join(segments)).encode()
    return tar_gz(members)


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


# Python 3.12 and 3.13 warn of how sacreBLEU unpacks.
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_a_test_set_of_sacrebleu_is_fetched_once(server, test_set):
    """After a server that is gone, the next attempt succeeds."""
    with archive_server() as gone:
        pass
    test_set(f"{gone.address}/test-full.tgz")
    level = logging.getLogger("sacrebleu").level
    refuse("sacrebleu:wmt14/full", "Connection refused")
    assert logging.getLogger("sacrebleu").level == level
    german, english = ["Eins", "zwei &amp; drei"], ["One", "two &amp; three"]
    test_set(server.serve("/test-full.tgz", archive(german, english)))
    for _ in range(2):
        pairs = list(load("sacrebleu:wmt14/full", *CODES))
        assert pairs == list(zip(german, english, strict=True))
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("path", "md5", "message"),
    [
        ("/missing.tgz", None, "HTTP Error 404"),
        ("/page.tgz", None, "could not be opened"),
        ("/page.tgz", "0" * 32, "wrong checksum or certificate"),
    ],
)
def test_a_test_set_that_cannot_be_fetched(
    server, test_set, tmp_path, capfd, caplog, path, md5, message
):
    """Nothing comes from sacreBLEU's own log."""
    server.serve("/page.tgz", b"<html>sorry</html>")
    address = server.address + path
    test_set(address, md5)
    start = f"^cannot get sacrebleu:wmt14/full from {address}"
    end = rf"{message}.*\): .*remove {tmp_path}/wmt14/full"
    refuse("sacrebleu:wmt14/full", rf"{start} \(.*{end}")
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("wmt14/ful", CODES, r"no test set 'wmt14/ful'; did you mean wmt14/full\?"),
        ("multi30k/2016", CODES, "does not go from 'de' to 'en': it has en-fr, en-de"),
    ],
)
def test_an_unknown_test_set_or_direction(name, languages, message):
    pytest.importorskip("sacrebleu")
    with pytest.raises(InputError, match=message):
        load(f"sacrebleu:{name}", *languages)


def test_a_direction_is_found_by_any_codes():
    """Each side among its own: the language of both, and no other script of it."""
    pytest.importorskip("sacrebleu")
    codes = {"eng_Latn": "en", "deu_Latn": "de", "zho_Hans": "zh", "cs_CZ": "cs"}
    for source, target in (("eng_Latn", "deu_Latn"), ("zho_Hans", "eng_Latn")):
        expected = f"{codes[source]}-{codes[target]}"
        found = sacrebleu_sets.find_direction("wmt20", (source, target))
        assert found == expected
    for pair in (("eng_Latn", "zho_Hant"), ("deu_Latn", "cs_CZ"), ("en", "en")):
        with pytest.raises(InputError, match=f"from '{pair[0]}' to '{pair[1]}': it"):
            sacrebleu_sets.find_direction("wmt20", pair)
