"""Each configuration file is what its docstring says, and can be overridden key by
key.
"""

import dataclasses
import re
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxformer.cli import config_file
from jaxformer.data.sacrebleu_sets import find_direction
from jaxformer.errors import InputError
from jaxformer.models.cache import empty_cache
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import make_model
from jaxformer.paper.cost import UTILISATION, count_flops, expected_hours
from jaxformer.paper.tables import TABLES, find_table
from jaxformer.runs.config import OF_THE_VOCABULARY, REMOVED, RunConfig, flatten, parse
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.state import create_state
from jaxformer.training.step import make_train_step

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(
    path.relative_to(CONFIGS).with_suffix("").as_posix()
    for path in CONFIGS.rglob("*.py")
    if path.stem != "finetune"  # it needs a run
)
VARIANTS = {
    "paper/table3": [row.name for row in find_table(3).rows],
    "proxy": list(runpy.run_path(str(CONFIGS / "proxy.py"))["VARIANTS"]),
    "masked_language_model": ["language", "words_and_next"],
    "recurrent": ["bahdanau", "luong", "sutskever", "cho"],
}
NAMES = [
    f"{name}{variant}"
    for name in FILES
    for variant in ["", *(f":{row}" for row in VARIANTS.get(name, ()))]
]


def read(name: str, *overrides: str) -> RunConfig:
    """Read a configuration as ``jaxformer train`` does."""
    return parse(
        config_file.read(name, [f"--config.{override}" for override in overrides])
    )


def docstring(name: str) -> str:
    """Return the docstring of a file, its lines joined."""
    text = (CONFIGS / f"{name}.py").read_text(encoding="utf-8")
    return " ".join(text.split('"""')[1].split())


def test_there_are_the_promised_ones():
    """Those of the paper's tables, and others; names are unique in all folders, since
    a configuration imports its neighbour by name.
    """
    rows = [row for table in TABLES.values() for row in table.rows if row.config]
    of_paper = {row.config.removeprefix("configs/").replace(".py", "") for row in rows}
    modern = {"modern/deep_shallow", "modern/big_data", "modern/small_data"}
    others = {"quickstart", "reverse", "paper/table3", "proxy"}
    others |= {"language_model", "masked_language_model"}
    others |= {f"masked_language_model:{x}" for x in ("language", "words_and_next")}
    others |= {f"recurrent:{x}" for x in VARIANTS["recurrent"]} | {"recurrent"}
    assert set(NAMES) == others | of_paper | modern | {
        f"proxy:{row}" for row in VARIANTS["proxy"]
    }
    assert len(of_paper) == len(rows) == 4 + 20 + 2
    names = [name.rpartition("/")[2] for name in FILES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", FILES)
def test_it_can_be_read(name):
    """It parses, has a docstring with command and hardware, and names itself in the
    command.
    """
    config = read(name)
    assert config.training.steps > config.training.warmup_steps
    text = docstring(name)
    assert "Command: " in text
    assert "Hardware: " in text
    assert f"--config=configs/{name}.py{':' if name in VARIANTS else ' '}" in text


@pytest.mark.parametrize(
    ("name", "overrides", "packs"),
    [
        ("quickstart", [], True),
        ("quickstart", ["data.packing=False"], False),
        ("recurrent", [], False),
        ("language_model", [], False),
        ("language_model", ["data.window=None"], True),
        ("masked_language_model", ["data.packing=auto"], True),
        ("masked_language_model:language", ["data.packing=auto"], False),
    ],
)
def test_rows_are_packed_where_they_can_be(name, overrides, packs):
    """Not windows, which fill rows, nor rows of one label or of a recurrent network."""
    assert read(name, *overrides).packs == packs


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.startswith(("paper/", "modern/"))]
)
def test_the_flops_are_the_formulas(name):
    """What a docstring says of the FLOPs is what the formula gives; hours depend on a
    measured share of a device's peak, and docs/wmt.md has them.
    """
    config, text = read(name), docstring(name)
    found = re.search(
        r"Hardware: \d+ A100, (\w+)(?: \(TF32\))?, ([\d.e]+) training FLOPs:"
        r" docs/wmt.md turns them into hours\.",
        text,
    )
    assert found
    dtype, flops = found.groups()
    assert dtype == config.model.dtype
    steps, tokens = config.training.steps, config.data.tokens_per_batch
    work = count_flops(config.model, steps=steps, tokens_per_batch=tokens)
    assert flops == f"{work:.1e}".replace("e+", "e")
    assert "Nothing of this size was trained with jaxformer yet." in text


