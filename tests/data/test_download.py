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
from jaxformer.data.download import Patience, RemoteFile, digest, fetch
from jaxformer.errors import InputError

CONTENT = random.Random(74).randbytes(300_000)
OTHER = random.Random(75).randbytes(len(CONTENT))
PATIENCE = Patience(timeout=0.25, attempts=3, wait=0.001)


def remote(*addresses, content=CONTENT, size=True, algorithm="sha256"):
    checksum = f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"
    return RemoteFile("corpus.tgz", addresses, checksum, len(content) if size else None)


def refused(file, tmp_path, **options):
    with pytest.raises(InputError) as error:
        fetch(file, tmp_path, patience=PATIENCE, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def starts(server):
    return [start for _, start in server.requests]


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_file_comes_whole(server, tmp_path, algorithm):
    """And nothing else lies there."""
    lines = []
    file = remote(server.serve("/a", CONTENT), algorithm=algorithm)
    path = fetch(file, tmp_path, patience=PATIENCE, report=lines.append)
    assert path == tmp_path / "corpus.tgz"
    assert path.read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["corpus.tgz"]
    assert file.addresses[0] in lines[0]
    assert file.checksum in lines[-1]
    tenths = [int(line.split()[1]) for line in lines if line.endswith(" % of 0.3 MB")]
    assert tenths
    assert tenths == sorted(set(tenths))
    assert set(tenths) <= set(range(10, 100, 10))


def test_what_is_whole_is_not_fetched_again(server, tmp_path):
    """Verified, and no request."""
    file = remote(server.serve("/a", CONTENT))
    fetch(file, tmp_path, patience=PATIENCE)
    fetch(file, tmp_path, patience=PATIENCE)
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [OTHER, CONTENT[:-1], b""])
def test_another_file_of_that_name_is_refused_and_kept(server, tmp_path, content):
    """What somebody put there is neither used nor removed; the line says what to do."""
    (tmp_path / "corpus.tgz").write_bytes(content)
    message = refused(remote(server.serve("/a", CONTENT)), tmp_path)
    assert "corpus.tgz is not the published file: expected" in message
    assert "remove it" in message
    assert (tmp_path / "corpus.tgz").read_bytes() == content
    assert not server.requests


def test_a_transfer_that_breaks_off_continues(server, tmp_path):
    """From the last byte, however often: new bytes reset the count of failures."""
    cuts = [100_000, 100_001, *range(110_000, 300_000, 20_000)]
    file = remote(server.serve("/a", CONTENT, *map(break_off, cuts)))
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert starts(server) == [0, *cuts]


@pytest.mark.parametrize("plan", [break_off(100_000), chunked(broken=True)])
def test_a_file_of_unknown_size_begins_again(server, tmp_path, plan):
    """Nothing says whether its beginning is of the same file."""
    file = remote(server.serve("/a", CONTENT, plan), size=False)
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert starts(server) == [0, 0]


def test_a_host_that_nobody_knows_is_not_asked_again(tmp_path, monkeypatch):
    """As without a network: one try for each address, and one short line."""
    asked = []

    def unknown(host, *_, **__):
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setenv("no_proxy", "*")
    file = RemoteFile(
        "corpus.tgz", ("https://nowhere.example/a", "http://nowhere.example/a"), "md5:0"
    )
    message = refused(file, tmp_path)
    assert asked == ["nowhere.example"] * 2
    assert message.startswith(
        "cannot fetch corpus.tgz: https://nowhere.example/a: unknown host (Temporary"
        " failure in name resolution): check the network; http://nowhere.example/a: "
    )


def test_a_server_that_stalls_is_asked_again(server, tmp_path):
    """And what came before is kept."""
    lines = []
    file = remote(server.serve("/a", CONTENT, silent, stall(200_000)))
    assert (
        fetch(file, tmp_path, patience=PATIENCE, report=lines.append).read_bytes()
        == CONTENT
    )
    assert starts(server) == [0, 0, 200_000]
    assert sum("trying again" in line for line in lines) == 2


