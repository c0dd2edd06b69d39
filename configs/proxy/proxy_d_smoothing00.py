"""Table 3 of the paper in small, row (D), label smoothing 0.0: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_d_smoothing00.py --workdir=runs/proxy_d_smoothing00
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 19.10 BLEU and perplexity 6.67, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (D), label smoothing 0.0.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.training.label_smoothing = 0.0

    return config
