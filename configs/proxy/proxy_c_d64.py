"""Table 3 of the paper in small, row (C), d_model 64: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_c_d64.py --workdir=runs/proxy_c_d64
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 15.32 BLEU and perplexity 9.11, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (C), d_model 256: half of the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_model = 64

    return config
