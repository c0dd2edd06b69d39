"""English to German on the bundled corpus: a scored translation model in minutes.

Command: jaxformer train --config=configs/quickstart.py --workdir=runs/quickstart
Hardware: two CPU cores. Time and score: docs/start.md.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Return the configuration."""
    config = default_config()

    config.model.d_model = 192
    config.model.d_ff = 768
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

    config.training.steps = 2_000
    config.training.schedule = "cosine"
    config.training.learning_rate = 3e-3
    config.training.warmup_steps = 300
    config.training.log_every = 100
    config.training.evaluate_every = 500
    config.training.checkpoint_every = 500

    return config
