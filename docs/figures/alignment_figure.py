"""Draw the picture of docs/attention-before.md, alignments of five kinds of attention,
in half a minute: ``python docs/figures/alignment_figure.py
docs/images/attention-before.png``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import panels
from jaxformer.visualization import style

EXAMPLE = Path(__file__).parents[1] / "examples" / "earlier_attention.py"


def draw_alignments(picture: Path | str) -> Path:
    """Train the example's readers, and draw the alignment of one sentence by each."""
    example = runpy.run_path(str(EXAMPLE))
    figure = style.new_figure(9, 2.4)
    kinds = example["KINDS"]
    for axes, kind in zip(figure.subplots(1, len(kinds)), kinds, strict=True):
        panels.show_matrix(
            axes,
            example["align"](kind)[2],
            title=kind,
            down="asked for" if kind == "additive" else "",
            across="position",
            names=panels.SIGNED[1:],
            low=0.0,
            high=1.0,
        )
        axes.set_xticks([])
        axes.set_yticks([])
    return style.save(figure, picture)


if __name__ == "__main__":
    print(draw_alignments(sys.argv[1]))
