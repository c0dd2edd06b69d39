"""Each configuration file is what its docstring says, and can be overridden key by key."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.cli import config_file
from jaxformer.errors import InputError
from jaxformer.models.seq2seq import Transformer, count_parameters
from jaxformer.training.config import RunConfig, parse
from jaxformer.training.engines import make_engine
from jaxformer.training.state import create_state

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.py"))


def read(name: str, *overrides: str) -> RunConfig:
    """Read a configuration as ``jaxformer train`` does."""
    return parse(config_file.read(str(CONFIGS / f"{name}.py"), [f"--config.{override}" for override in overrides]))


def test_there_are_the_promised_ones():
    """The quickstart, the proof of an installation, and the paper's two models."""
    assert {"quickstart", "reverse", "wmt14_ende_base", "wmt14_ende_big"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read(name):
    """It parses, has a docstring with command and hardware, and names itself in the command."""
    config = read(name)
    assert config.training.steps > config.training.warmup_steps
    text = (CONFIGS / f"{name}.py").read_text(encoding="utf-8")
    docstring = text.split('"""')[1]
    assert "Command: " in docstring
    assert "Hardware: " in docstring
    assert f"--config=configs/{name}.py" in docstring or "with this file" in docstring


@pytest.mark.parametrize("name", NAMES)
def test_its_model_can_be_built(name):
    """Every model of a configuration has shapes that fit, without any memory for it."""
    config = read(name)
    tokens = jax.ShapeDtypeStruct((2, config.data.max_length), jnp.int32)
    model = Transformer(config.model)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)
    logits = jax.eval_shape(model.apply, params, tokens, tokens)
    assert logits.shape == (2, config.data.max_length, config.model.vocabulary_size)


@pytest.mark.parametrize(
    ("name", "parameters"), [("wmt14_ende_base", 63_082_496), ("wmt14_ende_big", 214_245_376)]
)  # fmt: skip
def test_the_papers_models_have_the_papers_size(name, parameters):
    """At a vocabulary of 37,000 the count is the formula's, exactly (statement 19)."""
    config = read(name)
    assert config.data.vocabulary_size == config.model.vocabulary_size == 37_000
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    params = jax.eval_shape(Transformer(config.model).init, jax.random.key(0), tokens, tokens)["params"]
    assert count_parameters(params) == parameters


@pytest.mark.parametrize(
    ("name", "steps", "width", "inner", "heads", "dropout"),
    [("wmt14_ende_base", 100_000, 512, 2_048, 8, 0.1), ("wmt14_ende_big", 300_000, 1_024, 4_096, 16, 0.3)],
)
def test_the_papers_values(name, steps, width, inner, heads, dropout):
    """Sections 5.1 to 5.4 and 6.1 and table 3 of the paper (statements 30, 55 and 56)."""
    config = read(name)
    model, training, decoding = config.model, config.training, config.decoding
    assert (model.d_model, model.d_ff, model.num_heads) == (width, inner, heads)
    assert (model.num_encoder_layers, model.num_decoder_layers) == (6, 6)
    assert (model.dropout_rate, model.attention_dropout_rate, model.activation_dropout_rate) == (dropout, 0.0, 0.0)
    assert (model.norm_order, model.activation, model.positions) == ("post", "relu", "sinusoidal")
    assert (model.tied_embeddings, config.data.shared_vocabulary) == ("all", True)
    assert (training.steps, training.warmup_steps, training.learning_rate) == (steps, 4_000, 1.0)
    assert (training.adam_b1, training.adam_b2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert training.label_smoothing == 0.1
    assert config.data.tokens_per_batch == 25_000
    assert (decoding.beam_size, decoding.alpha, decoding.max_extra_length) == (4, 0.6, 50)
    assert training.keep_latest >= {"wmt14_ende_base": 5, "wmt14_ende_big": 20}[name]  # those that the paper averages


def test_validation_is_not_the_test_set():
    """The paper's models are chosen on newstest2013 and judged on newstest2014 (statement 115)."""
    for name in ("wmt14_ende_base", "wmt14_ende_big"):
        data = read(name).data
        assert "newstest2013" in data.valid
        assert "newstest2014" in data.test
        assert len({data.train, data.valid, data.test}) == 3


@pytest.mark.parametrize("name", ["wmt14_ende_base", "wmt14_ende_big"])
def test_one_update_at_a_reduced_width(name):
    """The configuration trains: a narrow, shallow model of it has the loss of one that knows nothing, and one update
    moves its parameters by the schedule's first rate (statements 52 and 55).
    """
    narrow = ["model.d_model=32", "model.d_ff=64", "model.num_encoder_layers=1", "model.num_decoder_layers=1"]
    config = read(name, *narrow, "data.vocabulary_size=50", "training.engine=jit")
    model = Transformer(config.model)
    with jax.numpy_dtype_promotion("standard"):  # optax's bias correction is a float to the power of an integer
        engine = make_engine(model, config.training)
        state = create_state(model, config.training)
        generator = np.random.default_rng(0)
        batch = {side: generator.integers(3, 50, (4, 12)).astype(np.int32) for side in ("source", "target")}
        after, metrics = engine.step(engine.place(state), batch)
    loss = float(metrics["loss"]) / float(metrics["tokens"])
    assert 0.5 * np.log(50) < loss < 2.5 * np.log(50)
    # From scratch Adam moves each parameter by the rate, up or down; a bias that was 0 shows it without rounding.
    moved = after.params["decoder"]["layer_0"]["feed_forward_residual"]["norm"]["bias"]
    np.testing.assert_allclose(np.abs(np.asarray(moved)), 32**-0.5 * 4_000**-1.5, rtol=1e-3)


def test_overrides_on_the_command_line():
    """Any key can be set by ``--config.SECTION.KEY=VALUE``, an integer for a number and a value for None among them."""
    config = read(
        "quickstart",
        "training.steps=7",
        "training.learning_rate=2",
        "model.d_k=24",
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


def test_none_is_a_value_of_optional_keys():
    """``KEY=None`` takes back what the file sets, where None is a value at all."""
    assert read("quickstart", "model.d_k=24", "model.d_k=None").model.d_k is None
    with pytest.raises(InputError, match=r"training\.steps must be of type int, not None"):
        read("quickstart", "training.steps=None")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.stepz=7", "there is no configuration key training.stepz; did you mean training.steps?"),
        ("training.steps=seven", "training.steps must be of type int"),
        ("training.steps=7.5", "training.steps must be of type int"),
        ("model.num_heads=5", "model.d_model 192 is not divisible by model.num_heads 5; try 4 heads"),
        ("nothing.here=1", "there is no configuration key nothing.here; did you mean "),
    ],
)
def test_wrong_overrides(override, message):
    """An unknown key, a wrong type and a wrong value are refused by one line."""
    with pytest.raises(InputError) as caught:
        read("quickstart", override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file():
    """A configuration file that is not there is named."""
    with pytest.raises(InputError, match=r"^no configuration file configs/none\.py; --config names a Python file"):
        config_file.read("configs/none.py", [])
