"""The paper's numbers, the configuration files and what is computed for them agree."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxformer.cli import config_file
from jaxformer.errors import InputError
from jaxformer.models.config import TransformerConfig
from jaxformer.paper.cost import count_flops, expected_hours, peak_flops_per_second
from jaxformer.paper.parameters import count_parameters
from jaxformer.paper.report import make_lines, to_markdown
from jaxformer.paper.tables import TABLES, find_table
from jaxformer.runs.config import flatten, parse

ROOT = Path(__file__).parents[2]
ROWS = [row for table in TABLES.values() for row in table.rows if row.config]

# At 37,000 pieces, and 32,000 for French; a parser has 16,000 or 32,000 of them and
# four layers of the big width and the base d_ff, of so many numbers each in the encoder
# and the decoder.
BASE, BIG, PARSER = 63_082_496, 214_245_376, 4 * (8_399_872 + 12_600_320)
GOLDEN = {"enfr_base": 60_522_496, "ende_big": BIG, "enfr_big": 209_125_376}
GOLDEN |= {"b_dk16": 55_990_784, "b_dk32": 58_354_688, "big": BIG}
GOLDEN |= {"c_n2": 33_656_832, "c_n4": 48_369_664, "c_n8": 77_795_328}
GOLDEN |= {"c_d256": 26_834_944, "c_d1024": 163_889_152}
GOLDEN |= {"c_ff1024": 50_487_296, "c_ff4096": 88_272_896}
GOLDEN |= {"e_learned": BASE + 2 * 1_024 * 512}
GOLDEN |= {"wsj": 16_000 * 1_024 + PARSER, "semi": 32_000 * 1_024 + PARSER}


# Of arXiv 1706.03762 v5. By row: BLEU and training FLOPs; perplexity, BLEU and millions
# of parameters; F1.
TABLE_2 = """
bytenet-ende 23.75 -; deep-att-enfr 39.2 1.0e20; gnmt-ende 24.6 2.3e19;
gnmt-enfr 39.92 1.4e20; convs2s-ende 25.16 9.6e18; convs2s-enfr 40.46 1.5e20;
moe-ende 26.03 2.0e19; moe-enfr 40.56 1.2e20; deep-att-ensemble-enfr 40.4 8.0e20;
gnmt-ensemble-ende 26.30 1.8e20; gnmt-ensemble-enfr 41.16 1.1e21;
convs2s-ensemble-ende 26.36 7.7e19; convs2s-ensemble-enfr 41.29 1.2e21;
ende_base 27.3 3.3e18; enfr_base 38.1 3.3e18; ende_big 28.4 2.3e19;
enfr_big 41.8 2.3e19
"""
TABLE_3 = """
base 4.92 25.8 65; a_h1 5.29 24.9 -; a_h4 5.00 25.5 -; a_h16 4.91 25.8 -;
a_h32 5.01 25.4 -; b_dk16 5.16 25.1 58; b_dk32 5.01 25.4 60; c_n2 6.11 23.7 36;
c_n4 5.19 25.3 50; c_n8 4.88 25.5 80; c_d256 5.75 24.5 28; c_d1024 4.66 26.0 168;
c_ff1024 5.12 25.4 53; c_ff4096 4.75 26.2 90; d_dropout00 5.77 24.6 -;
d_dropout02 4.95 25.5 -; d_smoothing00 4.67 25.3 -; d_smoothing02 5.47 25.7 -;
e_learned 4.92 25.7 -; big 4.33 26.4 213
"""
TABLE_4 = """
vinyals-wsj 88.3; petrov 90.4; zhu-wsj 90.4; dyer-wsj 91.7; wsj 91.3;
zhu-semi 91.3; huang-semi 91.3; mcclosky-semi 92.1; vinyals-semi 92.1; semi 92.7;
luong 93.0; dyer-generative 93.3
"""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_parameters_are_the_papers(row):
    """The count is that of the golden list, and within 8 % the paper's; the models
    that differ in structure have as many.
    """
    count = count_parameters(row.model)
    assert count == GOLDEN.get(row.name, BASE)
    if row.parameters is not None:
        assert abs(count / 1e6 / row.parameters - 1) < 0.08


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_rows_and_files_agree(row):
    """A configuration file has every value that its row says, and differs from the
    base's file in nothing else but text, what is kept, and a parser's longest sentence
    and score.
    """
    found, base = (
        flatten(parse(config_file.read(str(ROOT / path), [])))
        for path in (row.config, "configs/paper/ende_base.py")
    )
    width = found["model.d_model"] // found["model.num_heads"]
    widths = {key: found[key] or width for key in ("model.d_k", "model.d_v")}
    settings, held = row.settings, found | widths
    assert {key: held[key] for key in settings} == settings
    free = """data.train data.valid data.test training.keep_latest
        training.checkpoint_every model.vocabulary_size"""
    free += " data.max_length evaluation.best_metric" * ("f1" in row.scores)
    others = found.keys() - settings.keys() - {*free.split()}
    assert {key: found[key] for key in others} == {key: base[key] for key in others}
    assert found["training.keep_latest"] >= (row.averaged or 1)
    if row in TABLES[3].rows:
        assert found["data.test"] == "sacrebleu:wmt13"  # newstest2013


def cells(number, *headings):
    """Return some columns of a table as it is printed."""
    table = TABLES[number]
    lines = make_lines(table, {}, flops_per_second=None, utilisation=0.4)
    text = to_markdown(table, lines, devices="", utilisation=0.4)
    header, _, *rows = (
        [cell.strip() for cell in line.split("|")]
        for line in text.split("\n")
        if line[:1] == "|"
    )
    places = [header.index(heading) for heading in headings]
    return [tuple(row[place] for place in places) for row in rows]


def test_the_numbers_of_the_paper():
    """Every cell of the three tables is printed as the paper has it, with as many
    decimals.
    """
    for number, text, *headings in (
        (2, TABLE_2, "BLEU, paper", "training FLOPs, paper"),
        (3, TABLE_3, "perplexity, paper", "BLEU, paper", "parameters, paper"),
        (4, TABLE_4, "F1, paper"),
    ):
        printed = [
            [cell.removesuffix(" M") or "-" for cell in row]
            for row in cells(number, *headings)
        ]
        names = [row.name for row in TABLES[number].rows]
        assert TABLES[number].sentences == {2: 3003, 3: 3000, 4: 2416}[number]
        found = [[name, *row] for name, row in zip(names, printed, strict=True)]
        assert found == [row.split() for row in text.split(";")]


def test_the_flops_of_the_paper():
    """They are days by eight P100 of 9.5 TFLOP/s."""
    for name, days in (("ende_base", 0.5), ("ende_big", 3.5)):
        spent = 8 * 9.5e12 * days * 86_400
        assert f"{spent:.1e}" == f"{TABLES[2].find(name).flops:.1e}"


def test_flops_and_hours():
    """Twice the steps or tokens are twice the work; half the utilisation is twice
    the time; unknown peaks stay so.
    """
    base = TransformerConfig.base(37_000)
    once = count_flops(base, steps=1, tokens_per_batch=25_000)
    # About six operations a parameter and token, of encoder and decoder together half
    # that on each side.
    assert once == pytest.approx(6 * 25_000 * (18.9e6 + 25.2e6 + 18.9e6), rel=0.02)
    six = count_flops(base, steps=3, tokens_per_batch=50_000)
    assert six == pytest.approx(6 * once)
    assert expected_hours(3.6e15, 1e12, 0.5) == pytest.approx(2.0)
    known = SimpleNamespace(platform="gpu", device_kind="NVIDIA A100-SXM4-80GB")
    cpu = SimpleNamespace(platform="cpu", device_kind="cpu")
    for devices, peak in (([known] * 2, 2 * 156e12), ([known, cpu], None), ([], None)):
        assert peak_flops_per_second(devices, "float32") == peak


def test_there_is_no_such_table_or_row():
    """They are refused in one line that says which there are."""
    with pytest.raises(InputError, match=r"no table 1 .*: take 2, 3, 4"):
        find_table(1)
    for name in ("bytenet-ende", "ende_huge"):
        said = f"no row '{name}'(; did you mean ende_b|: jaxformer reproduce 2 shows)"
        with pytest.raises(InputError, match=said):
            find_table(2).find(name)