def test_a_server_that_forgets_ranges_starts_from_zero(server, tmp_path):
    """Its bytes are not appended to those that are there."""
    file = remote(server.serve("/a", CONTENT, break_off(100_000), without_ranges))
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert starts(server) == [0, 100_000]


def test_a_server_that_answers_another_range(server, tmp_path):
    file = remote(server.serve("/a", CONTENT, break_off(100_000), other_range))
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert starts(server) == [0, 100_000, 0]


def test_failures_in_a_row_end(server, tmp_path):
    """A server without ranges that always breaks off at one place is not asked
    forever.
    """
    address = server.serve("/a", CONTENT, *[break_off(100_000, ranges=False)] * 50)
    message = refused(remote(address), tmp_path)
    assert (
        f"{address}: broke off after 100,000 of 300,000 bytes (3 failures in a row)"
        in message
    )
    assert starts(server) == [0, 100_000, 100_000]
    assert os.listdir(tmp_path) == ["corpus.tgz.part"]


def test_an_interrupted_run_goes_on_in_the_next(server, tmp_path):
    """The bytes of a run that was stopped are not asked for again."""
    file = remote(server.serve("/a", CONTENT))

    def stop(line):
        if " % of " in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path, patience=PATIENCE, report=stop)
    assert os.listdir(tmp_path) == ["corpus.tgz.part"]
    came = (tmp_path / "corpus.tgz.part").read_bytes()
    assert 30_000 <= len(came) < len(CONTENT)
    assert CONTENT.startswith(came)
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert starts(server) == [0, len(came)]


@pytest.mark.parametrize("size", [True, False])
def test_a_run_stopped_before_the_last_rename(server, tmp_path, size):
    """A complete part of known size is verified without a request."""
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT)
    file = remote(server.serve("/a", CONTENT), size=size)
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["corpus.tgz"]
    assert starts(server) == ([] if size else [0])


@pytest.mark.parametrize("beginning", [OTHER[:1000], OTHER, OTHER + b"more"])
@pytest.mark.parametrize("size", [True, False])
def test_a_beginning_of_another_file_is_thrown_away(server, tmp_path, beginning, size):
    """What an earlier run left may be of another file: then all is fetched anew."""
    (tmp_path / "corpus.tgz.part").write_bytes(beginning)
    file = remote(server.serve("/a", CONTENT), size=size)
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["corpus.tgz"]


@pytest.mark.parametrize("code", [408, 503])
def test_passing_failures_are_waited_out(server, tmp_path, code):
    file = remote(server.serve("/a", CONTENT, status(code), status(code)))
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT


@pytest.mark.parametrize("code", [401, 404])
def test_a_lasting_failure_falls_back_to_the_mirror_at_once(server, tmp_path, code):
    """And says which address failed."""
    lines = []
    dead = server.serve("/dead", CONTENT, status(code))
    mirror = server.serve("/mirror", CONTENT)
    assert (
        fetch(
            remote(dead, mirror), tmp_path, patience=PATIENCE, report=lines.append
        ).read_bytes()
        == CONTENT
    )
    assert [path for path, _ in server.requests] == ["/dead", "/mirror"]
    assert any(line.startswith(f"{dead}: HTTP {code}") for line in lines)


def test_a_mirror_goes_on_where_the_first_address_stopped(server, tmp_path):
    first = server.serve("/first", CONTENT, break_off(200_000), *[status(500)] * 5)
    mirror = server.serve("/mirror", CONTENT)
    assert (
        fetch(remote(first, mirror), tmp_path, patience=PATIENCE).read_bytes()
        == CONTENT
    )
    assert server.requests[-1] == ("/mirror", 200_000)


