"""Tables of plain text stand in columns."""

import json
import random

from jaxformer.table import align, escape_controls


def test_columns_are_as_wide_as_their_widest_cell():
    """Every cell can be read back at its column: the first ends with blanks, the
    others begin with them.
    """
    draw = random.Random(3)
    rows = [
        [["x" * draw.randint(1, 9) for _ in range(4)] for _ in range(6)]
        for _ in range(20)
    ]
    for table in rows:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row, line in zip(table, align(table), strict=True):
            assert len(line) == sum(widths) + 2 * 3
            assert line.split() == row
            assert line.startswith(row[0].ljust(widths[0]) + "  ")


def test_a_row_may_be_short():
    """What it lacks is blank, and no line ends with blanks."""
    assert list(align([["a", "bb", "c"], ["dddd"], ["e", "f"]])) == [
        "a     bb  c",
        "dddd",
        "e      f",
    ]


def test_no_control_character_reaches_a_terminal():
    """C0, DEL, C1 and lone surrogates are escaped; tabs, line ends and all other
    text stay, and JSON stays the same.
    """
    controls = [*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\ud800"]
    for control in controls:
        shown = escape_controls(f"a{control}b")
        assert shown == (
            f"a{control}b" if control in "\t\n" else f"a\\u{ord(control):04x}b"
        )
    text = "Größe 日本 🙂 \u2028 \\ \t\n"
    assert escape_controls(text) == text
    record = {"text": "".join(controls) + text}
    assert json.loads(escape_controls(json.dumps(record, ensure_ascii=False))) == record
