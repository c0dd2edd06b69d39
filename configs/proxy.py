r"""The rows of Table 3 of the paper in small: English to German on the bundled corpus.

Command: jaxformer train --config=configs/proxy.py:a_h1 --workdir=runs/proxy_a_h1
    (without :a_h1 it is the base), and with other text:
    jaxformer train --config=configs/proxy.py:a_h1 --workdir=runs/proxy_a_h1 \
    --config.data.train=text:train.en,train.de \
    --config.data.valid=text:valid.en,valid.de \
    --config.data.test=text:test.en,test.de
Hardware: two CPU cores, about 4 minutes for the base and at most a quarter of an hour.
Score: docs/ablations.md has BLEU and perplexity of every row.
Stands for: the paper's base, in its shape: a quarter of its widths, half of its heads,
    a third of its layers, with its
    schedule, dropout and label smoothing. What is scored is the last checkpoint, and
    nothing is averaged. Each variant changes what the row of the paper changes;
    pre_norm stands for none (Xiong et al. 2020).
"""

from jaxformer.errors import InputError
from jaxformer.runs.config import default_config

VARIANTS = {
    "base": {},
    "a_h1": {"model.num_heads": 1},
    "a_h2": {"model.num_heads": 2},
    "a_h8": {"model.num_heads": 8},
    "b_dk8": {"model.d_k": 8},
    "b_dk16": {"model.d_k": 16},
    "c_n1": {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1},
    "c_n3": {"model.num_encoder_layers": 3, "model.num_decoder_layers": 3},
    "c_d64": {"model.d_model": 64},
    "c_d256": {"model.d_model": 256},
    "c_ff256": {"model.d_ff": 256},
    "c_ff1024": {"model.d_ff": 1024},
    "d_dropout00": {"model.dropout_rate": 0.0},
    "d_dropout02": {"model.dropout_rate": 0.2},
    "d_smoothing00": {"training.label_smoothing": 0.0},
    "d_smoothing02": {"training.label_smoothing": 0.2},
    "e_learned": {"model.positions": "learned"},
    "pre_norm": {"model.norm_order": "pre"},
}


def get_config(variant="base"):
    """Return the configuration of one row."""
    if variant not in VARIANTS:
        raise InputError(
            f"configs/proxy.py has no variant {variant!r}: take {', '.join(VARIANTS)}"
        )
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
    config.data.packing = False  # docs/ablations.md was measured so
    config.data.num_buckets = 6

    config.training.steps = 2_800
    config.training.warmup_steps = 800
    config.training.log_every = 100
    config.training.evaluate_every = 700
    config.training.checkpoint_every = 100
    config.training.keep_latest = 5  # the last five are averaged once

    # its perplexity is all that is asked of the validation set
    config.evaluation.max_sentences = 0
    config.evaluation.best_metric = "loss"

    config.update_from_flattened_dict(VARIANTS[variant])

    return config