def test_every_address_that_failed_is_named(server, tmp_path):
    """With its failure, and the cure."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/a"
        addresses = (
            server.serve("/gone", CONTENT, status(404)),
            server.serve("/broken", CONTENT, *[status(500)] * 9),
            server.serve("/silent", CONTENT, *[silent] * 9),
            server.serve("/other", OTHER),
            nobody,
            "nowhere",
        )
        message = refused(remote(*addresses), tmp_path)
    causes = (
        "HTTP 404",
        "HTTP 500",
        "(stalled|timed out)",
        "wrong file",
        ".*refused",
        "not the address",
    )
    for address, cause in zip(addresses, causes, strict=True):
        assert re.search(f"{re.escape(address)}: {cause}", message)
    assert f"copy the file to {tmp_path / 'corpus.tgz'}" in message
    assert os.listdir(tmp_path) == []


def test_a_wrong_file_is_refused_and_removed(server, tmp_path):
    """One line with address, both digests and cure; nothing is left."""
    address = server.serve("/a", OTHER)
    message = refused(remote(address), tmp_path)
    expected, found = (
        hashlib.sha256(content).hexdigest() for content in (CONTENT, OTHER)
    )
    assert (
        f"{address}: wrong file: expected sha256 {expected}, found {found}; removed"
        in message
    )
    assert os.listdir(tmp_path) == []
    mirror = server.serve("/mirror", CONTENT)
    assert (
        fetch(remote(address, mirror), tmp_path, patience=PATIENCE).read_bytes()
        == CONTENT
    )


@pytest.mark.parametrize("content", [b"<html>log in first</html>", CONTENT + b"more"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_of_another_size_is_refused_unread(server, tmp_path, content, ranges):
    """A login page does not cost what already came."""
    (tmp_path / "corpus.tgz.part").write_bytes(CONTENT[:1000])
    address = server.serve("/a", content, *([] if ranges else [without_ranges]))
    message = refused(remote(address), tmp_path)
    assert f"{address}: wrong file: " in message
    assert "expected 300,000 bytes, " in message or "no more than 1,000" in message
    assert (tmp_path / "corpus.tgz.part").read_bytes() == CONTENT[:1000]
    assert len(server.requests) == 1


def test_more_than_the_published_size_is_not_read(server, tmp_path):
    """A server that never ends does not fill the disk."""
    message = refused(remote(server.serve("/a", OTHER, endless)), tmp_path)
    assert "expected 300,000 bytes, found" in message
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("plan", [without_length, chunked()])
def test_an_answer_without_a_length(server, tmp_path, plan):
    file = remote(server.serve("/a", CONTENT, plan), size=False)
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT


@pytest.mark.parametrize("code", [301, 307])
def test_redirects_are_followed_with_the_range(server, tmp_path, code):
    target = server.serve("/b", CONTENT, break_off(100_000))
    file = remote(
        server.serve("/a", CONTENT, redirect(target, code), redirect(target, code))
    )
    assert fetch(file, tmp_path, patience=PATIENCE).read_bytes() == CONTENT
    assert server.requests == [("/a", 0), ("/b", 0), ("/a", 100_000), ("/b", 100_000)]


def test_a_redirect_cannot_read_this_machine(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    message = refused(
        remote(server.serve("/a", CONTENT, redirect(secret.as_uri()))), tmp_path
    )
    assert "HTTP 302" in message
    assert not (tmp_path / "corpus.tgz").exists()


def test_waits_double_up_to_the_longest(server, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(download.time, "sleep", waits.append)
    file = remote(server.serve("/a", CONTENT, *[status(503)] * 6))
    fetch(file, tmp_path, patience=Patience(timeout=1, attempts=7, wait=10))
    assert waits == [10, 20, 40, 60, 60, 60]


def test_a_directory_that_cannot_be_written(server, tmp_path):
    file = remote(server.serve("/a", CONTENT))
    message = refused(file, tmp_path / "missing")
    assert "cannot write" in message
    assert "No such file" in message
    (tmp_path / "corpus.tgz.part").mkdir()
    assert "Is a directory" in refused(file, tmp_path)


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="a device that is always full"
)
def test_a_full_disk_is_one_line(server, tmp_path):
    """Not a server's fault: no other address is tried."""
    (tmp_path / "corpus.tgz.part").symlink_to("/dev/full")
    first, second = server.serve("/a", CONTENT), server.serve("/b", CONTENT)
    message = refused(remote(first, second), tmp_path)
    assert "No space left on device; make room" in message
    assert [path for path, _ in server.requests] == ["/a"]


def test_digest_is_of_the_content(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert digest(tmp_path / "a") == hashlib.sha256(CONTENT).hexdigest()
