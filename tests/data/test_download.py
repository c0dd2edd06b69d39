import hashlib
import os
import random
import re
import socket

import pytest
from archive_server import (
    break_off,
    chunked,
    endless,
    other_range,
    redirect,
    silent,
    stall,
    status,
    without_length,
    without_ranges,
)

from jaxformer.data import download
from jaxformer.data.download import Patience, RemoteFile, fetch
from jaxformer.errors import InputError

CONTENT = random.Random(74).randbytes(300_000)
OTHER = random.Random(75).randbytes(len(CONTENT))
CUTS = [100_000, 100_001, *range(110_000, 300_000, 40_000)]
PATIENCE = Patience(timeout=0.25, attempts=3, wait=0.001)


def remote(*addresses, content=CONTENT, size=True, algorithm="sha256"):
    checksum = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    return RemoteFile("corpus.tgz", addresses, checksum, len(content) if size else None)


def get(file, tmp_path, **options):
    """Fetch a file, and check that it comes whole."""
    assert fetch(file, tmp_path, patience=PATIENCE, **options).read_bytes() == CONTENT


def refused(file, tmp_path):
    with pytest.raises(InputError) as error:
        fetch(file, tmp_path, patience=PATIENCE)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_file_comes_whole(server, tmp_path, algorithm):
    """It is the only one in the folder, and is not fetched again."""
    lines = []
    file = remote(server.serve("/a", CONTENT), algorithm=algorithm)
    get(file, tmp_path, report=lines.append)
    assert os.listdir(tmp_path) == ["corpus.tgz"]
    assert file.addresses[0] in lines[0]
    assert file.checksum in lines[-1]
    tenths = [int(line.split()[1]) for line in lines if line.endswith(" % of 0.3 MB")]
    assert tenths
    assert tenths == sorted(set(tenths) & set(range(10, 100, 10)))
    get(file, tmp_path)
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [OTHER, CONTENT[:-1]])
def test_another_file_of_that_name_is_refused_and_kept(server, tmp_path, content):
    (tmp_path / "corpus.tgz").write_bytes(content)
    message = refused(remote(server.serve("/a", CONTENT)), tmp_path)
    assert "corpus.tgz is not the published file: expected" in message
    assert "remove it" in message
    assert (tmp_path / "corpus.tgz").read_bytes() == content
    assert not server.requests


@pytest.mark.parametrize(
    ("plan", "size", "starts"),
    [
        # New bytes reset the count of failures.
        ([*map(break_off, CUTS)], True, [0, *CUTS]),
        # Nothing says whether the beginning is of the same file.
        ([break_off(100_000)], False, [0, 0]),
        ([chunked(broken=True)], False, [0, 0]),
        ([silent, stall(200_000), status(503)], True, [0, 0, 200_000, 200_000]),
        # Bytes from zero, or of another range, are not appended.
        ([break_off(100_000), without_ranges], True, [0, 100_000]),
        ([break_off(100_000), other_range], True, [0, 100_000, 0]),
        ([without_length], False, [0]),
    ],
)
def test_a_transfer_that_fails_continues(server, tmp_path, plan, size, starts):
    """From the last byte where that is safe."""
    lines = []
    file = remote(server.serve("/a", CONTENT, *plan), size=size)
    get(file, tmp_path, report=lines.append)
    assert [start for _, start in server.requests] == starts
    assert sum("trying again" in line for line in lines) == len(starts) - 1


