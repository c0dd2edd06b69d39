r"""A start for some hundred thousand sentence pairs or fewer: a narrower model with
more dropout.

Command: jaxformer train --config=configs/modern/small_data.py \
    --workdir=runs/small_data \
    --config.data.train=text:train.en,train.de \
    --config.data.valid=text:valid.en,valid.de \
    --config.data.test=text:test.en,test.de
Hardware: 1 A100, bfloat16, 6.3e16 training FLOPs: docs/wmt.md turns them into hours.
    Small batches fill a device less.
Score: none is claimed. Nothing of this size was trained with jaxformer yet.
Differs from the paper, and why: as deep_shallow.py, and also
    feed-forward layers half as wide and 4 heads, 6 encoder and 3 decoder layers: fewer
    parameters to fit by heart; dropout 0.3, and a vocabulary of 8,000 pieces: both are
    what little text asks for (Sennrich & Zhang 2019); another segmentation of the text
    in each epoch, which makes more of the same text (Kudo 2018); 8,000 tokens on each
    side of a batch: small text has few batches as it is.
"""

import deep_shallow as base


def get_config():
    """Return the base's configuration with the lines that differ."""
    config = base.get_config()

    config.model.d_ff = 1024
    config.model.num_heads = 4
    config.model.num_encoder_layers = 6
    config.model.num_decoder_layers = 3
    config.model.dropout_rate = 0.3

    config.data.vocabulary_size = 8_000
    config.data.segmentation_alpha = 0.2
    config.data.tokens_per_batch = 8_000  # on each side

    config.training.steps = 50_000
    config.training.learning_rate = 1.0

    return config
