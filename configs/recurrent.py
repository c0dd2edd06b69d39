"""The networks before the Transformer, English to German on the bundled corpus, with
about as many parameters as the quickstart's Transformer.

Command: jaxformer train --config=configs/recurrent.py:bahdanau
    --workdir=runs/bahdanau for RNNsearch (Bahdanau et al. 2015; without :bahdanau it is
    the same), or jaxformer train --config=configs/recurrent.py:luong
    --workdir=runs/luong for two layers with general attention and input feeding (Luong
    et al. 2015).
Hardware: two CPU cores. Time and score: docs/families.md has both after ten minutes; no
    run of all steps was timed.
Differs from the papers: Adam with the schedule of the Transformer's paper in place of
    Adadelta and plain SGD, pieces of words and one table for both languages in place of
    words, dropout and label smoothing in both.
"""

import quickstart

from jaxformer.errors import InputError
from jaxformer.runs.config import default_config

WIDTHS = {"bahdanau": 232, "luong": 224}


def get_config(variant="bahdanau"):
    """Return the quickstart's configuration with another network."""
    if variant not in WIDTHS:
        raise InputError(f"the networks are {' and '.join(WIDTHS)}, not {variant!r}")
    config = quickstart.get_config()

    config.model = default_config().model
    config.model.network = variant
    config.model.d_model = WIDTHS[variant]
    config.model.num_encoder_layers = config.model.num_decoder_layers = 1
    if variant == "luong":
        config.model.num_encoder_layers = config.model.num_decoder_layers = 2
    config.model.dropout_rate = 0.2
    config.model.max_length = 256

    # docs/families.md was measured so
    config.training.steps = 2_800
    config.training.schedule = "paper"
    config.training.learning_rate = 1.0
    config.training.warmup_steps = 800
    config.training.evaluate_every = config.training.checkpoint_every = 700
    config.training.gradient_clip = 1.0

    return config
