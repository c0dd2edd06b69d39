"""A folder that is imported computes and translates as transformers does: text in, the
same text out, with every token and score.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalCall=false, reportArgumentType=false

import dataclasses

import jax
import numpy as np
import pytest
import tokenizer_folders
from parity.imported_models import (
    FAMILIES,
    WAYS,
    compare,
    imported_case,
    their_batch,
    transformers,
)
from parity.translation_models import check_gradients

from jaxformer.data.encoding import encode
from jaxformer.data.records import Pair
from jaxformer.models.transformer import Transformer
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.step import make_loss

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
    pytest.mark.filterwarnings("ignore:.*sacremoses"),
]
TEXTS = [text for text in tokenizer_folders.sentences() if len(text) < 90][:24]


@pytest.mark.parametrize("name", WAYS)
def test_text_scores_and_tokens_are_those_of_transformers(name):
    """Greedily and with a beam of 4, all four hypotheses."""
    case = imported_case(name)
    assert not case.ignored
    theirs, model, lengths = case.tokenizer, case.model, set()
    for beam_size in (1, 4):
        of = case.translator, theirs, model, name, TEXTS, beam_size
        lengths |= compare(*of, alone=name == "nllb")
    assert len(lengths) > 3


@pytest.mark.parametrize("name", WAYS)
def test_loss_and_gradients_of_text_are_those_of_transformers(name):
    """What a training step minimises of padded pairs, by each side's own tokenizer,
    with the tokens around the text.
    """
    case = imported_case(name)
    texts = tokenizer_folders.sentences()
    pairs = [Pair(*each) for each in zip(texts[:12:2], texts[1:12:2], strict=True)]
    languages = tuple(code or "" for code in FAMILIES[name][-1])
    sides = case.translator.vocabularies
    encoded = encode(pairs, sides, source_eos=True, languages=languages)
    labels, theirs = their_batch(name, case.tokenizer, case.model, pairs)
    batch = {}
    for side, length in (
        ("source", theirs["input_ids"].shape[1]),
        ("target", labels.shape[1]),
    ):
        batch[side] = getattr(encoded, side).padded(len(pairs), length)
    np.testing.assert_array_equal(batch["source"], theirs["input_ids"])
    np.testing.assert_array_equal(batch["target"], labels)
    rates = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
    config = dataclasses.replace(
        case.translator.model.config, **dict.fromkeys(rates, 0.0)
    )
    total = make_loss(
        Transformer(config), TrainingConfig(label_smoothing=0.0), lambda params: params
    )

    def mean(params):
        loss, sums = total(params, batch, jax.random.key(0))
        return loss / sums["tokens"]

    check_gradients(case.model, theirs, mean, case.translator.params)