def test_the_hours_of_the_page_are_the_formulas():
    """Each row of docs/wmt.md is FLOPs / (peak x share), with the shares that it names
    and the default of ``jaxformer reproduce``.
    """
    page = (CONFIGS.parent / "docs" / "wmt.md").read_text(encoding="utf-8")
    head = re.search(
        r"^\| devices \| peak.*`ende_base` at (\d+) % \| `ende_big` at (\d+) % \|$",
        page,
        flags=re.MULTILINE,
    )
    assert head
    shares = [int(share) / 100 for share in head.groups()]
    assert shares[0] == UTILISATION
    configs = [read("paper/ende_base"), read("paper/ende_big")]
    work = [
        count_flops(
            each.model,
            steps=each.training.steps,
            tokens_per_batch=each.data.tokens_per_batch,
        )
        for each in configs
    ]
    row = r"^\| \d .* \| ([\d.e]+) \| ([\d.]+) h \| ([\d.]+) h \|$"
    rows = re.findall(row, page, flags=re.MULTILINE)
    assert len(rows) > 5
    for peak, *hours in rows:
        assert hours == [
            f"{expected_hours(flops, float(peak), share):.2g}"
            for flops, share in zip(work, shares, strict=True)
        ]


@pytest.mark.parametrize(
    "name", [name for name in FILES if name.startswith(("paper/", "modern/"))]
)
def test_shapes_are_those_of_accelerators(name):
    """Lengths and rows are multiples of 8, the longest too."""
    data = read(name).data
    assert data.shape_multiple == 8
    assert data.max_length % 8 == 0
    assert data.tokens_per_batch // data.max_length >= 8


@pytest.mark.parametrize("name", ["ende_base", "enfr_base", "table3"])
def test_the_papers_text_is_fetched_by_name(name):
    """Its directions are known, and the test set is not the validation set."""
    data = read(f"paper/{name}").data
    languages = data.source_language, data.target_language
    assert data.train == f"tfds:wmt14_translate/{languages[1]}-en/train"
    for text in {data.valid, data.test}:
        scheme, _, rest = text.partition(":")
        assert scheme == "sacrebleu"
        assert find_direction(rest, languages) == "-".join(languages)
    assert data.valid == "sacrebleu:wmt13"
    assert data.test == (
        "sacrebleu:wmt13" if name == "table3" else "sacrebleu:wmt14/full"
    )


def test_the_page_has_a_row_for_every_variant_of_the_proxy():
    """The docstring names docs/ablations.md as the home of the scores."""
    page = (CONFIGS.parent / "docs" / "ablations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\d", page, flags=re.MULTILINE)
    assert rows == VARIANTS["proxy"]


def test_a_variant_changes_one_thing():
    """It changes at most the depths of both stacks."""
    base, depths = read("proxy"), {"num_encoder_layers", "num_decoder_layers"}
    old = flatten(base)
    for variant in VARIANTS["proxy"]:
        new = flatten(read(f"proxy:{variant}"))
        changed = {key for key in old if old[key] != new[key]}
        assert (not changed) == (variant == "base")
        assert len(changed) <= 1 or changed == {f"model.{name}" for name in depths}


# The models of the paper's rows are counted in tests/paper.
@pytest.mark.parametrize(
    "name", [name for name in FILES if not name.startswith("paper/")]
)
def test_its_model_can_be_built(name):
    """The shapes fit at its full width."""
    config = read(name)
    names = ("num_encoder_layers", "num_decoder_layers")
    depths = {each: min(1, getattr(config.model, each)) for each in names}
    model, length = dataclasses.replace(config.model, **depths), config.data.max_length
    tokens = jax.ShapeDtypeStruct((2, length), jnp.int32)
    sides = [tokens] * sum(depths.values())
    init = make_model(model).init_with_output
    found = jax.eval_shape(init, jax.random.key(0), *sides)[0]
    width = model.vocabulary_size if model.num_decoder_layers else model.d_model
    assert found.shape == (2, length, width)


