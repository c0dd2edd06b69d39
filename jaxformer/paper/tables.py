"""Tables 2, 3 and 4 of "Attention Is All You Need" (Vaswani et al. 2017, arXiv
1706.03762 v5), row by row.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from typing import TypeAlias

from jaxformer.errors import InputError, UsageError, did_you_mean
from jaxformer.evaluation.known_sets import SENTENCES
from jaxformer.models.config import TransformerConfig
from jaxformer.runs.training import TrainingConfig

Value: TypeAlias = bool | int | float | str
"""A value of a configuration's key."""

BASE: Mapping[str, Value] = types.MappingProxyType(
    {
        "model.d_model": 512,
        "model.d_ff": 2048,
        "model.num_heads": 8,
        "model.d_k": 64,
        "model.d_v": 64,
        "model.num_encoder_layers": 6,
        "model.num_decoder_layers": 6,
        "model.dropout_rate": 0.1,
        "model.attention_dropout_rate": 0.0,
        "model.positions": "sinusoidal",
        "data.source_language": "en",
        "data.target_language": "de",
        "data.vocabulary_size": 37_000,
        "data.tokens_per_batch": 25_000,
        "training.steps": 100_000,
        "training.warmup_steps": 4_000,
        "training.label_smoothing": 0.1,
        "decoding.beam_size": 4,
        "decoding.alpha": 0.6,
        "decoding.max_extra_length": 50,
    }
)
"""The paper's base model for English to German (sections 5 and 6.1, Table 3)."""

LEARNING_KEYS = tuple(
    field.name
    for field in dataclasses.fields(TrainingConfig)
    if field.metadata["changes"] == "result"
    and f"training.{field.name}" not in BASE
    and field.name not in ("seed", "patience", "initial_optimizer")
)
"""Keys of the section ``training`` that change what is learned, without those that rows
name; the defaults are the paper's.
"""


def select_section(settings: Mapping[str, Value], section: str) -> dict[str, Value]:
    """Return the settings of a section of the configuration, without its name."""
    parts = ((*key.split("."), value) for key, value in settings.items())
    return {key: value for name, key, value in parts if name == section}


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        name: on the command line.
        title: in the paper.
        scores: the paper's, by metric.
        config: its configuration file, with the variant; None for a system of other
            authors.
        changes: differences from :data:`BASE`.
        parameters: the paper's, in millions; None if it has none.
        flops: of training, the paper's estimate; None if it has none.
        averaged: number of averaged checkpoints; 1: only the last; None if the paper
            does not say.
        remark: about the paper's numbers.
        decimals: of its BLEU or F1 in the paper.
    """

    name: str
    title: str
    scores: Mapping[str, float]
    config: str | None = None
    changes: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    parameters: float | None = None
    flops: float | None = None
    averaged: int | None = None
    remark: str | None = None
    decimals: int = 1

    @property
    def settings(self) -> dict[str, Value]:
        """Return the paper's values by key of the configuration, with the widths of
        heads filled in.
        """
        settings = {**BASE, **self.changes}
        width = int(settings["model.d_model"]) // int(settings["model.num_heads"])
        return settings | {"model.d_k": width, "model.d_v": width} | {**self.changes}

    @property
    def model(self) -> TransformerConfig:
        """Return the model of the row."""
        values = select_section(self.settings, "model")
        values["vocabulary_size"] = self.settings["data.vocabulary_size"]
        return TransformerConfig(**values)  # type: ignore[arg-type]  # the tests hold every value against its type


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of the paper.

    Attributes:
        number: in the paper.
        title: of the table.
        metrics: the heading of each metric.
        test: the test set, by its name in
            :func:`jaxformer.evaluation.known_sets.find_known`.
        rows: in the paper's order, with one for each pair of languages.
    """

    number: int
    title: str
    metrics: Mapping[str, str]
    test: str
    rows: tuple[Row, ...]

    @property
    def sentences(self) -> int:
        """Return the number of sentences of the test set."""
        return SENTENCES[self.test]

    def find(self, name: str) -> Row:
        """Return the row of this name that has a configuration.

        Raises:
            UsageError: there is none.
        """
        own = {row.name: row for row in self.rows if row.config is not None}
        if name not in own:
            near = (
                did_you_mean(name, own)
                or f": jaxformer reproduce {self.number} shows them"
            )
            raise UsageError(f"table {self.number} has no row {name!r}{near}")
        return own[name]


