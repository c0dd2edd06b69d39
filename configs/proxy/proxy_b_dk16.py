"""Table 3 of the paper in small, row (B), d_k 16: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_b_dk16.py --workdir=runs/proxy_b_dk16
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 18.98 BLEU and perplexity 6.82, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (B), d_k 32: half of the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_k = 16

    return config
