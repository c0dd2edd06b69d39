"""The server of files on this machine, and a prepared folder, as fixtures."""

import pytest
from archive_server import archive_server
from pairs import config_of

from jaxformer.data.preparing import prepare


@pytest.fixture
def server(monkeypatch):
    """Serve files; no proxy stands between."""
    monkeypatch.setenv("no_proxy", "*")
    with archive_server() as served:
        yield served


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A prepared folder that no test changes."""
    folder = tmp_path_factory.mktemp("corpus") / "prepared"
    prepare(config_of(), folder)
    return folder
