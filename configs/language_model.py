"""A decoder-only language model of Python's standard library (Radford et al. 2019).

Command: jaxformer train --config=configs/language_model.py --workdir=runs/python
    jaxformer generate --workdir=runs/python "def main("
Hardware: two CPU cores. Time and score: docs/families.md.
"""

from jaxformer.runs.config import default_config


def get_config():
    """Return the configuration."""
    config = small_stack()

    config.model.num_encoder_layers = 0
    config.model.num_decoder_layers = 4
    config.model.norm_order = "pre"
    config.model.activation = "gelu"
    config.model.max_length = 256

    config.data.kind = "text"
    read_python(config)
    config.data.max_length = 128
    config.data.window = 128

    config.training.objective = "causal"
    config.training.initializer = "normal_residual"
    config.training.steps = 1_500
    config.training.weight_decay = 0.1
    config.training.adam_b2 = 0.95
    config.training.schedule = "cosine"
    config.training.learning_rate = 2e-3
    config.training.warmup_steps = 100

    config.decoding.beam_size = 1

    return config


def small_stack():
    """Return what small models of one stack have in common."""
    config = default_config()

    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.positions = "learned"
    config.model.scale_embedding = False

    config.data.vocabulary_size = 2_000
    config.data.tokens_per_batch = 2_048

    config.training.label_smoothing = 0.0
    config.training.optimizer = "adamw"
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.evaluate_every = 500
    config.training.checkpoint_every = 500

    config.evaluation.best_metric = "loss"
    config.evaluation.max_sentences = 0

    return config


def read_python(config):
    """Read the source files of Python's library, whose indentation counts."""
    config.data.train = "python:train"
    config.data.valid = "python:valid"
    config.data.test = "python:test"
    config.data.vocabulary_model = "bytes"
