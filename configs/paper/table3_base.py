"""Table 3 of the paper, base: English to German on newstest2013 (Vaswani et al. 2017); the other rows change it.

Command: jaxformer train --config=configs/paper/table3_base.py --workdir=runs/table3_base   (text as in ende_base.py)
    and then jaxformer evaluate --workdir=runs/table3_base --checkpoint=latest --metrics=bleu,compound_split_bleu
Hardware: 8 A100, about 0.76 hours in float32 (TF32): an estimate, the 9.5e17 training FLOPs of the formula at 28 % of
    the published peak, a compiler's bound for base on an H200 (docs/wmt.md) that nobody has measured. The paper took 12
    hours on 8 P100.
Score: the paper reports perplexity 4.92 a word piece and 25.8 BLEU, of the last checkpoint without averaging, with 65
    million parameters; here they are 63,082,496. Nothing of this size was trained with jaxformer yet.
Differs from the paper: as ende_base.py. The set is the one that validates, so that its best checkpoint would be chosen
    on what it is judged by: take the latest.
"""

import ende_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.data.test = config.data.valid  # the paper's development set
    config.training.keep_latest = 2  # nothing is averaged

    return config
