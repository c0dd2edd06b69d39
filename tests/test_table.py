"""Tables of plain text stand in columns."""

import random

from jaxformer.table import align


def test_columns_are_as_wide_as_their_widest_cell():
    """Every cell can be read back at its column: the first ends with blanks, the others begin with them."""
    draw = random.Random(3)
    rows = [[["x" * draw.randint(1, 9) for _ in range(4)] for _ in range(6)] for _ in range(20)]
    for table in rows:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row, line in zip(table, align(table), strict=True):
            assert len(line) == sum(widths) + 2 * 3
            assert line.split() == row
            assert line.startswith(row[0].ljust(widths[0]) + "  ")


def test_a_row_may_be_short():
    """What it lacks is blank, and no line ends with blanks."""
    assert list(align([["a", "bb", "c"], ["dddd"], ["e", "f"]])) == ["a     bb  c", "dddd", "e      f"]
