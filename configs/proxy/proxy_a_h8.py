"""Table 3 of the paper in small, row (A), 8 heads of width 16: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_a_h8.py --workdir=runs/proxy_a_h8
Hardware: two CPU cores, minutes.
Score: measured by scripts/ablations.py.
Stands for: the paper's row (A), 16 heads of width 32: twice the base's, as here.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_heads = 8

    return config
