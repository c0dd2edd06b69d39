"""A model written for CTranslate2 translates there as it does here."""

# Linen types what apply returns as a union with a tuple of variables.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from translation.translators import noisy_params

from jaxformer import InputError, Transformer, TransformerConfig
from jaxformer import functional as F
from jaxformer.interop import ctranslate2 as interop
from jaxformer.interop.ctranslate2 import list_limits
from jaxformer.models import stack_layers
from jaxformer.models.cache import empty_cache
from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

try:
    import ctranslate2
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    ctranslate2 = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(ctranslate2 is None, reason="needs the extra `parity`"),
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


def train(config, steps=300):
    """Let a model begin to learn to copy: one that is only drawn ends each sentence at
    once or never.
    """
    model = Transformer(config)
    params, optimizer = noisy_params(config, 1), optax.adam(5e-3)

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
    model = Transformer(config)
    rules = SearchRules(
        max_lengths=jnp.full(len(source), LONGEST),
        length=LONGEST,
        alpha=0.0,
        beam_size=beam_size,
        bos_id=config.bos_id,
        eos_id=EOS,
        pad_id=PAD,
    )

    @jax.jit
    def search(params, source):
        memory = model.apply({"params": params}, source, method="start")

        def step(tokens, cache):
            logits, cache = model.apply(
                {"params": params}, tokens, cache, memory, method="step"
            )
            # What theirs may not generate has no part in the normalisation either.
            return logits.at[:, jnp.array([PAD, config.bos_id])].set(-jnp.inf), cache

        cache = empty_cache(config, len(source) * beam_size, LONGEST, beam_size)
        return (greedy_search if beam_size == 1 else beam_search)(step, cache, rules)

    found = search(params, jnp.asarray(source))
    assert found.finished[:, 0].all()
    best = zip(found.tokens[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True)
    return [tokens[:length] for tokens, length in best], found.scores[:, 0]


def their_search(directory, config, source, beam_size, compute_type="float32"):
    results = load(directory, compute_type).translate_batch(
        pieces(source, TOKENS.source),
        beam_size=beam_size,
        length_penalty=0.0,
        min_decoding_length=0,  # by default it lets no sentence end at once
        max_decoding_length=LONGEST,
        suppress_sequences=[[TOKENS.target[i]] for i in {PAD, config.bos_id}],
        return_end_token=True,
        return_scores=True,
    )
    found = [result.hypotheses[0] for result in results]
    tokens = [[TOKENS.target.index(token) for token in each] for each in found]
    return tokens, [result.scores[0] for result in results]


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


@pytest.mark.slow
def test_translations_are_equal(tmp_path):
    """Greedy search and a beam of 4 find the same; int8 is quantised there, and is
    nearly float32.

    Without a length penalty the best hypothesis is beyond doubt under either rule of
    stopping; the second best is not, since theirs may stop before it is found.
    """
    config = TransformerConfig(**LITTLE)
    params, source = train(config), draw(3, 100)
    interop.save(tmp_path, config, params, TOKENS)
    for beam_size in (4, 1):
        tokens, scores = our_search(config, params, source, beam_size)
        expected, values = their_search(tmp_path, config, source, beam_size)
        assert tokens == expected
        assert len({len(row) for row in tokens}) > 8
        np.testing.assert_allclose(scores, values, rtol=0, atol=1e-3)
    small, _ = their_search(tmp_path, config, source, 1, compute_type="int8")
    assert sum(map(len, small)) == pytest.approx(sum(map(len, expected)), rel=0.1)


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
