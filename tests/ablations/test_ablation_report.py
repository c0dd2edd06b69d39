"""The ablations in small: ``configs/proxy.py`` has rows like the paper's, and their
table compares what compares.
"""

import dataclasses
import runpy

import pytest

import ablation_picture
import ablation_report
import ablation_results
import runs
from ablation_report import BETTER, WITHIN_NOISE, WORSE, compare, judge, judge_pairs
from ablation_results import AVERAGED, BASE_ROW, OTHERS, ROWS, USUAL, Result
from jaxformer.errors import InputError
from jaxformer.paper.tables import find_table


def test_every_row_is_a_variant_and_every_variant_a_row():
    proxy = runpy.run_path(str(runs.ROOT / "configs" / "proxy.py"))
    assert proxy["VARIANTS"].keys() == ROWS.keys()
    named = [name for name in ROWS.values() if name is not None]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize(
    "row", [row for row, name in ROWS.items() if name and row != BASE_ROW]
)
def test_a_row_changes_what_the_papers_row_changes(row):
    """It changes the same keys in the same direction: by the same share where the
    paper has a row for it, and to the same value where that is no size.
    """
    base, table = find_table(3).find("base").settings, find_table(3)
    small, proxy = runs.read_proxy(BASE_ROW).model, runs.read_proxy(BASE_ROW)
    found = ablation_results.differences(proxy, runs.read_proxy(row))
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
    config = runs.read_proxy(BASE_ROW)
    model, training, decoding = config.model, config.training, config.decoding
    assert model.d_ff == 4 * model.d_model
    assert model.num_encoder_layers == model.num_decoder_layers
    shape = model.norm_order, model.activation, model.tied_embeddings
    assert shape == ("post", "relu", "all")
    recipe = training.schedule, training.optimizer, training.learning_rate
    assert recipe == ("paper", "adam", 1.0)
    assert (decoding.beam_size, decoding.alpha) == (USUAL.beam_size, USUAL.alpha)
    assert training.keep_latest >= AVERAGED
    assert training.steps % training.checkpoint_every == 0
    # an average of the end, not of the whole training
    assert AVERAGED * training.checkpoint_every < training.steps / 5


def results(row, perplexities, scores, others=0.0, **changes):
    """Make up the results of a row, of one seed for each value."""
    base = Result(
        row=row,
        seed=0,
        decoding=USUAL.name,
        changes={f"model.{row}": 1} if row != BASE_ROW else {},
        steps=50,
        parameters=1234,
        valid="bundled:en-de/valid",
        perplexity=1.0,
        dataset="bundled:en-de/test",
        text="print",
        sentences=500,
        checkpoint=50,
        bleu=1.0,
        bleu_signature="nrefs:1",
    )
    made = []
    for seed, (perplexity, bleu) in enumerate(zip(perplexities, scores, strict=True)):
        values = {"seed": seed, "perplexity": perplexity, **changes}
        made.append(dataclasses.replace(base, bleu=bleu, **values))
        for each in OTHERS if row == BASE_ROW else ():
            other = {"decoding": each.name, "bleu": bleu + others}
            made.append(dataclasses.replace(base, **values, **other))
    return made


BASE = results(BASE_ROW, (10.0, 10.4), (20.0, 21.0), others=-0.5)


def test_a_verdict_holds_beyond_the_noise():
    """It turns round with the metric and with the sign; one seed has no noise. Searches
    of the same runs are judged in pairs.
    """
    assert ablation_report.spread([3.0, -1.0, 2.0]) == 4.0
    assert ablation_report.spread([3.0]) is None
    for difference, verdict, opposite in (
        (4.1, WORSE, BETTER),
        (-4.1, BETTER, WORSE),
        (4.0, WITHIN_NOISE, WITHIN_NOISE),
        (-4.0, WITHIN_NOISE, WITHIN_NOISE),
    ):
        assert judge(difference, 4.0, lower_is_better=True) == verdict
        assert judge(difference, 4.0, lower_is_better=False) == opposite
        assert judge(difference, None, lower_is_better=True) is None
    assert judge_pairs([0.1, 0.01, 3.0]) == BETTER
    assert judge_pairs([-0.1, -0.01]) == WORSE
    assert judge_pairs([5.0, -0.01]) == judge_pairs([0.0, 0.1]) == WITHIN_NOISE
    assert judge_pairs([1.0]) is None