@pytest.mark.parametrize(
    ("name", "steps", "width", "inner", "heads", "dropout", "averaged"),
    [
        ("paper/ende_base", 100_000, 512, 2_048, 8, 0.1, 5),
        ("paper/ende_big", 300_000, 1_024, 4_096, 16, 0.3, 20),
    ],
)
def test_the_papers_values(name, steps, width, inner, heads, dropout, averaged):
    """Sections 5.1 to 5.4 and 6.1 and table 3 of the paper."""
    config = read(name)
    model, training, decoding = config.model, config.training, config.decoding
    assert (model.d_model, model.d_ff, model.num_heads) == (width, inner, heads)
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    rates = model.attention_dropout_rate, model.activation_dropout_rate
    assert (model.dropout_rate, *rates) == (dropout, 0.0, 0.0)
    kinds = model.norm_order, model.activation, model.positions, model.tied_embeddings
    assert kinds == ("post", "relu", "sinusoidal", "all")
    assert config.data.vocabulary_size == model.vocabulary_size == 37_000
    assert (config.data.shared_vocabulary, config.data.tokens_per_batch) == (
        True,
        25_000,
    )
    assert (training.steps, training.warmup_steps) == (steps, 4_000)
    assert (training.learning_rate, training.label_smoothing) == (1.0, 0.1)
    adam = training.adam_b1, training.adam_b2, training.adam_epsilon
    assert adam == (0.9, 0.98, 1e-9)
    search = decoding.beam_size, decoding.alpha, decoding.max_extra_length
    assert search == (4, 0.6, 50)
    assert training.keep_latest >= averaged


