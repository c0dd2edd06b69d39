"""The base of the ablations with normalisation before each sub-layer: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy/proxy_pre_norm.py --workdir=runs/proxy_pre_norm
Hardware: two CPU cores, minutes to a quarter of an hour.
Score: 19.50 BLEU and perplexity 6.35, one seed (docs/ablations.md, by scripts/ablations.py).
Stands for: no row of the paper, which has it after each; most models since have it before (Xiong et al. 2020).
"""

import proxy_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.norm_order = "pre"

    return config
