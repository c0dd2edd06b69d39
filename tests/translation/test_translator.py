"""What a translator finds: the same next to any neighbours, with true scores."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import (
    assert_scores_are_the_models,
    broken_for_last,
    equally_long,
    forward,
    many,
    random_translator,
    teacher_forced,
    token_ids,
)

import runs
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data.sources import Pair
from jaxformer.errors import InputError
from jaxformer.models import stack_layers
from jaxformer.runs import config as configuration
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator


def first(found: list[list[Hypothesis]]) -> list[Hypothesis]:
    return [best for best, *_ in found]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("source_eos", [True, False])
def test_length_limit_belongs_to_the_sentence(beam_size, source_eos):
    """An endless translation stops after its own source's tokens and 20 more,
    unfinished.
    """
    translator, texts = random_translator(eos=0.0, source_eos=source_eos), many()[:8]
    found = translator.search(texts, beam_size=beam_size)
    for text, (best,) in zip(texts, found, strict=True):
        assert len(best.tokens) == len(runs.vocabulary().encode(text)) + 20
        assert not best.finished


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.6), (4, 1.5)])
def test_scores_are_those_of_a_forward_pass(beam_size, alpha):
    """The n best differ and are sorted, finished ones first; the cached search and one
    forward pass without padding agree on each.
    """
    translator, texts = random_translator(), equally_long()
    options = {"beam_size": beam_size, "alpha": alpha}
    found = translator.search(texts, n_best=beam_size, **options)
    for hypotheses in zip(*found, strict=True):
        assert_scores_are_the_models(translator, texts, list(hypotheses))
    for own in found:
        assert len({tuple(each.tokens) for each in own}) == beam_size
        ranks = [(not each.finished, -each.score) for each in own]
        assert ranks == sorted(ranks)
        for each in own:
            penalty = ((5 + len(each.tokens)) / 6) ** alpha
            expected = each.log_probability / penalty
            np.testing.assert_allclose(each.score, expected, rtol=1e-4)
    assert {each.finished for own in found for each in own} == {True, False}


def test_coverage_is_that_of_the_models_attention():
    """The score is the log-probability divided by the named penalty, and beta times
    what the last layer's attention has left out.
    """
    translator, texts = random_translator(), equally_long()
    changes = {"coverage_penalty": 0.4, "length_penalty": "average", "alpha": 0.8}
    decoding = dataclasses.replace(translator.decoding, **changes, max_target_length=6)
    found = first(translator.search(texts, decoding=decoding))
    ids = [token_ids(translator, best) for best in found]
    _, (*_, weights) = forward(translator, texts, ids)
    for best, own in zip(found, weights, strict=True):
        size = len(best.tokens)
        seen = own[:, :size].mean(axis=0).sum(axis=0)
        coverage = np.log(np.minimum(seen, 1)).sum()
        expected = best.log_probability / size**0.8 + 0.4 * coverage
        assert best.score == pytest.approx(expected, rel=1e-4)
        assert coverage < -0.1


def test_score_of_given_targets():
    """``score`` is the sum over the target and its end of sentence next to any
    neighbours; a blank side has a score too.
    """
    translator, texts = random_translator(), equally_long()[:5]
    targets = equally_long()[1:4] + many()[:2]
    ids = translator.codec.encode_targets(targets)
    table = teacher_forced(translator, texts, ids)
    expected = [
        row[np.arange(len(tokens)), tokens].sum()
        for row, tokens in zip(table, ids, strict=True)
    ]
    blank = [Pair("open", ""), Pair("", "offen"), Pair("", "")]
    pairs = [Pair(*pair) for pair in zip(texts, targets, strict=True)]
    *scores, no_target, no_source, nothing = translator.score([*pairs, *blank])
    found = [score.log_probability for score in scores]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert [score.tokens for score in scores] == [len(tokens) for tokens in ids]
    assert no_target.tokens == nothing.tokens == 1 < no_source.tokens
    for score in (no_target, no_source, nothing):
        assert -np.inf < score.log_probability < 0


def test_scanned_layers_are_looped(tmp_path):
    """A translator loops over the layers of a run with a scanned model."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    config = configuration.load(run / "config.json")
    model = dataclasses.replace(config.model, scan_layers=True)
    configuration.save(dataclasses.replace(config, model=model), run / "config.json")
    params = Translator.load(runs.random_run(), "10").params
    checkpoints = CheckpointManager(run / "checkpoints")
    progress = {**checkpoints.progress(10), "step": 30}
    state = {"step": jnp.asarray(30)}
    checkpoints.save(30, stack_layers(params), state, progress, {"bleu": 6.0})
    checkpoints.wait()
    checkpoints.close()
    loaded = Translator.load(run, "30")
    assert not loaded.model.config.scan_layers
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


NAN = "has probabilities that are not a number \\(NaN\\)"


@pytest.mark.parametrize(
    "changes", [{"beam_size": 1}, {"diversity_groups": 2}, {"sample": True}]
)
def test_one_sentence_that_is_not_a_number_is_named_among_others(changes):
    """A token whose embedding is NaN affects only the sentences that contain it,
    however the search chooses.
    """
    plain, texts = random_translator(), many()[:8]
    broken = broken_for_last(plain, texts)
    decoding = dataclasses.replace(plain.decoding, **changes)
    good, bad = [*texts[:-1], texts[0]], f"source sentence 8 {NAN}"
    assert broken.search(good, decoding=decoding) == plain.search(
        good, decoding=decoding
    )
    with pytest.raises(InputError, match=bad):
        broken.search(texts, decoding=decoding)
    with pytest.raises(InputError, match=bad):
        broken.score([Pair(text, "a") for text in texts])


@pytest.mark.parametrize(
    ("which", "step", "seed"), [("best", 10, 2), ("latest", 20, 3), ("20", 20, 3)]
)
def test_load(which, step, seed):
    """A directory gives back the configuration, the vocabulary and the parameters
    that it was made of.
    """
    translator = Translator.load(str(runs.random_run()), which)
    assert translator.checkpoint == step
    assert translator.model.config == runs.model_config()
    expected = runs.random_params(runs.model_config(), seed=seed)
    jax.tree.map(np.testing.assert_array_equal, translator.params, expected)
    assert translator.vocabularies.hash == random_translator().vocabularies.hash
    assert translator.decoding == random_translator().decoding
    assert translator.codec.longest == 64
