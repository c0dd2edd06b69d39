"""Continue to train a run on other text, above all an imported one.

Command: jaxformer train --config=finetune:RUN --workdir=NEW
    --config.data.train=text:train.en,train.de
    --config.data.valid=text:valid.en,valid.de --config.data.test=text:test.en,test.de,
    where RUN is the directory of the run. Its model, vocabulary, languages and search
    are taken, its objective, and its best parameters. For another objective give
    training.objective, data.kind and model.head too, such as classification, labelled
    and classification: that head is newly drawn.
Hardware: as for the run's own model. Score: nothing is claimed; the rate and the steps
    are common ones for a few hundred thousand pairs of a domain.
"""

import dataclasses
from pathlib import Path

from jaxformer import bucket
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration

# What decides the tokens of a text and is not a step of cleaning.
_OF_THE_VOCABULARY = (
    *("source_language", "target_language", "language_tags", "source_eos"),
    *("vocabulary_size", "source_vocabulary_size", "shared_vocabulary"),
    *("kind", "labels"),
)


def get_config(run=None):
    """Return the configuration that begins with the parameters of a run."""
    if run is None:
        raise InputError("name the run to begin with: --config=finetune:RUN")
    known = configuration.load(Path(bucket.open_directory(run)) / "config.json")
    config = configuration.default_config()

    for name in config.model:
        config.model[name] = getattr(known.model, name)
    if not known.model.num_decoder_layers:
        # For a new head of words, as BERT has it; no other head reads it.
        config.model.output_bias |= known.model.head not in ("words", "words_and_next")
        if config.model.head in ("none", "pooled"):
            config.model.head = "words"
    for name in _OF_THE_VOCABULARY:
        config.data[name] = getattr(known.data, name)
    for name, value in dataclasses.asdict(known.decoding).items():
        config.decoding[name] = value
    for name in ("objective", "mask_rate", "initializer"):
        config.training[name] = getattr(known.training, name)
    if known.training.objective != "translation":  # nothing is translated
        config.training.label_smoothing = 0.0
        config.evaluation.best_metric = "loss"
        config.evaluation.max_sentences = 0
    config.data.max_length = min(known.data.max_length, 256)
    config.data.tokens_per_batch = 4_096

    config.training.initial_run = run
    config.training.steps = 10_000
    config.training.schedule = "inverse_sqrt"
    config.training.learning_rate = 5e-5
    config.training.warmup_steps = 500
    config.training.gradient_clip = 1.0
    config.training.evaluate_every = 1_000

    return config
