"""The paper's big model for WMT 2014 English to German (Vaswani et al. 2017, Table 2).

Command: jaxformer train --config=configs/paper/ende_big.py --workdir=runs/ende_big
    (text as in ende_base.py) jaxformer average --workdir=runs/ende_big --last=20
    jaxformer evaluate --workdir=runs/ende_big --checkpoint=average
    --metrics=bleu,compound_split_bleu
Hardware: 8 A100, float32 (TF32), 9.7e18 training FLOPs: docs/wmt.md turns them into
    hours. The paper took 3.5 days on 8 P100.
Score: the paper reports 28.4 tokenised BLEU with compound splitting on newstest2014,
    averaging the last 20 checkpoints; expect about 0.7 less in sacreBLEU. Nothing of
    this size was trained with jaxformer yet.
Differs from the paper: as ende_base.py.
"""

import ende_base as base


def get_config():
    """Return the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.dropout_rate = 0.3  # 0.1 for English to French

    config.training.steps = 300_000
    # the paper's 10 minutes, at its second a step
    config.training.checkpoint_every = 600
    config.training.keep_latest = 20  # those that are averaged

    return config
