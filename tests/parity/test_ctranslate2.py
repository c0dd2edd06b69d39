"""A model written for CTranslate2 translates there as it does here."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translation.translators import noisy_params

from jaxformer import InputError, Transformer, TransformerConfig
from jaxformer.interop import ctranslate2 as interop
from jaxformer.interop.ctranslate2 import list_limits
from jaxformer.models import stack_layers

try:
    import ctranslate2
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    ctranslate2 = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(ctranslate2 is None, reason="needs the extra `parity`"),
]

SIZE, PAD, EOS, UNK = 41, 0, 1, 3
TOKENS = interop.Tokens(
    [f"s{i}" for i in range(SIZE)],
    [f"t{i}" for i in range(SIZE)],
    UNK,
    EOS,
    source_eos=False,
)

LITTLE = {
    "vocabulary_size": SIZE,
    "d_model": 16,
    "d_ff": 24,
    "num_heads": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "max_length": 64,
    "dropout_rate": 0.0,
}

SETTINGS = {
    "paper": {},
    "pre": {
        "norm_order": "pre",
        "activation": "gelu",
        "tied_embeddings": "target",
        "num_encoder_layers": 3,
        "num_decoder_layers": 1,
        "scale_embedding": False,
        "positions": "sinusoidal_halves",
    },
    "marian": {
        "activation": "silu",
        "positions": "sinusoidal_concatenated",
        "output_bias": True,
        "bos_id": PAD,
        "norm_epsilon": 1e-2,
    },
    "learned": {
        "positions": "learned",
        "tied_embeddings": "none",
        "activation": "gelu_exact",
        "scan_layers": True,
    },
    "mbart": {
        "norm_order": "pre",
        "positions": "learned",
        "position_offset": 2,
        "scale_positions": False,
        "embedding_norm": True,
        "activation": "gelu_exact",
    },
}


def draw(seed, count, longest=16):
    """Draw sources of 2 to 16 tokens, the end of sentence among them, padded on the
    right.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, longest + 1, size=count)
    tokens = rng.integers(4, SIZE, size=(count, longest)).astype(np.int32)
    place = np.arange(longest)[None]
    tokens[place == lengths[:, None] - 1] = EOS
    tokens[place >= lengths[:, None]] = PAD
    return tokens


def load(directory, compute_type="float32"):
    return ctranslate2.Translator(
        str(directory), compute_type=compute_type, intra_threads=1
    )


def pieces(rows, names):
    return [[names[i] for i in row if i != PAD] for row in rows]


@pytest.mark.parametrize("name", SETTINGS)
def test_scores_are_equal(name, tmp_path):
    """Both give the tokens of a pair the same log-probabilities."""
    looped = TransformerConfig(**LITTLE | SETTINGS[name] | {"scan_layers": False})
    config = TransformerConfig(**LITTLE | SETTINGS[name])
    params = noisy_params(looped, 1)
    stacked = stack_layers(params) if config.scan_layers else params
    interop.save(tmp_path, config, stacked, TOKENS)
    source, target = draw(3, 20), draw(4, 20)
    pair = jnp.asarray(source), jnp.asarray(target)
    logits = jax.jit(Transformer(looped).apply)({"params": params}, *pair)
    table = np.asarray(jax.nn.log_softmax(logits))
    # Theirs adds the end of sentence by itself.
    targets = pieces(np.where(target == EOS, PAD, target), TOKENS.target)
    found = load(tmp_path).score_batch(pieces(source, TOKENS.source), targets)
    for ids, values, own in zip(target, table, found, strict=True):
        ids = ids[ids != PAD]
        expected = values[np.arange(len(ids)), ids]
        np.testing.assert_allclose(own.log_probs, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_longer_than_the_model_has_positions(name, tmp_path):
    """Their own limits hold: a source of 1,024 tokens, and as many new ones."""
    looped = TransformerConfig(**LITTLE | SETTINGS[name] | {"scan_layers": False})
    config = TransformerConfig(**LITTLE | SETTINGS[name])
    params = noisy_params(looped, 1)
    stacked = stack_layers(params) if config.scan_layers else params
    interop.save(tmp_path, config, stacked, TOKENS)
    translator = load(tmp_path)
    for length in (config.max_length - 1, config.max_length, 1_023):
        source = [TOKENS.source[-1]] * length
        lengths = {"min_decoding_length": 1_000, "max_decoding_length": 1_000}
        (found,) = translator.translate_batch([source], beam_size=1, **lengths)
        assert len(found.hypotheses[0]) == 1_000
    learned = config.positions == "learned"
    assert [str(config.max_length) in each for each in list_limits(config)] == (
        [True] if learned else []
    )


def test_positions_beyond_those_of_the_model_are_computed_alike(tmp_path):
    """A folder of a run with few positions is that of the same with many."""
    few, many = (TransformerConfig(**LITTLE | {"max_length": n}) for n in (8, 1_026))
    params = noisy_params(few, 1)
    for name, config in (("few", few), ("many", many)):
        interop.save(tmp_path / name, config, params, TOKENS)
    models = [(tmp_path / name / "model.bin").read_bytes() for name in ("few", "many")]
    assert models[0] == models[1]


SIZES = {"source_vocabulary_size": 41, "vocabulary_size": 50, "tied_embeddings": "none"}


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"d_k": 3}, "heads of width d_model / num_heads, and model.d_k is 3"),
        ({"d_v": 5}, "model.d_v 5 at model.d_model 16 and model.num_heads 4"),
        (
            {"num_heads": 3, "d_k": 4, "d_v": 4},
            "model.num_heads 3; such a model cannot",
        ),
        ({"vocabulary_size": 50}, "the model has 50 source tokens, not 41; give the"),
        (SIZES, "the model has 50 target tokens, not 41"),
    ],
)
def test_what_cannot_be_written_is_said(settings, line, tmp_path):
    """A model that CTranslate2 cannot run, or another vocabulary, is refused before
    anything is written.
    """
    config = TransformerConfig(**LITTLE | settings)
    with pytest.raises(InputError, match=re.escape(line)):
        interop.save(tmp_path / "model", config, {}, TOKENS)
    assert not (tmp_path / "model").exists()
