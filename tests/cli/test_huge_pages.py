"""Beginning anew with large pages: where it is of use, and once alone."""

import os
import subprocess
import sys

import pytest

from jaxformer.cli import huge_pages


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """Return a file that stands for the system's setting: large pages for those who
    ask.
    """
    path = tmp_path / "enabled"
    path.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_SETTING", path)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    return path


def test_where_it_is_of_use(setting, monkeypatch):
    """Not where all programs have large pages or none, nor with another C library,
    nor where the user has decided.
    """
    assert huge_pages.is_of_use()
    for version, found in (
        ("glibc 2.35", True),
        ("glibc 2.34", False),
        ("glibc 3.0", True),
        ("musl 1.2", False),
    ):
        monkeypatch.setattr(os, "confstr", lambda name, version=version: version)
        assert huge_pages.is_of_use() == found
    monkeypatch.setattr(os, "confstr", lambda name: None)
    assert not huge_pages.is_of_use()
    monkeypatch.setattr(os, "confstr", lambda name: "glibc 2.36")
    for text in ("[always] madvise never\n", "always madvise [never]\n"):
        setting.write_text(text)
        assert not huge_pages.is_of_use()
    setting.write_text("always [madvise] never\n")
    monkeypatch.setenv(huge_pages.VARIABLE, "")
    assert not huge_pages.is_of_use()
    monkeypatch.delenv(huge_pages.VARIABLE)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not huge_pages.is_of_use()
    monkeypatch.setattr(sys, "platform", "linux")
    setting.unlink()
    assert not huge_pages.is_of_use()


def test_the_process_begins_anew_once(setting):
    """With the same number, the same arguments and the same options of the
    interpreter.
    """
    program = setting.parent / "program.py"
    program.write_text(
        "import os, pathlib, sys\n"
        "from jaxformer.cli import huge_pages\n"
        f"huge_pages._SETTING = pathlib.Path({str(setting)!r})\n"
        "os.confstr = lambda name: 'glibc 2.36'\n"
        "print(os.getpid(), flush=True)\n"
        "huge_pages.use()\n"
        "print(os.environ[huge_pages.VARIABLE], sys.warnoptions, sys.argv[1:])\n"
    )
    line = [sys.executable, "-W", "error", program, "a b", "", "--c=d"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    first, second, told = done.stdout.splitlines()
    assert first == second
    assert told == "glibc.malloc.hugetlb=1 ['error'] ['a b', '', '--c=d']"
    assert done.stderr == ""
