"""The ablations in small: ``configs/proxy.py`` has rows like the paper's, and their
table compares what compares.
"""

import dataclasses
import runpy

import numpy as np
import pytest

import ablation_picture
import ablation_report
import ablation_results
import runs
from ablation_report import (
    BETTER,
    WITHIN_NOISE,
    WORSE,
    compare,
    judge,
    judge_pairs,
    spread,
)
from ablation_results import AVERAGED, BASE_ROW, OTHERS, ROWS, USUAL, Result
from jaxformer.errors import InputError
from jaxformer.paper.tables import find_table


def test_every_row_is_a_variant_and_every_variant_a_row():
    """The rows are the variants of configs/proxy.py, and those that stand for a row of
    the paper name one that is there.
    """
    assert (
        runpy.run_path(str(runs.ROOT / "configs" / "proxy.py"))["VARIANTS"].keys()
        == ROWS.keys()
    )
    named = [name for name in ROWS.values() if name is not None]
    assert len(set(named)) == len(named)
    for name in named:
        find_table(3).find(name)


@pytest.mark.parametrize(
    "row", [row for row, name in ROWS.items() if name and row != BASE_ROW]
)
def test_a_row_changes_what_the_papers_row_changes(row):
    """It changes the same keys and no other, in the same direction; by the same share
    where the paper has a row for it, and to the same value where that is no size.
    """
    base, table = find_table(3).find("base").settings, find_table(3)
    small = runs.read_proxy(BASE_ROW).model
    found = ablation_results.differences(
        runs.read_proxy(BASE_ROW), runs.read_proxy(row)
    )
    paper = table.find(ROWS[row]).changes
    assert found.keys() == paper.keys()
    for key, (before, after) in found.items():
        if key in ("model.dropout_rate", "training.label_smoothing", "model.positions"):
            assert (before, after) == (base[key], paper[key])
            continue
        before = before or small.d_model // small.num_heads  # d_k of the base
        shares = after / before, paper[key] / base[key]
        assert (shares[0] < 1) == (shares[1] < 1)
        # 4 heads and 2 layers have no such share
        if row not in ("a_h1", "c_n1", "c_n3"):
            assert shares[0] == shares[1]


def test_the_shape_is_the_papers():
    """Feed-forward layers four times as wide as the model, equal depths, and the
    paper's regularisation and search.
    """
    config = runs.read_proxy(BASE_ROW)
    model, training, decoding = config.model, config.training, config.decoding
    assert (model.d_ff, model.num_encoder_layers) == (
        4 * model.d_model,
        model.num_decoder_layers,
    )
    assert (model.norm_order, model.activation, model.tied_embeddings) == (
        "post",
        "relu",
        "all",
    )
    assert (training.schedule, training.optimizer, training.learning_rate) == (
        "paper",
        "adam",
        1.0,
    )
    assert (decoding.beam_size, decoding.alpha) == (USUAL.beam_size, USUAL.alpha)
    assert training.keep_latest >= AVERAGED
    last = AVERAGED * training.checkpoint_every
    assert training.steps % training.checkpoint_every == 0
    assert last < training.steps / 5  # an average of the end, not of the whole training


def results(row, perplexities, scores, others=0.0, **changes):
    """Make up the results of a row, of one seed for each value."""
    base = Result(
        *(
            row,
            0,
            USUAL.name,
            {f"model.{row}": 1} if row != BASE_ROW else {},
            50,
            1234,
            "bundled:en-de/valid",
        ),
        *(1.0, "bundled:en-de/test", "print", 500, 50, 1.0, "nrefs:1"),
    )
    base = dataclasses.replace(base, **changes)
    made = []
    for seed, (perplexity, bleu) in enumerate(zip(perplexities, scores, strict=True)):
        made.append(
            dataclasses.replace(base, seed=seed, perplexity=perplexity, bleu=bleu)
        )
        if row == BASE_ROW:
            searches = [
                dataclasses.replace(made[-1], decoding=each.name, bleu=bleu + others)
                for each in OTHERS
            ]
            made += searches
    return made


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_verdicts(seed):
    """Noise is the range, whatever the order; a verdict turns round with the metric and
    with the sign, and holds only beyond the noise; one measurement has neither.
    """
    generator = np.random.default_rng(seed)
    values = generator.normal(size=4).tolist()
    noise = spread(values)
    assert (
        noise == spread(values[::-1]) == max(abs(a - b) for a in values for b in values)
    )
    assert spread(values[:1]) is None
    difference = float(generator.uniform(1.01, 3.0)) * noise
    assert (
        judge(difference, noise, lower_is_better=False)
        == judge(-difference, noise, lower_is_better=True)
        == BETTER
    )
    assert (
        judge(-difference, noise, lower_is_better=False)
        == judge(difference, noise, lower_is_better=True)
        == WORSE
    )
    for inside in (0.0, noise, -noise, difference / 4):
        expected = WITHIN_NOISE if abs(inside) <= noise else BETTER
        assert judge(inside, noise, lower_is_better=False) == expected
    assert judge(difference, None, lower_is_better=True) is None


