"""Write letters backwards: a task that a Transformer learns in two minutes, and that
proves an installation.

Command: jaxformer train --config=configs/reverse.py --workdir=runs/reverse
Hardware: two CPU cores, about two minutes.
Score: 499 of 500 unseen sequences exact.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Return the configuration."""
    config = default_config()

    config.model.d_model = 96
    config.model.d_ff = 384
    config.model.num_heads = 4
    config.model.num_encoder_layers = 2
    config.model.num_decoder_layers = 2
    config.model.dropout_rate = 0.0
    config.model.norm_order = "pre"
    config.model.max_length = 128

    config.data.train = "synthetic:reverse/train"
    config.data.valid = "synthetic:reverse/valid"
    config.data.test = "synthetic:reverse/test"
    config.data.source_language = "forwards"
    config.data.target_language = "backwards"
    # 26 letters with their space, and what SentencePiece needs besides
    config.data.vocabulary_size = 57
    config.data.max_length = 16
    config.data.tokens_per_batch = 1_600

    config.training.steps = 1_500
    config.training.warmup_steps = 150
    config.training.learning_rate = 0.35
    config.training.log_every = 100
    config.training.evaluate_every = 500
    config.training.checkpoint_every = 500

    return config
