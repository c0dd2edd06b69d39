"""An encoder-only masked language model of the bundled corpus (Devlin et al. 2019), and
a classifier of the language of a line that starts from it.

Command: jaxformer train --config=configs/masked_language_model.py:words
    --workdir=runs/words, then jaxformer train
    --config=configs/masked_language_model.py:language --workdir=runs/language
    --config.training.initial_run=runs/words
Hardware: 9 minutes for the words and 1 for the classifier on two CPU cores. Score:
docs/families.md.
"""

from jaxformer.errors import InputError
from jaxformer.runs.config import default_config


def get_config(variant="words"):
    """Return the configuration: of ``words`` or of the classifier ``language``."""
    if variant not in ("words", "language"):
        raise InputError(f"the variants are words and language, not {variant!r}")
    config = default_config()

    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 0
    config.model.d_model = 192
    config.model.d_ff = 768
    config.model.num_heads = 4
    config.model.activation = "gelu_exact"
    config.model.embedding_norm = True
    config.model.positions = "learned"
    config.model.scale_embedding = False
    config.model.output_bias = True
    config.model.head = "words"
    config.model.norm_epsilon = 1e-12
    config.model.max_length = 128

    config.data.kind = "masked"
    config.data.vocabulary_size = 2_000
    config.data.max_length = 64
    config.data.tokens_per_batch = 2_048

    config.training.objective = "masked"
    config.training.initializer = "normal"
    config.training.label_smoothing = 0.0
    config.training.steps = 2_000
    config.training.optimizer = "adamw"
    config.training.weight_decay = 0.01
    config.training.adam_b2 = 0.98
    config.training.schedule = "linear"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 200
    config.training.gradient_clip = 1.0
    config.training.log_every = 100
    config.training.evaluate_every = 500
    config.training.checkpoint_every = 500

    config.evaluation.best_metric = "loss"
    config.evaluation.max_sentences = 0

    if variant == "language":
        config.model.head = "classification"
        config.model.output_bias = False
        config.data.kind = "labelled"
        config.training.objective = "classification"
        config.data.num_buckets = 1
        config.training.steps = 40
        config.training.warmup_steps = 4
        config.training.log_every = 5
        config.training.evaluate_every = 5
        config.training.checkpoint_every = 40

    return config
