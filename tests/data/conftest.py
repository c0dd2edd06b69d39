"""The server of files on this machine, as a fixture."""

import pytest
from archive_server import archive_server


@pytest.fixture
def server(monkeypatch):
    """Serve files; no proxy stands between."""
    monkeypatch.setenv("no_proxy", "*")
    with archive_server() as served:
        yield served
