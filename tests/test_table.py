"""Text for a terminal."""

import json

from jaxformer.errors import escape_controls
from jaxformer.table import align


def test_columns_are_as_wide_as_their_widest_cell():
    """A row may be short: no line ends with blanks."""
    lines = list(align([["a", "bb", "c"], ["dddd"], ["e", "f"]]))
    assert lines == ["a     bb  c", "dddd", "e      f"]


def test_no_control_character_reaches_a_terminal():
    """C0, DEL, C1 and lone surrogates are escaped; tabs, line ends and all other
    text stay, and JSON stays the same.
    """
    controls = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\ud800"]
    for control in controls:
        shown = escape_controls(f"a{control}b")
        kept = control in "\t\n"
        assert shown == (f"a{control}b" if kept else f"a\\u{ord(control):04x}b")
    text = "Größe 日本 🙂 \u2028 \\ \t\n"
    assert escape_controls(text) == text
    record = {"text": "".join(controls) + text}
    assert json.loads(escape_controls(json.dumps(record, ensure_ascii=False))) == record
