"""Whose requests are answered, and how many."""

import hashlib
import time

import pytest
from serving.asgi import ask, served

from jaxformer.errors import InputError
from jaxformer.serving.access import load_keys, make_key


@pytest.fixture
def keys(tmp_path):
    """The file of the keys of two clients, and these."""
    (ann, first), (bob, second) = make_key("ann"), make_key("bob")
    path = tmp_path / "keys"
    path.write_text(
        f"# clients\n\n{first}\n  {second.upper().replace('BOB', 'bob')}\r\n"
    )
    return str(path), ann, bob


async def translate(app, text, path="/v1/translate", **headers):
    return await ask(app, "POST", path, {"text": text}, **headers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("ann:secret", "line 1 must be a name"),
        ("x:" + "0" * 64 + "\nsecret", "line 2 must be a name"),
        ("an n:" + "0" * 64, "line 1 must be a name"),
        ("x:" + "0" * 63, "line 1 must be a name"),
    ],
)
def test_a_wrong_file_is_refused_without_being_shown(tmp_path, text, message):
    """A line may have the key itself by mistake."""
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        load_keys(path)
    assert "secret" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """None, or not of UTF-8."""
    with pytest.raises(InputError, match="no file"):
        load_keys(tmp_path / "none")
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_keys(tmp_path / "keys")


@pytest.mark.parametrize("name", ["", "a:b", "x" * 65])
def test_names_of_keys_are_words(name):
    """As the file and the log need them."""
    with pytest.raises(InputError, match="name of a key"):
        make_key(name)


PLACES = {
    "Bearer {}": "/v1/translate",
    "bearer  {}": "/v1/translate",
    "DeepL-Auth-Key {}": "/v2/translate?target_lang=DE",
    "": "/v2/translate?target_lang=DE&auth_key={}",
    " ": "/v1/translate?api_key={}",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_key_is_read_from_where_clients_send_it(keys, place):
    """The header of two protocols, and a field of two; a digest is no key, and the file
    has no key itself.
    """
    path, ann, bob = keys
    digest = hashlib.sha256(ann.encode()).hexdigest()
    assert len(ann) >= 43  # 32 bytes

    async def work(app, _):
        for key, status in ((ann, 200), (bob, 200), ("wrong", 403), ("", 403)):
            given = {"authorization": place.format(key)} if place.strip() else {}
            found = await translate(app, "a", PLACES[place].format(key), **given)
            assert found.status == status
            assert b"wrong" not in found.body
        for key in ("ann", digest):
            bad = await translate(app, "a", authorization=f"Bearer {key}")
            assert (bad.status, bad.json["error"]["code"]) == (403, "key")
        for name in ("/languages", "/v1/models", "/ready", "/v2/glossaries"):
            assert (await ask(app, "GET", name)).status == 200
        assert (await ask(app, "GET", "/v1/models")).json["key_required"] is True
        assert (await ask(app, "GET", "/v2/languages")).status == 403

    served(work, key_file=path)


def test_a_client_has_a_minute_s_sentences():
    """Then it is told when to come again. A request beyond that is answered once; what
    is refused costs nothing, and lines without words neither.
    """

    async def work(app, service):
        assert (await translate(app, "x\n" * 6 + "* * *\n \n")).status == 200
        assert (await translate(app, "x\n" * 5)).status == 429
        assert (await translate(app, "x\n" * 4)).status == 200
        refused = await translate(app, "x")
        error = refused.json["error"]
        assert (refused.status, error["code"]) == (429, "rate")
        assert (error["limit"], error["given"]) == (10, 1)
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        other = await translate(app, "x\n" * 30, address="10.0.0.1")
        assert other.status == 200
        assert service.batcher.held == 0

    served(work, rate=10)


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [
        ("192.0.2.1", "192.0.2.2", 200),
        ("2001:db8::1", "2001:db8::2:1", 429),
        ("2001:db8::1", "2001:db8:0:1::1", 200),
        ("192.0.2.1", "::ffff:192.0.2.1", 429),
        ("", "", 429),  # a socket of the file system
    ],
)
def test_clients_are_keys_or_addresses(first, second, status):
    """An IPv6 network of 64 bits is one client."""

    async def work(app, _):
        assert (await translate(app, "a", address=first)).status == 200
        assert (await translate(app, "a", address=second)).status == status

    served(work, rate=1)


def test_a_rate_is_of_the_last_minute(monkeypatch):
    """No client has more than twice its rate in two minutes, whenever it asks."""
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])

    async def work(app, _):
        spent = 0
        for _ in range(24):
            now[0] += 5
            while (await translate(app, "a")).status == 200:
                spent += 1
        assert 6 <= spent <= 3 * 3

    served(work, rate=3)
