"""``attention``: pictures and a page of what a run attends to."""

from __future__ import annotations

import json
import re

import pytest


def assert_pictures(directory):
    for name in ("encoder", "decoder", "cross"):
        content = (directory / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(content) > 2000
    page = (directory / "attention.html").read_text("utf-8")
    # It needs no network, and no sentence ends the page's own program.
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page)
    assert page.count("<script") == page.count("</script>")
    return page


def test_attention(call, run, translator, tmp_path):
    """Three pictures, an animation and one page are in the run, or in a folder of the
    user's, with a translation of the user's.
    """
    given = (f"--workdir={run}", "--animate", 'Open "<b>it</b>" </script>')
    outcome = call("attention", *given)
    assert (outcome.code, outcome.err) == (0, "")
    names = ["encoder.png", "decoder.png", "cross.png"]
    names += ["animation.gif", "attention.html"]
    assert outcome.lines == [str(run / "attention" / name) for name in names]
    assert '"steps":[[' in assert_pictures(run / "attention")

    where = tmp_path / "some" / "folder"
    given = (f"--workdir={run}", "--target=Datei öffnen 🙂", f"--output={where}")
    assert call("attention", *given, "Open the file.").code == 0
    page = assert_pictures(where)
    assert not (where / "animation.gif").exists()
    found = translator.attention("Open the file.", "Datei öffnen 🙂")
    for token in {*found.source_tokens, *found.target_tokens}:
        text = json.dumps(token).strip('"')
        assert text.replace("<", "\\u003c").replace(">", "\\u003e") in page


@pytest.mark.parametrize(
    ("sentence", "rule"), [("  ", "not blank"), ("ab" * 200, "128 positions")]
)
def test_attention_of_nothing(sentence, rule, call, workdir, tmp_path):
    where = tmp_path / "none"
    assert rule in call("attention", workdir, f"--output={where}", sentence).error
    assert not where.exists()
