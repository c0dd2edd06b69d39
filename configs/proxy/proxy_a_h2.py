"""Table 3 of the paper in small, row (A), 2 heads of width 64: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_a_h2.py --workdir=runs/proxy_a_h2
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 19.76 BLEU and perplexity 6.38, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (A), 4 heads of width 128: half of the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_heads = 2

    return config
