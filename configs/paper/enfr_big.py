"""The paper's big model for WMT 2014 English to French (Vaswani et al. 2017, Table 2).

Command: jaxformer train --config=configs/paper/enfr_big.py --workdir=runs/enfr_big
    (text as in enfr_base.py) jaxformer average --workdir=runs/enfr_big --last=20
    jaxformer evaluate --workdir=runs/enfr_big --checkpoint=average
    --metrics=bleu,tokenized_bleu
Hardware: 8 A100, float32 (TF32), 9.4e18 training FLOPs: docs/wmt.md turns them into
    hours. The paper took 3.5 days on 8 P100.
Score: the paper reports 41.8 tokenised BLEU on newstest2014 in its table and abstract,
    and 41.0 in section 6.1, averaging the last 20 checkpoints. Nothing of this size was
    trained with jaxformer yet.
Differs from the paper: as enfr_base.py.
"""

import enfr_base as base


def get_config():
    """Return the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16  # with the base's dropout of 0.1 (section 6.1)

    config.training.steps = 300_000
    # the paper's 10 minutes, at its second a step
    config.training.checkpoint_every = 600
    config.training.keep_latest = 20  # those that are averaged

    return config
