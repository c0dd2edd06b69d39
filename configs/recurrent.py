"""The networks before the Transformer, English to German on the bundled corpus, with
about as many parameters as the quickstart's Transformer.

Command: jaxformer train --config=configs/recurrent.py:bahdanau
    --workdir=runs/bahdanau for RNNsearch (Bahdanau et al. 2015; without :bahdanau it is
    the same). :luong has two layers with general attention and input feeding (Luong et
    al. 2015). Without attention: :sutskever, two layers that read the source in reverse
    (Sutskever et al. 2014), and :cho (Cho et al. 2014).
Hardware: two CPU cores. Time and score: docs/families.md has both of the first two
    after ten minutes; no run of all steps was timed.
Differs from the papers: Adam with the schedule of the Transformer's paper in place of
    Adadelta and plain SGD, at most two layers, pieces of words and one table for both
    languages in place of words, dropout and label smoothing in all.
"""

import quickstart

from jaxformer.errors import InputError
from jaxformer.runs.config import default_config

WIDTHS = {"bahdanau": 232, "luong": 224, "sutskever": 248, "cho": 288}


def get_config(variant="bahdanau"):
    """Return the quickstart's configuration with another network."""
    if variant not in WIDTHS:
        raise InputError(f"the networks are {', '.join(WIDTHS)}, not {variant!r}")
    config = quickstart.get_config()

    config.model = default_config().model
    config.model.network = variant
    config.model.d_model = WIDTHS[variant]
    config.model.num_encoder_layers = config.model.num_decoder_layers = 1
    if variant in ("luong", "sutskever"):
        config.model.num_encoder_layers = config.model.num_decoder_layers = 2
    config.model.reverse_source = variant == "sutskever"
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
