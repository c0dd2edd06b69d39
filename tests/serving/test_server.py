"""The server around the application: its socket, and what it tells its operator."""

import contextlib
import gc
import time

import pytest
from serving.fake_engine import FakeEngine
from serving.running_server import running

from jaxformer.errors import InputError
from jaxformer.serving.server import bind, name_url, notify


def test_the_operator_is_told_once_that_all_programs_are_compiled(monkeypatch):
    """The heap is frozen before that, and before the server is ready."""
    said, frozen = [], []
    monkeypatch.setattr(
        "jaxformer.serving.server._freeze_heap", lambda: frozen.append(len(said))
    )
    with running(FakeEngine(), said.append):
        end = time.monotonic() + 10
        while not said and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.3)
    assert said == [f"all {FakeEngine.programs} programs are compiled"]
    assert frozen == [0, 0]


def test_what_compiling_makes_is_left_out_of_collections():
    before, made = gc.get_freeze_count(), [[] for _ in range(100_000)]
    with running():
        assert gc.get_freeze_count() > before + len(made) // 2


def test_a_port_is_bound_once():
    with contextlib.closing(bind("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        assert name_url(bound, "/mt") == f"http://127.0.0.1:{port}/mt"
        with pytest.raises(InputError, match=f"port {port}: .*; choose another --port"):
            bind("127.0.0.1", port)


def test_a_missing_service_manager_is_no_error(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    notify("READY=1")
    assert "$NOTIFY_SOCKET" in capsys.readouterr().err