def test_a_row_is_compared_with_the_mean_of_the_base():
    """Means over seeds, differences from the base's mean, and whether the paper has
    the same direction.
    """
    rows = [
        *results("a_h1", (11.0, 11.2), (19.0, 18.0)),  # worse in both, as in the paper
        # better in perplexity, where the paper is worse; BLEU in the noise
        *results("d_dropout02", (9.0,), (21.2,)),
        # the paper: the same perplexity, less BLEU
        *results("e_learned", (11.0,), (23.0,)),
        *results("pre_norm", (12.0,), (22.0,)),  # not in the paper
    ]
    base, *lines = compare([*BASE, *rows])
    assert (base.row, base.seeds) == (BASE_ROW, 2)
    assert base.perplexity.verdict is base.bleu.verdict is None
    assert base.perplexity.value == pytest.approx(10.2)
    heads = lines[0]
    assert heads.seeds == 2
    assert heads.perplexity.value == pytest.approx(11.1)
    assert heads.bleu.difference == pytest.approx(-2.0)
    assert heads.perplexity.paper_difference == pytest.approx(5.29 - 4.92)
    assert heads.bleu.paper_difference == pytest.approx(24.9 - 25.8)
    like, small = "as in the paper", "where the paper's hardly differs"
    found = [
        (each.verdict, each.agreement)
        for line in lines
        for each in (line.perplexity, line.bleu)
    ]
    assert found == [
        *((WORSE, like), (WORSE, like)),
        *((BETTER, small), (WITHIN_NOISE, "")),
        *((WORSE, small), (BETTER, small)),
        *((WORSE, ""), (BETTER, "")),
    ]
    other = dataclasses.replace(heads.bleu, difference=1.5)
    assert other.agreement == "unlike the paper"
    with pytest.raises(InputError, match="no result of the row base"):
        compare(rows)


def test_the_table_says_what_its_numbers_are():
    """Each row has its cells, the searches theirs; the text below explains them."""
    row = results("a_h1", (11.0,), (19.0,), changes={"model.num_heads": 1})
    text = ablation_report.to_markdown([*BASE, *row])
    grid = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert len({len(cells) for cells in grid[:4]}) == 1
    assert grid[3] == [
        *("`a_h1`", "num_heads 1", "1,234", "1", "11.00", "19.00"),
        *("(A) 1 head of width 512", "5.29", "24.9"),
        *("+0.80: worse, as in the paper", "-1.50: worse, as in the paper"),
    ]
    assert grid[6] == [USUAL.name, "2", "20.50", ""]
    assert [cells[0] for cells in grid[7:]] == [each.name for each in OTHERS]
    assert {cells[3] for cells in grid[7:]} == {f"-0.50: {WORSE}"}
    facts = "`nrefs:1`", "bundled:en-de/test", "500 sentences", "after 50 steps"
    for fact in (*facts, "0.40 in perplexity", "1.00 BLEU"):
        assert fact in text


def test_one_seed_of_the_base_judges_nothing():
    made = [*results(BASE_ROW, (10.0,), (20.0,)), *results("a_h1", (15.0,), (1.0,))]
    text = ablation_report.to_markdown(made)
    assert "+5.00 |" in text
    assert "One seed of the base says nothing of the noise" in text
    assert not {BETTER, WORSE, WITHIN_NOISE} & set(text.split())


def test_the_picture(tmp_path):
    """It is 1000 pixels wide, with a row that the paper lacks; a base has none."""
    matplotlib = pytest.importorskip("matplotlib.image")
    rows = [*results("a_h1", (11.0,), (19.0,)), *results("pre_norm", (12.0,), (22.0,))]
    picture = ablation_picture.draw([*BASE, *rows], tmp_path / "new" / "two.png")
    assert matplotlib.imread(picture).shape[1] == 1000
    with pytest.raises(InputError, match="needs a row besides base"):
        ablation_picture.draw(BASE, tmp_path / "none.png")
