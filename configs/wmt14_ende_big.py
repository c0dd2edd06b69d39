"""The paper's big model for WMT 2014 English to German (Vaswani et al. 2017, table 2 and 3).

Command: as in wmt14_ende_base.py, with this file.
Hardware: the paper took 3.5 days on 8 P100.
Score: the paper reports 28.4 tokenised BLEU with compound splitting on newstest2014, averaging the last 20 checkpoints;
    expect about 0.7 less in sacreBLEU. Nothing of this size was trained with jaxformer yet.
Differs from the paper: SentencePiece BPE instead of the paper's own byte-pair encoding.
"""

import wmt14_ende_base as base


def get_config():
    """Give the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout_rate = 0.3  # 0.1 for English to French

    config.training.steps = 300_000
    config.training.keep_latest = 20

    return config