_BIG: Mapping[str, Value] = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout_rate": 0.3,
    "training.steps": 300_000,
}
# Section 5.1: 32,000 word pieces for French. Section 6.1: the big model for French has
# less dropout.
_FRENCH: Mapping[str, Value] = {
    "data.target_language": "fr",
    "data.vocabulary_size": 32_000,
}


def _read(table: str) -> list[list[str]]:
    """Return the cells of a table, which two spaces or more separate."""
    return [re.split("  +", line) for line in table.strip().split("\n")]


def _ours(
    name: str,
    title: str,
    bleu: float,
    flops: float,
    averaged: int,
    changes: Mapping[str, Value] = types.MappingProxyType({}),
) -> Row:
    """Build the row of one of the paper's models."""
    config = f"configs/paper/{name}.py"
    scores = {"bleu": bleu}
    return Row(name, title, scores, config, changes, None, flops, averaged)


# The paper gives one number of FLOPs for both pairs of a model: time by devices by 9.5
# TFLOP/s of a P100.
_OTHERS = """
bytenet-ende            ByteNet, En-De                     23.75  -
deep-att-enfr           Deep-Att + PosUnk, En-Fr           39.2   1.0e20
gnmt-ende               GNMT + RL, En-De                   24.6   2.3e19
gnmt-enfr               GNMT + RL, En-Fr                   39.92  1.4e20
convs2s-ende            ConvS2S, En-De                     25.16  9.6e18
convs2s-enfr            ConvS2S, En-Fr                     40.46  1.5e20
moe-ende                MoE, En-De                         26.03  2.0e19
moe-enfr                MoE, En-Fr                         40.56  1.2e20
deep-att-ensemble-enfr  Deep-Att + PosUnk ensemble, En-Fr  40.4   8.0e20
gnmt-ensemble-ende      GNMT + RL ensemble, En-De          26.30  1.8e20
gnmt-ensemble-enfr      GNMT + RL ensemble, En-Fr          41.16  1.1e21
convs2s-ensemble-ende   ConvS2S ensemble, En-De            26.36  7.7e19
convs2s-ensemble-enfr   ConvS2S ensemble, En-Fr            41.29  1.2e21
"""
_TABLE_2 = Table(
    2,
    "translation, newstest2014",
    {"bleu": "BLEU"},
    "newstest2014",
    (
        *(
            Row(
                name,
                title,
                {"bleu": float(bleu)},
                flops=None if flops == "-" else float(flops),
                decimals=len(bleu.partition(".")[2]),  # 26.30 has two
            )
            for name, title, bleu, flops in _read(_OTHERS)
        ),
        _ours("ende_base", "Transformer (base), En-De", 27.3, 3.3e18, 5),
        _ours("enfr_base", "Transformer (base), En-Fr", 38.1, 3.3e18, 5, _FRENCH),
        _ours("ende_big", "Transformer (big), En-De", 28.4, 2.3e19, 20, _BIG),
        dataclasses.replace(
            _ours("enfr_big", "Transformer (big), En-Fr", 41.8, 2.3e19, 20),
            changes={**_BIG, **_FRENCH, "model.dropout_rate": 0.1},
            remark="41.8 in the table and the abstract, 41.0 in section 6.1",
        ),
    ),
)


_VARIATIONS = """
base           base                      4.92  25.8  65
a_h1           (A) 1 head of width 512   5.29  24.9  -    model.num_heads=1
a_h4           (A) 4 heads of width 128  5.00  25.5  -    model.num_heads=4
a_h16          (A) 16 heads of width 32  4.91  25.8  -    model.num_heads=16
a_h32          (A) 32 heads of width 16  5.01  25.4  -    model.num_heads=32
b_dk16         (B) d_k 16                5.16  25.1  58   model.d_k=16
b_dk32         (B) d_k 32                5.01  25.4  60   model.d_k=32
c_n2           (C) 2 layers              6.11  23.7  36   layers=2
c_n4           (C) 4 layers              5.19  25.3  50   layers=4
c_n8           (C) 8 layers              4.88  25.5  80   layers=8
c_d256         (C) d_model 256           5.75  24.5  28   model.d_model=256
c_d1024        (C) d_model 1024          4.66  26.0  168  model.d_model=1024
c_ff1024       (C) d_ff 1024             5.12  25.4  53   model.d_ff=1024
c_ff4096       (C) d_ff 4096             4.75  26.2  90   model.d_ff=4096
d_dropout00    (D) dropout 0.0           5.77  24.6  -    model.dropout_rate=0.0
d_dropout02    (D) dropout 0.2           4.95  25.5  -    model.dropout_rate=0.2
d_smoothing00  (D) label smoothing 0.0   4.67  25.3  -    training.label_smoothing=0.0
d_smoothing02  (D) label smoothing 0.2   5.47  25.7  -    training.label_smoothing=0.2
e_learned      (E) learned positions     4.92  25.7  -    model.positions=learned
big            big                       4.33  26.4  213  big
"""


