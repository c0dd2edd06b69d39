"""A model written for CTranslate2 translates there as it does here."""

# Linen types what apply returns as a union with a tuple of variables; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer import InputError, Transformer, TransformerConfig
from jaxformer import functional as F
from jaxformer.interop import ctranslate2 as interop
from jaxformer.models import empty_cache, stack_layers
from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

try:
    import ctranslate2
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    ctranslate2 = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(ctranslate2 is None, reason="needs the extra `benchmark`"),
]

SIZE, PAD, EOS, BOS, UNK, LONGEST = 41, 0, 1, 2, 3, 48
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


@functools.cache
def train(config, steps=300):
    """Let a model begin to learn to copy: one that is only drawn ends each sentence at
    once or never.

    Biases and norms are drawn before, so that none is 0 or 1.
    """
    model = Transformer(config)
    token = jnp.ones((1, 1), jnp.int32)
    params = model.init(jax.random.key(0), token, token)["params"]
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), params
    )
    optimizer = optax.adam(5e-3)

    def loss(params, tokens):
        logits = model.apply({"params": params}, tokens, tokens)
        total, count = F.cross_entropy(logits, tokens, tokens != PAD)
        return total / count

    @jax.jit
    def run(params, batches):
        def step(carry, tokens):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, tokens), state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), batches)[0][0]

    with jax.numpy_dtype_promotion("standard"):  # optax mixes types
        return run(params, jnp.asarray(draw(2, 32 * steps).reshape(steps, 32, -1)))


def our_search(config, params, source, beam_size):
    @jax.jit
    def search(params, source):
        model = Transformer(config)
        memory = model.apply({"params": params}, source, method="start")
        options = {
            "max_lengths": jnp.full(source.shape[0], LONGEST),
            "length": LONGEST,
            "alpha": 0.0,
            "bos_id": config.bos_id,
            "eos_id": EOS,
            "pad_id": PAD,
        }

        def step(tokens, cache):
            logits, cache = model.apply(
                {"params": params}, tokens, cache, memory, method="step"
            )
            # What theirs may not generate has no part in the normalisation either.
            return logits.at[:, jnp.array([PAD, config.bos_id])].set(-jnp.inf), cache

        cache = empty_cache(config, source.shape[0] * beam_size, LONGEST, beam_size)
        if beam_size == 1:
            return greedy_search(step, cache, SearchRules(**options))
        return beam_search(step, cache, SearchRules(beam_size=beam_size, **options))

    found = jax.tree.map(
        lambda x: np.asarray(x[:, 0]) if x.ndim else int(x),
        search(params, jnp.asarray(source)),
    )
    tokens = [
        [int(i) for i in row[:length]]
        for row, length in zip(found.tokens, found.lengths, strict=True)
    ]
    return tokens, found.scores, found.finished


def their_search(directory, config, source, beam_size, compute_type="float32"):
    translator = ctranslate2.Translator(
        str(directory), compute_type=compute_type, intra_threads=1
    )
    results = translator.translate_batch(
        [[TOKENS.source[i] for i in row if i != PAD] for row in source],
        beam_size=beam_size,
        length_penalty=0.0,
        min_decoding_length=0,  # by itself it lets no sentence end at once
        max_decoding_length=LONGEST,
        suppress_sequences=[[TOKENS.target[i]] for i in {PAD, config.bos_id}],
        return_end_token=True,
        return_scores=True,
        max_batch_size=64,
    )
    tokens = [
        [TOKENS.target.index(token) for token in result.hypotheses[0]]
        for result in results
    ]
    return tokens, [result.scores[0] for result in results]


@pytest.mark.parametrize("name", SETTINGS)
def test_translations_are_equal(name, tmp_path):
    """For 200 sentences with a beam of 4, and of the paper's model greedily too, with
    scores to 1e-3.

    Without a length penalty the best hypothesis is beyond doubt under either rule of
    stopping; the second best is not, since theirs may stop before it is found.
    """
    looped = TransformerConfig(**(LITTLE | SETTINGS[name] | {"scan_layers": False}))
    config = TransformerConfig(**(LITTLE | SETTINGS[name]))
    params = train(looped)
    interop.save(
        tmp_path / "model",
        config,
        stack_layers(params) if config.scan_layers else params,
        TOKENS,
    )
    source = draw(3, 200)
    for beam_size in (1, 4) if name == "paper" else (4,):
        tokens, scores, finished = our_search(looped, params, source, beam_size)
        expected, their_scores = their_search(
            tmp_path / "model", config, source, beam_size
        )
        assert finished.all()
        assert len({len(row) for row in tokens}) > 8
        assert tokens == expected
        np.testing.assert_allclose(scores, their_scores, rtol=0, atol=1e-3)


def test_a_smaller_type_translates_too(tmp_path):
    """Loaded as int8, the numbers are quantised there, and translations are nearly
    those of float32.
    """
    config = TransformerConfig(**LITTLE)
    interop.save(tmp_path, config, train(config), TOKENS)
    source = draw(4, 50)
    whole, small = (
        their_search(tmp_path, config, source, 1, compute_type=kind)[0]
        for kind in ("float32", "int8")
    )
    assert all(len(tokens) >= 1 for tokens in small)
    assert sum(map(len, whole)) == pytest.approx(sum(map(len, small)), rel=0.1)


@pytest.mark.parametrize(
    ("settings", "tokens", "line"),
    [
        (
            {"d_k": 3},
            TOKENS,
            "CTranslate2 needs heads of width d_model / num_heads, and model.d_k is 3",
        ),
        ({"d_v": 5}, TOKENS, "model.d_v 5 at model.d_model 16 and model.num_heads 4"),
        (
            {"num_heads": 3, "d_k": 4, "d_v": 4},
            TOKENS,
            "model.num_heads 3; such a model cannot be written for it",
        ),
        (
            {"vocabulary_size": 50},
            TOKENS,
            "the model has 50 source tokens, not 41; give the tokens of the vocabulary",
        ),
        (
            {
                "source_vocabulary_size": 41,
                "vocabulary_size": 50,
                "tied_embeddings": "none",
            },
            TOKENS,
            "the model has 50 target tokens, not 41",
        ),
    ],
)
def test_what_cannot_be_written_is_said(settings, tokens, line, tmp_path):
    """A model that CTranslate2 cannot run, or another vocabulary, is refused before
    anything is written.
    """
    with pytest.raises(InputError, match=re.escape(line)):
        interop.save(
            tmp_path / "model", TransformerConfig(**(LITTLE | settings)), {}, tokens
        )
    assert not (tmp_path / "model").exists()
