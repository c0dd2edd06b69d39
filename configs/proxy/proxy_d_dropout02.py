"""Table 3 of the paper in small, row (D), dropout 0.2: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_d_dropout02.py --workdir=runs/proxy_d_dropout02
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 17.42 BLEU and perplexity 7.58, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (D), dropout 0.2.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.dropout_rate = 0.2

    return config
