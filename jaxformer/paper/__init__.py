"""The tables of "Attention Is All You Need", next to the parameters, costs and scores
of jaxformer.
"""

from jaxformer.paper.cost import (
    UTILISATION,
    count_flops,
    expected_hours,
    peak_flops_per_second,
)
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.picture import draw
from jaxformer.paper.report import Line, make_lines, to_markdown
from jaxformer.paper.runs import RunScore, read_run
from jaxformer.paper.tables import BASE, TABLES, Row, Table, find_table

__all__ = [
    "BASE",
    "TABLES",
    "UTILISATION",
    "Line",
    "Row",
    "RunScore",
    "Table",
    "count_flops",
    "count_parameters",
    "draw",
    "expected_hours",
    "find_table",
    "make_lines",
    "peak_flops_per_second",
    "read_run",
    "to_markdown",
]
