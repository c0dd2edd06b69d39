"""Table 3 of the paper in small, row (A), 1 head of width 128: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_a_h1.py --workdir=runs/proxy_a_h1
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 19.01 BLEU and perplexity 6.70, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (A), 1 head of width 512 where the base has 8 of width 64; here the base has 4 of width 32.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_heads = 1

    return config
