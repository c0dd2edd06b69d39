"""Table 3 of the paper in small, row (E), learned positions: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_e_learned.py --workdir=runs/proxy_e_learned
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 20.21 BLEU and perplexity 6.21, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (E), learned positions.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.positions = "learned"

    return config
