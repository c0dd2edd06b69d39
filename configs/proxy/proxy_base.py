r"""Table 3 of the paper in small, base: English to German on the bundled corpus; the other rows change it.

Command: jaxformer train --config=configs/proxy/proxy_base.py --workdir=runs/proxy_base
    and with other text:
    jaxformer train --config=configs/proxy/proxy_base.py --workdir=runs/proxy_base \
    --config.data.train=text:train.en,train.de --config.data.valid=text:valid.en,valid.de \
    --config.data.test=text:test.en,test.de
    All rows, one after another: python scripts/ablations.py --output=runs/ablations
Hardware: two CPU cores, about 4 minutes.
Score: 19.38 BLEU and perplexity 6.37, three seeds (docs/ablations.md, by scripts/ablations.py).
Stands for: the paper's base, in its shape: a quarter of its widths, half of its heads, a third of its layers, with its
    schedule, dropout and label smoothing. What is scored is the last checkpoint, and nothing is averaged.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Give the configuration."""
    config = default_config()

    config.model.d_model = 128
    config.model.d_ff = 512
    config.model.num_heads = 4
    config.model.num_encoder_layers = 2
    config.model.num_decoder_layers = 2
    config.model.max_length = 256

    config.data.train = "bundled:en-de/train"
    config.data.valid = "bundled:en-de/valid"
    config.data.test = "bundled:en-de/test"
    config.data.vocabulary_size = 2_000
    config.data.max_length = 64
    config.data.tokens_per_batch = 1_200
    config.data.num_buckets = 6

    config.training.steps = 2_800
    config.training.warmup_steps = 800
    config.training.log_every = 100
    config.training.evaluate_every = 700
    config.training.checkpoint_every = 100
    config.training.keep_latest = 5  # the last five are averaged once

    config.evaluation.max_sentences = 0  # its perplexity is all that is asked of the validation set
    config.evaluation.best_metric = "loss"

    return config
