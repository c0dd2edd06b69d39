"""Table 3 of the paper, row (A), 4 heads of width 128: English to German on newstest2013 (Vaswani et al. 2017).

Command: jaxformer train --config=configs/paper/table3_a_h4.py --workdir=runs/table3_a_h4
Hardware: 8 A100, about 0.76 hours in float32 (TF32): an estimate, the 9.5e17 training FLOPs of the formula at 28 % of
    the published peak, a compiler's bound for base on an H200 (docs/wmt.md) that nobody has measured. The paper gives
    no time for this row.
Score: the paper reports perplexity 5.00 a word piece and 25.5 BLEU. Nothing of this size was trained with jaxformer
    yet.
Differs from the paper: as table3_base.py; evaluate likewise.
"""

import table3_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_heads = 4  # each of width d_model / num_heads, so that the computation stays the same

    return config
