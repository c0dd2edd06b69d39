"""Table 3 of the paper, row (C), 4 layers: English to German on newstest2013 (Vaswani et al. 2017).

Command: jaxformer train --config=configs/paper/table3_c_n4.py --workdir=runs/table3_c_n4
Hardware: 8 A100, about 0.58 hours in float32 (TF32): an estimate, the 7.3e17 training FLOPs of the formula at 28 % of
    the published peak, a compiler's bound for base on an H200 (docs/wmt.md) that nobody has measured. The paper gives
    no time for this row.
Score: the paper reports perplexity 5.19 a word piece and 25.3 BLEU with 50 million parameters; here they are
    48,369,664. Nothing of this size was trained with jaxformer yet.
Differs from the paper: as table3_base.py; evaluate likewise.
"""

import table3_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 4

    return config
