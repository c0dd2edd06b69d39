"""Table 3 of the paper in small, row (C), d_ff 1024: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_c_ff1024.py --workdir=runs/proxy_c_ff1024
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 20.52 BLEU and perplexity 6.20, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (C), d_ff 4096: twice the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_ff = 1024

    return config
