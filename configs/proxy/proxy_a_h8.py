"""Table 3 of the paper in small, row (A), 8 heads of width 16: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_a_h8.py --workdir=runs/proxy_a_h8
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 19.17 BLEU and perplexity 6.57, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (A), 16 heads of width 32: twice the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_heads = 8

    return config