def test_an_unknown_host_is_not_asked_again(tmp_path, monkeypatch):
    """As without a network: one try for each address, and one short line."""
    asked = []

    def unknown(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    addresses = "https://nowhere.example/a", "http://nowhere.example/a"
    message = refused(RemoteFile("corpus.tgz", addresses, "md5:0"), tmp_path)
    assert asked == ["nowhere.example"] * 2
    assert message.startswith(
        f"cannot fetch corpus.tgz: {addresses[0]}: unknown host (Temporary failure in"
        f" name resolution): check the network; {addresses[1]}: "
    )


def test_failures_in_a_row_end(server, tmp_path):
    """A server without ranges that always breaks off at one place is given up."""
    address = server.serve("/a", CONTENT, *[break_off(100_000, ranges=False)] * 50)
    message = refused(remote(address), tmp_path)
    failure = "broke off after 100,000 of 300,000 bytes (3 failures in a row)"
    assert f"{address}: {failure}" in message
    assert [start for _, start in server.requests] == [0, 100_000, 100_000]
    assert os.listdir(tmp_path) == ["corpus.tgz.part"]


@pytest.mark.parametrize(
    ("part", "size"),
    [
        (CONTENT, True),
        (CONTENT, False),
        (CONTENT[:1000], True),
        (OTHER[:1000], True),
        (OTHER + b"more", True),
    ],
)
def test_a_part_of_an_earlier_run(server, tmp_path, part, size):
    """A complete one of known size is verified without a request; of another file, it
    is fetched again; the beginning of the right one is continued.
    """
    (tmp_path / "corpus.tgz.part").write_bytes(part)
    get(remote(server.serve("/a", CONTENT), size=size), tmp_path)
    assert os.listdir(tmp_path) == ["corpus.tgz"]
    assert bool(server.requests) == (part != CONTENT or not size)
    if part == CONTENT[:1000]:  # it is continued
        assert [start for _, start in server.requests] == [1000]


def test_a_mirror_takes_over(server, tmp_path):
    """At once after a lasting failure; where the first address stopped."""
    lines = []
    gone = server.serve("/gone", CONTENT, status(404))
    first = server.serve("/first", CONTENT, break_off(200_000), *[status(500)] * 3)
    mirror = server.serve("/mirror", CONTENT)
    get(remote(gone, first, mirror), tmp_path, report=lines.append)
    starts = [("/gone", 0), ("/first", 0), *[("/first", 200_000)] * 2]
    assert server.requests == [*starts, ("/mirror", 200_000)]
    assert any(line.startswith(f"{gone}: HTTP 404") for line in lines)


def test_every_address_that_failed_is_named(server, tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        causes = {
            server.serve("/gone", CONTENT, status(404)): "HTTP 404",
            server.serve("/broken", CONTENT, *[status(500)] * 9): "HTTP 500",
            server.serve("/silent", CONTENT, *[silent] * 9): "(stalled|timed out)",
            server.serve("/other", OTHER): "wrong file",
            f"http://127.0.0.1:{closed.getsockname()[1]}/a": ".*refused",
            "nowhere": "unknown url type",
        }
        message = refused(remote(*causes), tmp_path)
    for address, cause in causes.items():
        assert re.search(f"{re.escape(address)}: {cause}", message)
    assert f"copy the file to {tmp_path / 'corpus.tgz'}" in message
    assert os.listdir(tmp_path) == []


def test_a_wrong_file_is_refused_and_removed(server, tmp_path):
    """Also one that never ends."""
    digests = [hashlib.sha256(content).hexdigest() for content in (CONTENT, OTHER)]
    message = refused(remote(server.serve("/a", OTHER)), tmp_path)
    assert (
        "/a: wrong file: expected sha256 {}, found {}; removed".format(*digests)
        in message
    )
    assert os.listdir(tmp_path) == []
    message = refused(remote(server.serve("/a", OTHER, endless)), tmp_path)
    assert "expected 300,000 bytes, found" in message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "plan"),
    [(b"<html>log in</html>", []), (CONTENT + b"more", [without_ranges])],
)
def test_a_file_of_another_size_is_refused_unread(server, tmp_path, content, plan):
    """A login page does not cost what already came."""
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT[:1000])
    address = server.serve("/a", content, *plan)
    message = refused(remote(address), tmp_path)
    assert f"{address}: wrong file: " in message
    assert "expected 300,000 bytes, " in message or "no more than 1,000" in message
    assert (tmp_path / "corpus.tgz.part").read_bytes() == CONTENT[:1000]
    assert len(server.requests) == 1


def test_redirects_are_followed_with_the_range(server, tmp_path):
    """None reads a file of this machine."""
    plan = redirect(server.serve("/b", CONTENT, break_off(100_000)))
    get(remote(server.serve("/a", CONTENT, plan, plan)), tmp_path)
    assert server.requests == [("/a", 0), ("/b", 0), ("/a", 100_000), ("/b", 100_000)]
    secret = (tmp_path / "corpus.tgz").rename(tmp_path / "secret")
    server.serve("/c", CONTENT, redirect(secret.as_uri()))
    assert "HTTP 302" in refused(remote(f"{server.address}/c"), tmp_path)
    assert not (tmp_path / "corpus.tgz").exists()


def test_waits_double_up_to_the_longest(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(download.time, "sleep", waits.append)
    file = remote(server.serve("/a", CONTENT, *[status(503)] * 6))
    fetch(file, tmp_path, patience=Patience(timeout=1, attempts=7, wait=10))
    assert waits == [10, 20, 40, 60, 60, 60]


def test_a_directory_that_cannot_be_written(server, tmp_path):
    """It is no server's fault: no other address is tried."""
    file = remote(server.serve("/a", CONTENT), server.serve("/b", CONTENT))
    message = refused(file, tmp_path / "missing")
    assert re.search("cannot write .*: No such file.*; make room", message)
    assert [path for path, _ in server.requests] == ["/a"]
    (tmp_path / "corpus.tgz.part").mkdir()
    assert "Is a directory" in refused(file, tmp_path)
