"""Whose requests are answered, and how many."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.errors import InputError
from jaxformer.serving.access import Keys, Rates, make_key
from jaxformer.serving.call import Call
from jaxformer.serving.errors import ServingError


@pytest.fixture
def keys(tmp_path):
    """The keys of two clients, and what they were made from."""
    (ann, first), (bob, second) = make_key("ann"), make_key("bob")
    path = tmp_path / "keys"
    path.write_text(
        f"# clients\n\n{first}\n  {second.upper().replace('BOB', 'bob')}\r\n"
    )
    return Keys.load(path), ann, bob


def test_a_key_is_found_by_its_digest(keys):
    """The file has no key itself."""
    found, ann, bob = keys
    assert (found.find(ann), found.find(bob)) == ("ann", "bob")
    assert len(ann) >= 43  # 32 bytes
    name, _, digest = make_key("x")[1].partition(":")
    assert (name, len(digest)) == ("x", 64)


@pytest.mark.parametrize("key", ["", "ann", "\ud800"])
def test_other_keys_are_unknown(keys, key):
    """Of any characters; the digest itself is no key."""
    assert keys[0].find(key) is None
    assert keys[0].find(hashlib.sha256(keys[1].encode()).hexdigest()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("ann:secret", "line 1 must be a name"),
        ("x:" + "0" * 64 + "\nsecret", "line 2 must be a name"),
        ("an n:" + "0" * 64, "line 1 must be a name"),
        ("x:" + "0" * 63, "line 1 must be a name"),
        ("x:" + "0" * 64 + "\nx:" + "1" * 64, "line 2 has the name 'x'"),
    ],
)
def test_a_wrong_file_is_refused_without_being_shown(tmp_path, text, message):
    """A line may have the key itself by mistake."""
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        Keys.load(path)
    assert "secret" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    """None, or not of UTF-8."""
    with pytest.raises(InputError, match="cannot read the keys"):
        Keys.load(tmp_path / "none")
    (tmp_path / "keys").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="must be UTF-8"):
        Keys.load(tmp_path / "keys")


@pytest.mark.parametrize("name", ["", "a:b", "x" * 65])
def test_names_of_keys_are_words(name):
    """As the file and the log need them."""
    with pytest.raises(InputError, match="name of a key"):
        make_key(name)


@pytest.mark.parametrize(
    "place",
    ["Bearer {}", "bearer  {}", "DeepL-Auth-Key {}", "api_key", "auth_key"],
)
def test_a_key_is_read_from_where_clients_send_it(keys, place):
    """The header of two protocols, and a field of two."""
    for key, name in ((keys[1], "ann"), ("wrong", None), ("", None)):
        call = Call(keys=keys[0])
        fields = {}
        if "{}" in place:
            call.authorization = place.format(key)
        else:
            fields[place] = key
        if name is None:
            with pytest.raises(ServingError, match="API key") as raised:
                call.authorize(fields)
            assert (raised.value.status, raised.value.code) == (403, "key")
            assert "wrong" not in raised.value.message
        else:
            call.authorize(fields)
        assert call.key == name


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def refusal(rates, *arguments):
    with pytest.raises(ServingError) as raised:
        rates.spend(*arguments)
    return raised.value


def test_a_client_has_a_minute_s_sentences_at_once():
    """Then as many as time has brought; Retry-After says when."""
    clock = Clock()
    rates = Rates(60, clock)
    rates.spend(None, "192.0.2.1", 50)
    refused = refusal(rates, None, "192.0.2.1", 20)
    assert (refused.status, refused.code, refused.retry_after) == (429, "rate", 10)
    assert (refused.limit, refused.given) == (60, 20)
    clock.now += 9
    assert refusal(rates, None, "192.0.2.1", 20).retry_after == 1
    clock.now += 1
    rates.spend(None, "192.0.2.1", 20)
    assert refusal(rates, None, "192.0.2.1", 1).retry_after == 1
    clock.now += 3600  # more than a minute's sentences are not saved
    rates.spend(None, "192.0.2.1", 60)
    refusal(rates, None, "192.0.2.1", 1)


def test_clients_have_buckets_of_their_own():
    """By key, else by address; an IPv6 network of 64 bits is one client."""
    rates = Rates(1, Clock())
    rates.spend(None, "192.0.2.1", 1)
    rates.spend(None, "192.0.2.2", 1)
    rates.spend("ann", "192.0.2.1", 1)
    refusal(rates, "ann", "192.0.2.9", 1)
    rates.spend("192.0.2.1", "192.0.2.1", 1)  # a name like an address
    rates.spend(None, "2001:db8::1", 1)
    refusal(rates, None, "2001:db8::2:1", 1)
    rates.spend(None, "2001:db8:0:1::1", 1)
    refusal(rates, None, "::ffff:192.0.2.1", 1)
    rates.spend(None, "", 1)  # a socket of the file system
    refusal(rates, None, "", 1)


@settings(deadline=None)
@given(
    rate=st.integers(1, 1000),
    steps=st.lists(
        st.tuples(st.floats(0, 100), st.integers(1, 50)), min_size=1, max_size=50
    ),
)
def test_no_client_has_more_than_its_rate(rate, steps):
    """In any time, what is answered is within a full bucket, the time's share, and one
    request. A client that waits as told is answered.
    """
    clock = Clock()
    rates, spent, largest = Rates(rate, clock), 0, 0
    for seconds, cost in steps:
        clock.now += seconds
        try:
            rates.spend(None, "192.0.2.1", cost)
        except ServingError as error:
            clock.now += error.retry_after
            rates.spend(None, "192.0.2.1", cost)
        spent, largest = spent + cost, max(largest, cost)
        assert spent <= rate + (clock.now - 100) * rate / 60 + largest + 1e-6