def _variation(
    name: str, title: str, perplexity: str, bleu: str, millions: str, change: str = ""
) -> Row:
    key, _, value = change.partition("=")
    changes: Mapping[str, Value] = {}
    if key == "big":
        changes = _BIG
    elif key == "layers":
        sides = "encoder", "decoder"
        changes = {f"model.num_{side}_layers": int(value) for side in sides}
    elif key:
        changes = {key: type(BASE[key])(value)}
    return Row(
        name,
        title,
        {"perplexity": float(perplexity), "bleu": float(bleu)},
        f"configs/paper/table3.py:{name}",
        changes,
        None if millions == "-" else float(millions),
        averaged=1,
    )


_TABLE_3 = Table(
    3,
    "variations of the model, English to German, newstest2013",
    {"perplexity": "perplexity", "bleu": "BLEU"},
    "newstest2013",
    tuple(_variation(*cells) for cells in _read(_VARIATIONS)),
)

# Section 6.3 has layers, width, vocabulary, beam, alpha and length. Dropout and
# learning rate were chosen on section 22; their values here are of tensor2tensor's sets
# `transformer_parsing_base` (WSJ only) and `transformer_parsing_big`.
_PARSING: Mapping[str, Value] = {
    "model.d_model": 1024,
    "model.num_encoder_layers": 4,
    "model.num_decoder_layers": 4,
    "model.dropout_rate": 0.2,
    "model.attention_dropout_rate": 0.2,
    "data.source_language": "text",
    "data.target_language": "tree",
    "data.vocabulary_size": 16_000,
    "training.warmup_steps": 16_000,
    "decoding.beam_size": 21,
    "decoding.alpha": 0.3,
    "decoding.max_extra_length": 300,
}


_PARSERS = """
vinyals-wsj      Vinyals & Kaiser et al. 2014, WSJ only         88.3
petrov           Petrov et al. 2006, WSJ only                   90.4
zhu-wsj          Zhu et al. 2013, WSJ only                      90.4
dyer-wsj         Dyer et al. 2016, WSJ only                     91.7
wsj              Transformer (4 layers), WSJ only               91.3
zhu-semi         Zhu et al. 2013, semi-supervised               91.3
huang-semi       Huang & Harper 2009, semi-supervised           91.3
mcclosky-semi    McClosky et al. 2006, semi-supervised          92.1
vinyals-semi     Vinyals & Kaiser et al. 2014, semi-supervised  92.1
semi             Transformer (4 layers), semi-supervised        92.7
luong            Luong et al. 2015, multi-task                  93.0
dyer-generative  Dyer et al. 2016, generative                   93.3
"""
_OUR_PARSERS: Mapping[str, Mapping[str, Value]] = {
    "wsj": _PARSING,
    "semi": {
        **_PARSING,
        "model.dropout_rate": 0.1,
        "model.attention_dropout_rate": 0.1,
        "data.vocabulary_size": 32_000,
        "training.warmup_steps": 4_000,
    },
}


def _parser(name: str, title: str, f1: str) -> Row:
    row = Row(name, title, {"f1": float(f1)})
    if name not in _OUR_PARSERS:
        return row
    config = f"configs/paper/parsing_{name}.py"
    return dataclasses.replace(row, config=config, changes=_OUR_PARSERS[name])


_TABLE_4 = Table(
    4,
    "constituency parsing of English, section 23 of the Wall Street Journal",
    {"f1": "F1"},
    "section 23",
    tuple(_parser(*cells) for cells in _read(_PARSERS)),
)

TABLES: Mapping[int, Table] = types.MappingProxyType(
    {table.number: table for table in (_TABLE_2, _TABLE_3, _TABLE_4)}
)
"""The tables by number."""


def find_table(number: int) -> Table:
    """Return a table.

    Raises:
        InputError: there is none of this number with scores.
    """
    if number not in TABLES:
        raise InputError(
            f"there is no table {number} of scores in the paper: take"
            f" {', '.join(map(str, TABLES))}"
        )
    return TABLES[number]