def reduce(config: RunConfig) -> tuple[TransformerConfig, TrainingConfig]:
    """Make everything small in proportion; what does not matter is the same for all."""
    model = config.model
    small = dataclasses.replace(
        model,
        vocabulary_size=50,
        d_model=model.d_model // 16,
        d_ff=model.d_ff // 64,
        d_k=model.d_k and model.d_k // 8,
        num_encoder_layers=max(1, model.num_encoder_layers // 6),
        num_decoder_layers=max(1, model.num_decoder_layers // 6),
        max_length=32,
    )
    same = {
        key: getattr(TrainingConfig, key)
        for key in vars(TrainingConfig)
        if key.endswith("_every")
        or "keep_" in key
        or key in ("steps", "patience", "learning_rate")
    }
    return small, dataclasses.replace(config.training, **same, engine="jit")


SHAPES = ["modern/deep_shallow", "modern/big_data", "modern/small_data"]
SHAPES += ["paper/parsing_wsj"]
SHAPES += [f"paper/table3:{row}" for row in ("b_dk16", "d_smoothing00", "e_learned")]


# Other tests train the quickstart and the reversal task.
@pytest.mark.parametrize("name", SHAPES)
def test_other_models_train_and_decode(name):
    """The shapes of an update and of a step of a search fit for what each changes."""
    config, training = reduce(read(name))
    model, step = make_model(config), make_train_step(make_model(config), training)

    def compute(source, target):
        state, _ = step(
            create_state(model, training), {"source": source, "target": target}
        )
        memory = model.apply({"params": state.params}, source, method="start")
        given = jnp.zeros(4, jnp.int32), empty_cache(config, 4, 8), memory
        return model.apply({"params": state.params}, *given, method="step")

    tokens = jax.ShapeDtypeStruct((4, 12), jnp.int32)
    with jax.numpy_dtype_promotion("standard"):
        logits, _ = jax.eval_shape(compute, tokens, tokens)
    assert logits.shape == (4, 50)


def test_overrides_on_the_command_line():
    """Any key can be set by ``--config.SECTION.KEY=VALUE``, an integer for a number
    and a value for None among them.
    """
    config = read(
        "quickstart",
        "training.steps=7",
        "training.learning_rate=2",
        "model.d_k=24",
        "model.d_v=24",
        "model.d_v=None",
        "model.dtype=bfloat16",
        "data.byte_fallback=true",
        "data.train=text:a,b",
        "evaluation.max_sentences=9",
    )
    assert (config.training.steps, config.training.learning_rate) == (7, 2.0)
    assert (config.model.d_k, config.model.dtype) == (24, "bfloat16")
    assert (config.data.byte_fallback, config.data.train) == (True, "text:a,b")
    assert config.evaluation.max_sentences == 9
    assert config.model.d_v is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.training.stepz=7", "no configuration key training.stepz; did you m"),
        ("--config.training.steps=7.5", "training.steps must be of type int"),
        (
            "--config.training.steps=None",
            "training.steps must be of type int, not None",
        ),
        (
            "--config.model.num_heads=5",
            "192 is not divisible by num_heads 5; try",
        ),
        *(
            (
                f"--config.model.{key}=3",
                f"model.{key} follows from the vocabulary: leave it out, or set data.v",
            )
            for key in OF_THE_VOCABULARY
        ),
        ("--config.nothing.here=1", "there is no configuration key nothing"),
        *(
            (
                word,
                f"{word!r} sets no key of the configuration: write --config.SECTION.",
            )
            for word in ("training.steps=5", "--training.steps=5", "")
        ),
    ],
)
def test_wrong_overrides(override, message):
    """An unknown key, a wrong type, a wrong value and what sets no key are refused by
    one line.
    """
    with pytest.raises(InputError) as caught:
        parse(config_file.read("quickstart", [override]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_key_has_no_effect(name, capsys):
    """One line names a removed key with another value than its default, which itself
    is silent.
    """
    expected, (default, advice) = read("quickstart"), REMOVED[name]
    for value, said in ((default, ""), (7, f"jaxformer: warning: {name}=7 {advice}\n")):
        assert read("quickstart", f"{name}={value}") == expected
        assert capsys.readouterr().err == said


def test_shipped_configurations_are_found_by_name(monkeypatch, tmp_path):
    """With and without the folder and the ending, from everywhere; a file in the
    current folder comes first.
    """
    assert sorted(config_file.shipped()) == sorted([*FILES, "finetune"])
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        forms = name, f"{name}.py", f"configs/{name}.py"
        paths = {Path(config_file.find(form)).resolve() for form in forms}
        assert paths == {(CONFIGS / f"{name}.py").resolve()}
    named, path = config_file.read("paper/table3:a_h1", []), CONFIGS / "paper/table3.py"
    for form in ("configs/paper/table3.py:a_h1", f"{path}:a_h1"):
        assert config_file.read(form, []) == named
    (tmp_path / "configs").mkdir()
    text = (CONFIGS / "reverse.py").read_text()
    (tmp_path / "configs" / "reverse.py").write_text(text.replace("1_500", "70"))
    (tmp_path / "quickstart").mkdir()
    assert config_file.read("configs/reverse.py", [])["training"]["steps"] == 70
    assert config_file.read("reverse", [])["training"]["steps"] == 1_500
    assert config_file.find("quickstart").endswith("configs/quickstart.py")
    # a file whose name has a colon is no variant of another
    (tmp_path / "reverse:copy.py").write_text(text)
    copy = config_file.read(str(tmp_path / "reverse:copy.py"), [])
    assert copy == config_file.read("reverse", [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("proxy:a_h3", "configs/proxy.py has no variant 'a_h3': take base, a_h1, "),
        ("proxy:", "configs/proxy.py has no variant '': take base, a_h1, "),
        ("paper/table3:none", "paper/table3 has no variant none: table 3 has no row"),
        ("quickstart:small", "configs/quickstart.py has no variants: leave out :small"),
        *((name, "no configuration file ") for name in ("none:small", "", "paper")),
        ("configs/none.py", "configs/none.py; jaxformer has finetune, language_m"),
    ],
)
def test_missing_names_and_variants(name, message):
    """They are refused by one line that names the possible ones."""
    with pytest.raises(InputError) as caught:
        config_file.read(name, [])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_override_reaches_keys_that_refer_to_it(tmp_path):
    """Numbers may have another base, as in Python."""
    (tmp_path / "own.py").write_text(
        "from jaxformer.runs.config import default_config\n"
        "def get_config():\n"
        "    config = default_config()\n"
        "    steps = config.training.get_oneway_ref('steps')\n"
        "    config.training.warmup_steps = steps // 10\n"
        "    return config\n"
    )
    overrides = ["--config.training.steps=5000", "--config.training.seed=0x10"]
    found = config_file.read(str(tmp_path / "own.py"), overrides)["training"]
    assert (found["steps"], found["warmup_steps"], found["seed"]) == (5000, 500, 16)