def test_searches_of_the_same_runs_are_judged_in_pairs():
    """All for the better, all for the worse, or neither; one pair says nothing."""
    assert judge_pairs([0.1, 0.01, 3.0]) == BETTER
    assert judge_pairs([-0.1, -0.01]) == WORSE
    assert judge_pairs([5.0, -0.01]) == judge_pairs([0.0, 0.1]) == WITHIN_NOISE
    assert judge_pairs([1.0]) is None


def test_a_row_is_compared_with_the_mean_of_the_base():
    """Means over seeds, differences from the base's mean, and whether the paper has
    the same direction.
    """
    made = [
        *results(BASE_ROW, (10.0, 10.4), (20.0, 21.0)),
        *results("a_h1", (11.0, 11.2), (19.0, 18.0)),  # worse in both, as in the paper
        # better in perplexity, where the paper is worse; BLEU in the noise
        *results("d_dropout02", (9.0,), (21.2,)),
        # the paper: the same perplexity, less BLEU
        *results("e_learned", (11.0,), (23.0,)),
        *results("pre_norm", (12.0,), (22.0,)),  # not in the paper
    ]
    base, heads, dropout, learned, norm = compare(made)
    assert (base.row, base.seeds, base.perplexity.verdict, base.bleu.verdict) == (
        BASE_ROW,
        2,
        None,
        None,
    )
    assert base.perplexity.value == pytest.approx(10.2)
    assert heads.seeds == 2
    assert (heads.perplexity.value, heads.bleu.difference) == (
        pytest.approx(11.1),
        pytest.approx(-2.0),
    )
    assert heads.perplexity.paper_difference == pytest.approx(5.29 - 4.92)
    assert heads.bleu.paper_difference == pytest.approx(24.9 - 25.8)
    verdicts = [
        (line.perplexity.verdict, line.bleu.verdict)
        for line in (heads, dropout, learned, norm)
    ]
    assert verdicts == [
        (WORSE, WORSE),
        (BETTER, WITHIN_NOISE),
        (WORSE, BETTER),
        (WORSE, BETTER),
    ]
    agreements = [
        (line.perplexity.agreement, line.bleu.agreement)
        for line in (heads, dropout, learned, norm)
    ]
    like, small = "as in the paper", "where the paper's hardly differs"
    assert agreements == [(like, like), (small, ""), (small, small), ("", "")]
    assert (
        dataclasses.replace(heads.bleu, difference=1.5).agreement == "unlike the paper"
    )
    with pytest.raises(InputError, match="no result of the row base"):
        compare(made[2 * (1 + len(OTHERS)) :])


def test_the_table_says_what_its_numbers_are():
    """Each row has its cells, the searches theirs, and signature, text, steps and
    noise stand below.
    """
    made = [
        *results(BASE_ROW, (10.0, 10.4), (20.0, 21.0), others=-0.5),
        *results("a_h1", (11.0,), (19.0,), changes={"model.num_heads": 1}),
    ]
    text = ablation_report.to_markdown(made)
    grid = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert len({len(cells) for cells in grid[:4]}) == 1
    assert grid[3] == [
        *(
            "`a_h1`",
            "num_heads 1",
            "1,234",
            "1",
            "11.00",
            "19.00",
            "(A) 1 head of width 512",
            "5.29",
            "24.9",
        ),
        *("+0.80: worse, as in the paper", "-1.50: worse, as in the paper"),
    ]
    assert grid[4:][2] == [USUAL.name, "2", "20.50", ""]
    assert [cells[0] for cells in grid[7:]] == [each.name for each in OTHERS]
    assert {cells[3] for cells in grid[7:]} == {f"-0.50: {WORSE}"}
    for fact in (
        "`nrefs:1`",
        "bundled:en-de/test",
        "500 sentences",
        "after 50 steps",
        "0.40 in perplexity",
        "1.00 BLEU",
    ):
        assert fact in text


def test_one_seed_of_the_base_judges_nothing():
    """Without noise there are differences and no verdicts, and the table says why."""
    made = [*results(BASE_ROW, (10.0,), (20.0,)), *results("a_h1", (15.0,), (1.0,))]
    text = ablation_report.to_markdown(made)
    assert "+5.00 |" in text
    assert "One seed of the base says nothing of the noise" in text
    assert not {BETTER, WORSE, WITHIN_NOISE} & set(text.split())


def test_the_picture(tmp_path):
    """It is 1000 pixels wide with noise and without, also for a row that the paper
    lacks; a base alone has none.
    """
    matplotlib = pytest.importorskip("matplotlib.image")
    row = results("pre_norm", (12.0,), (22.0,))
    for name, base in (
        ("one", ((10.0,), (20.0,))),
        ("two", ((10.0, 10.4), (20.0, 21.0))),
    ):
        made = [*results(BASE_ROW, *base), *results("a_h1", (11.0,), (19.0,)), *row]
        picture = ablation_picture.draw(made, tmp_path / "new" / f"{name}.png")
        assert matplotlib.imread(picture).shape[1] == 1000
    with pytest.raises(InputError, match="needs a row besides base"):
        ablation_picture.draw(
            results(BASE_ROW, (10.0,), (20.0,)), tmp_path / "none.png"
        )
