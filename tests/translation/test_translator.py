"""What a translator finds: the same beside any neighbours, with scores that are
true.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from translation.translators import (
    LENGTH,
    equally_long,
    many,
    random_translator,
    rescore,
    teacher_forced,
    token_ids,
    trained_translator,
)

import runs
from jaxformer.checkpoints.manager import CheckpointManager
from jaxformer.data import sources
from jaxformer.data.sources import Pair
from jaxformer.errors import InputError
from jaxformer.models import stack_layers
from jaxformer.runs import config as configuration
from jaxformer.translation.results import Hypothesis
from jaxformer.translation.translator import Translator


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [(h.text, h.tokens, h.finished) for h in found] == [
        (h.text, h.tokens, h.finished) for h in expected
    ]
    for name in ("score", "log_probability"):
        values = [[getattr(h, name) for h in side] for side in (found, expected)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)


# Neighbours and batches


def test_batch_size_changes_nothing():
    """Batches of 1, 7 and 30 give the same translations and scores."""
    texts = many()
    found = {
        size: [
            best[0]
            for best in random_translator(batch_size=size).search(texts, beam_size=4)
        ]
        for size in (1, 7, 30)
    }
    assert_same(found[7], found[1])
    assert_same(found[30], found[1])
    assert len({hypothesis.text for hypothesis in found[30]}) > 20
    lengths = [len(hypothesis.tokens) for hypothesis in found[30]]
    assert min(lengths) < 5  # some end while others of the batch go on
    assert max(lengths) > 25  # and some have no end


def test_neighbours_change_nothing():
    """A sentence has one translation, alone or beside longer and shorter ones."""
    translator = random_translator()
    longer, shorter = runs.sentences(1, shortest=28)[0], runs.sentences(5, longest=9)
    for text in equally_long()[:3]:
        alone = translator.search([text], beam_size=4)[0]
        assert_same(translator.search([longer, text, *shorter], beam_size=4)[1], alone)
        assert_same(translator.search([*shorter, text], beam_size=4)[-1], alone)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("source_eos", [True, False])
def test_length_limit_belongs_to_the_sentence(beam_size, source_eos):
    """An endless translation stops at its own source's tokens and so many more,
    unfinished.
    """
    translator = random_translator(eos=0.0, source_eos=source_eos)
    texts = [*runs.sentences(5, longest=9), runs.sentences(1, shortest=28)[0]]
    for text, (best,) in zip(
        texts, translator.search(texts, beam_size=beam_size), strict=True
    ):
        assert len(best.tokens) == len(translator.vocabularies.source.encode(text)) + 20
        assert not best.finished
        penalty = ((5 + len(best.tokens)) / 6) ** translator.decoding.alpha
        assert best.score == pytest.approx(best.log_probability / penalty, rel=1e-5)


def test_two_calls_give_the_lines_of_one():
    """Text in one piece or split over two calls gives the same lines."""
    texts = many()
    translator = random_translator()
    assert translator.translate(texts[:11]) + translator.translate(
        texts[11:]
    ) == translator.translate(texts)


def test_five_hundred_lines_keep_their_order():
    """Sentences are sorted by length on the way and come back in order."""
    texts = [pair.source for pair in sources.load("synthetic:reverse/test", "", "")]
    found = trained_translator().translate(texts, beam_size=1)
    assert len(found) == len(texts) == 500
    order = np.random.default_rng(0).permutation(500)
    shuffled = trained_translator().translate([texts[i] for i in order], beam_size=1)
    assert shuffled == [found[i] for i in order]
    reversed_ = [" ".join(reversed(text.split())) for text in texts]
    assert sum(map(str.__eq__, found, reversed_)) > 100


# Scores


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_score_is_that_of_a_forward_pass(beam_size, alpha):
    """The cached search and one forward pass without padding agree on every
    hypothesis.
    """
    translator = random_translator()
    found = translator.search(
        equally_long(), beam_size=beam_size, alpha=alpha, n_best=beam_size
    )
    for place in range(beam_size):
        hypotheses = [best[place] for best in found]
        expected = rescore(translator, equally_long(), hypotheses)
        np.testing.assert_allclose(
            [h.log_probability for h in hypotheses], expected, rtol=1e-4, atol=1e-4
        )
        # with end of sentence, without its beginning
        lengths = np.array([len(h.tokens) for h in hypotheses])
        scores = expected / ((5 + lengths) / 6) ** alpha
        np.testing.assert_allclose(
            [h.score for h in hypotheses], scores, rtol=1e-4, atol=1e-4
        )
    assert {hypothesis.finished for best in found for hypothesis in best} == {
        True,
        False,
    }


@pytest.mark.parametrize("beam_size", [1, 4])
def test_score_of_its_own_translation(beam_size):
    """``score`` gives a finished translation the log-probability and the tokens of
    its search.
    """
    translator = trained_translator()
    texts = [
        pair.source
        for pair in list(sources.load("synthetic:reverse/valid", "", ""))[:40]
    ]
    finished = [
        (text, best)
        for text, (best,) in zip(
            texts, translator.search(texts, beam_size=beam_size), strict=True
        )
        # Text can be split into other tokens than those that the model wrote.
        if best.finished
        and translator.vocabularies.target.encode(best.text)
        == token_ids(translator, best)[:-1]
    ]
    assert len(finished) > 30
    scores = translator.score([Pair(text, best.text) for text, best in finished])
    expected = [best.log_probability for _, best in finished]
    np.testing.assert_allclose(
        [score.log_probability for score in scores], expected, rtol=1e-4, atol=1e-4
    )
    assert [score.tokens for score in scores] == [
        len(best.tokens) for _, best in finished
    ]


def test_score_of_given_targets():
    """``score`` is the sum over the target and its end of sentence, whatever is
    beside it.
    """
    translator = random_translator()
    texts, eos = equally_long(), translator.vocabularies.target.eos_id
    targets = [
        pair.target
        for pair in runs.pairs()
        if len(runs.vocabulary().encode(pair.target)) < 30
    ][: len(texts)]
    ids = [translator.vocabularies.target.encode(target) + [eos] for target in targets]
    table = teacher_forced(translator, texts, ids)
    expected = [
        table[row, np.arange(len(tokens)), tokens].sum()
        for row, tokens in enumerate(ids)
    ]
    given = [Pair(text, target) for text, target in zip(texts, targets, strict=True)]
    for batch_size in (1, 8):
        scores = random_translator(batch_size=batch_size).score(given)
        np.testing.assert_allclose(
            [score.log_probability for score in scores], expected, rtol=1e-4
        )
        assert [score.tokens for score in scores] == [len(tokens) for tokens in ids]


def test_score_of_blank_sides():
    """A blank side has a defined score: of end of sentence alone, or after an empty
    source.
    """
    (blank_target, blank_source, blank) = random_translator().score(
        [Pair("open", ""), Pair("", "offen"), Pair("", "")]
    )
    assert blank_target.tokens == blank.tokens == 1
    assert blank_source.tokens > 1
    for score in (blank_target, blank_source, blank):
        assert np.isfinite(score.log_probability)
        assert score.log_probability < 0


def test_greedy_follows_the_most_probable_token():
    """A beam of 1 is greedy search: the argmax of a full forward pass at each step."""
    translator = random_translator()
    vocabulary = translator.vocabularies.target
    targets: list[list[int]] = [[] for _ in equally_long()]
    limit = LENGTH - 1 + 20
    for position in range(limit):
        table = teacher_forced(translator, equally_long(), targets)[:, position]
        table[:, [vocabulary.pad_id, vocabulary.bos_id]] = -np.inf
        for target, token in zip(targets, table.argmax(-1), strict=True):
            if len(target) == position and vocabulary.eos_id not in target:
                target.append(int(token))
    found = [best[0] for best in translator.search(equally_long(), beam_size=1)]
    assert [token_ids(translator, hypothesis) for hypothesis in found] == targets


def test_scores_of_a_bfloat16_model_are_float32():
    """Log-probabilities are computed and summed in float32, whatever the model
    computes in.
    """
    translator = random_translator(dtype="bfloat16")
    found = [best[0] for best in translator.search(equally_long(), beam_size=4)]
    scores = np.array([hypothesis.log_probability for hypothesis in found])
    assert (scores.astype(ml_dtypes.bfloat16).astype(np.float64) != scores).any()
    np.testing.assert_allclose(
        scores, rescore(translator, equally_long(), found), rtol=0.03
    )


def test_a_model_trained_with_scanned_layers_translates():
    """Scanned layers are looped once, when a translator is put together: the same
    parameters say the same.
    """
    looped = random_translator(num_encoder_layers=2)
    config = dataclasses.replace(
        looped.model.config, scan_layers=True, rematerialization="layer"
    )
    params = stack_layers(looped.params)
    scanned = Translator(
        config,
        params,
        looped.vocabularies,
        looped.decoding,
        source_eos=looped.source_eos,
    )
    jax.tree.map(np.testing.assert_array_equal, scanned.params, looped.params)
    found, expected = (
        [best[0] for best in each.search(equally_long())] for each in (scanned, looped)
    )
    assert_same(found, expected)
    pair = [Pair(equally_long()[0], found[0].text)]
    assert scanned.score(pair)[0].log_probability == pytest.approx(
        looped.score(pair)[0].log_probability, rel=1e-6
    )


def test_a_run_with_scanned_layers_loads(tmp_path):
    """The parameters of a run are restored stacked, as they were trained, and
    decoded layer by layer.
    """
    run = runs.copy(runs.random_run(), tmp_path / "run")
    config = configuration.load(run / "config.json")
    model = dataclasses.replace(config.model, scan_layers=True)
    configuration.save(dataclasses.replace(config, model=model), run / "config.json")
    params = Translator.load(runs.random_run(), "10").params
    checkpoints = CheckpointManager(run / "checkpoints")
    progress = {**checkpoints.progress(10), "step": 30}
    checkpoints.save(
        30, stack_layers(params), {"step": jnp.asarray(30)}, progress, {"bleu": 6.0}
    )
    checkpoints.wait()
    checkpoints.close()
    loaded = Translator.load(run, "30")
    assert not loaded.model.config.scan_layers
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


# Several translations


def test_n_best_are_distinct_and_sorted():
    """The n best differ, finished ones first, each kind by score; the first is that
    of n = 1.
    """
    translator = random_translator()
    best = translator.search(equally_long(), beam_size=4)
    for hypotheses, (first,) in zip(
        translator.search(equally_long(), beam_size=4, n_best=4), best, strict=True
    ):
        assert len(hypotheses) == 4
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == 4
        ranks = [
            (not hypothesis.finished, -hypothesis.score) for hypothesis in hypotheses
        ]
        assert ranks == sorted(ranks)
        assert_same([hypotheses[0]], [first])


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            {"beam_size": 2, "n_best": 3},
            "n_best must be at least 1 and at most the beam of 2, not 3",
        ),
        ({"n_best": 0}, "n_best must be at least 1"),
        ({"beam_size": 0}, "decoding.beam_size must be at least 1, not 0"),
        ({"alpha": float("nan")}, "decoding.alpha must be at least -10, not nan"),
    ],
)
def test_numbers_out_of_range(given, rule):
    with pytest.raises(InputError, match=rule):
        random_translator().search(["open"], **given)
