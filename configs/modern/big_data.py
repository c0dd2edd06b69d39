r"""A start for tens of millions of sentence pairs: deep encoder, shallow decoder, the
big model's width.

Command: jaxformer train --config=configs/modern/big_data.py --workdir=runs/big_data \
    --config.data.train=prepared:data/prepared \
    --config.data.valid=text:valid.en,valid.de \
    --config.data.test=text:test.en,test.de
    Tokenise the text once, by jaxformer prepare (docs/data.md).
Hardware: 8 A100, bfloat16, 5.2e19 training FLOPs: docs/wmt.md turns them into hours.
Score: none is claimed. Nothing of this size was trained with jaxformer yet.
Differs from the paper, and why: as deep_shallow.py, and also
    400,000 tokens on each side of a batch (Ott et al. 2018: with half precision as
    well, the big model trains nearly five times as fast); dropout 0.1, and none on
    attention weights and activations: the paper has 0.3 for 4.5 million pairs and 0.1
    for 36 million, the more text, the less.
"""

import deep_shallow as base


def get_config():
    """Return the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_model = 1024
    config.model.d_ff = 4096
    config.model.num_heads = 16
    config.model.attention_dropout_rate = 0.0
    config.model.activation_dropout_rate = 0.0

    config.data.train = "prepared:data/prepared"
    config.data.tokens_per_batch = 400_000  # on each side

    return config
