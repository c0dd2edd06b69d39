"""Table 3 of the paper, row (B), d_k 16: English to German on newstest2013 (Vaswani et al. 2017).

Command: jaxformer train --config=configs/paper/table3_b_dk16.py --workdir=runs/table3_b_dk16
Hardware: 8 A100, about 0.67 hours in float32 (TF32): an estimate, the 8.4e17 training FLOPs of the formula at 28 % of
    the published peak, a compiler's bound for base on an H200 (docs/wmt.md) that nobody has measured. The paper gives
    no time for this row.
Score: the paper reports perplexity 5.16 a word piece and 25.1 BLEU with 58 million parameters; here they are
    55,990,784. Nothing of this size was trained with jaxformer yet.
Differs from the paper: as table3_base.py; evaluate likewise.
"""

import table3_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_k = 16

    return config
