"""An encoder-only masked language model of the bundled corpus (Devlin et al. 2019), and
a classifier of the language of a line that starts from it; or, of Python's standard
library, a model that also predicts whether a text follows another.

Command: jaxformer train --config=configs/masked_language_model.py:words
    --workdir=runs/words, then jaxformer train
    --config=configs/masked_language_model.py:language --workdir=runs/language
    --config.training.initial_run=runs/words; or with :words_and_next
Hardware: two CPU cores. Time and score: docs/families.md; nothing is claimed for
words_and_next.
"""

import language_model as base

from jaxformer.errors import InputError


def get_config(variant="words"):
    """Return the configuration: of ``words``, of the classifier ``language`` or of
    ``words_and_next``.
    """
    if variant not in ("words", "language", "words_and_next"):
        raise InputError(
            f"the variants are words, language and words_and_next, not {variant!r}"
        )
    config = base.small_stack()

    config.model.num_encoder_layers = 4
    config.model.num_decoder_layers = 0
    config.model.activation = "gelu_exact"
    config.model.embedding_norm = True
    config.model.output_bias = True
    config.model.head = "words"
    config.model.norm_epsilon = 1e-12
    config.model.max_length = 128

    config.data.kind = "masked"
    config.data.max_length = 64
    config.data.packing = False  # docs/families.md was measured so

    config.training.objective = "masked"
    config.training.initializer = "normal"
    config.training.steps = 2_000
    config.training.weight_decay = 0.01
    config.training.adam_b2 = 0.98
    config.training.schedule = "linear"
    config.training.learning_rate = 1e-3
    config.training.warmup_steps = 200

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
    elif variant == "words_and_next":
        config.model.head = "words_and_next"
        config.model.segment_types = 2
        config.data.kind = "documents"
        base.read_python(config)
        config.data.max_length = 128
        config.training.objective = "masked_and_next"

    return config
