"""Table 3 of the paper in small, row (C), 1 layer: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_c_n1.py --workdir=runs/proxy_c_n1
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 18.59 BLEU and perplexity 7.68, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (C), 4 layers of the base's 6: of the shallower rows the one nearest to 1 of 2.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_encoder_layers = 1
    config.model.num_decoder_layers = 1

    return config
