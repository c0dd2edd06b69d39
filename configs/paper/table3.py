"""The rows of Table 3 of the paper: English to German on newstest2013 (Vaswani et al.
2017).

Command: jaxformer train --config=configs/paper/table3.py:b_dk16
    --workdir=runs/table3_b_dk16 (without :b_dk16 it is the base; text as in
    ende_base.py), and then jaxformer evaluate --workdir=runs/table3_b_dk16
    --checkpoint=latest --metrics=bleu,compound_split_bleu
Hardware: 8 A100, float32 (TF32), 9.5e17 training FLOPs: docs/wmt.md turns them into
    hours. The paper took 12 hours on 8 P100. This is the base; jaxformer reproduce 3
    gives the FLOPs of every row.
Score: the paper reports perplexity 4.92 a word piece and 25.8 BLEU for the base, of the
    last checkpoint without averaging. Nothing of this size was trained with jaxformer
    yet.
Differs from the paper: as ende_base.py. The set is the one that validates, so that its
best checkpoint would be chosen
    on what it is judged by: take the latest. For the row e_learned the paper does not
    say how many positions its table has: here 1,024 on each side, and training text
    reaches the first 256.
"""

import ende_base as base

from jaxformer.paper.tables import find_table


def get_config(variant="base"):
    """Return the base's configuration with the changes of one row."""
    config = base.get_config()

    config.data.test = config.data.valid  # the paper's development set
    config.training.keep_latest = 2  # nothing is averaged

    config.update_from_flattened_dict(find_table(3).find(variant).changes)

    return config
