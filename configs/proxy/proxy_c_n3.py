"""Table 3 of the paper in small, row (C), 3 layers: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_c_n3.py --workdir=runs/proxy_c_n3
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 17.97 BLEU and perplexity 6.93, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's row (C), 8 layers of the base's 6: the only deeper row.
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.num_encoder_layers = 3
    config.model.num_decoder_layers = 3

    return config
