"""Translation models of Hugging Face's transformers, carried over, compute and find
what they compute and find there; written, they are loaded there.
"""

# Linen types what apply returns as a union; transformers is not typed.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from interop import folders
from parity.translation_models import (
    FAMILIES,
    FORMS,
    LITTLE,
    LONGEST,
    draw,
    inputs_of,
    logits_of,
    make,
    make_ending,
    one_thread,
)
from safetensors.numpy import load_file

from jaxformer import InputError, Transformer
from jaxformer import functional as F
from jaxformer.functional.positions import sinusoidal
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface import families
from jaxformer.interop.huggingface.seq2seq import from_model, from_state
from jaxformer.models import count_parameters, empty_cache
from jaxformer.nn.embedding import LAYOUTS
from jaxformer.paper.parameters import parameters_by_formula
from jaxformer.search.beam import beam_search
from jaxformer.search.rules import SearchRules
from jaxformer.search.single import greedy_search

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]


@functools.partial(jax.jit, static_argnums=0)
def compute(config, params, source, target):
    return Transformer(config).apply({"params": params}, source, target)


def compare(model, config, params, seed=2):
    """Return our logits and theirs of nine padded pairs, at real positions."""
    source_size = config.source_vocabulary_size or config.vocabulary_size
    source = draw(model.config, seed, 9, source_size)
    target = draw(model.config, seed + 1, 9, longest=12)
    real = target != config.pad_id
    ours = np.asarray(compute(config, params, source, target))
    return ours[real], logits_of(model, source, target)[real]


def make_form(form, seed=1):
    tied, settings = FORMS[form]
    return make(form.split()[0], seed, **settings), tied


def close(found, expected, atol=2e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_equal(form):
    """On padded pairs in float32. Every parameter is carried over, and tables are tied
    as they are there.
    """
    model, tied = make_form(form)
    config, params = from_model(model)
    found, expected = compare(model, config, params)
    assert np.abs(expected).max() > 3.0
    close(found, expected)
    fixed = ["embed_positions"] if form.startswith("marian") else []
    if form == "mbart untied":  # no layer of theirs reads it
        fixed.append("model.shared")
    theirs = sum(
        p.numel()
        for name, p in model.named_parameters()
        if not any(part in name for part in fixed)
    )
    bias = getattr(model, "final_logits_bias", torch.zeros(0)).numel()
    assert count_parameters(params) == theirs + bias
    assert config.tied_embeddings == tied
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    made = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, made["params"])


LARGE = {"encoder_attention_heads": 16, "decoder_attention_heads": 16}
LARGE |= {"encoder_layers": 12, "decoder_layers": 12, "d_model": 1024}
LARGE |= {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096}
LARGE |= {"max_position_embeddings": 1024}
SMALL = LARGE | {"encoder_layers": 6, "decoder_layers": 6}


@pytest.mark.parametrize(
    ("family", "settings", "count"),
    [
        ("m2m_100", LARGE | {"vocab_size": 256_206}, 615_073_792),  # NLLB-200, 600M
        ("m2m_100", LARGE | {"vocab_size": 128_112}, 483_905_536),  # M2M-100, 418M
        ("mbart", LARGE | {"vocab_size": 250_054}, 610_879_488),  # mBART-50
        ("bart", LARGE | {"vocab_size": 50_265}, 406_291_456),  # BART large
        # OPUS-MT, transformer-big; the rest of theirs is two tables of sines
        ("marian", SMALL | {"vocab_size": 58_101}, 235_852_800),
    ],
)
def test_published_models_have_their_parameters(family, settings, count):
    """By shape alone."""
    config, model, own = FAMILIES[family]
    config = getattr(transformers, config)(**(LITTLE | own | settings))
    with torch.device("meta"):
        model = getattr(transformers, model)(config)
    fixed = 2 * 1024 * 1024 if family == "marian" else 0
    assert sum(p.numel() for p in model.parameters()) - fixed == count
    ours = families.to_config(families.complete(config.to_dict()))
    tied = dataclasses.replace(ours, tied_embeddings="all")
    assert parameters_by_formula(tied) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_the_epsilon_of_norms(family):
    """Where variances are small, the logits are equal with this epsilon, and with
    another one they are not.

    Sines and cosines have variance 1/2: the tables take them away from the first
    position, the only one here.
    """
    learned = family in ("mbart", "bart")
    model = make(family, 4, std=0.003 if learned else 0.01)
    config, _ = from_model(model)
    with torch.no_grad():
        if not learned:
            place = jnp.array([config.position_offset])
            wave = sinusoidal(place, 16, layout=LAYOUTS[config.positions])
            model.model.shared.weight.sub_(torch.tensor(np.array(wave)) / 4)
        pre = config.norm_order == "pre"
        decoder = model.model.decoder
        last = decoder.layer_norm if pre else decoder.layers[-1].final_layer_norm
        last.weight.mul_(30 if learned else 10)
    config, params = from_model(model)
    source = draw(model.config, 5, 9)[:, :1]
    target = np.maximum(source, 3)
    expected = logits_of(model, source, target)
    close(compute(config, params, source, target), expected)
    assert np.abs(expected).max() > 1.0
    other = dataclasses.replace(config, norm_epsilon=1e-6)
    wrong = compute(other, params, source, target)
    assert np.abs(wrong - expected).max() > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_position(family):
    """Positions counted from one more are far off."""
    model = make(family, 6)
    config, params = from_model(model)
    more = dataclasses.replace(
        config, position_offset=config.position_offset + 1, max_length=63
    )
    found, expected = compare(model, more, params)
    assert np.abs(found - expected).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_of_a_batch(family):
    model = make(family, 8, encoder_layers=2)
    config, params = from_model(model)
    source, target = (draw(model.config, seed, 9) for seed in (9, 10))
    labels = torch.tensor(
        np.where(target != config.pad_id, target, -100), dtype=torch.long
    )
    loss = model(**inputs_of(model, source, target), labels=labels).loss
    loss.backward()

    def mean(params, source, target):
        logits = Transformer(config).apply({"params": params}, source, target)
        total, count = F.cross_entropy(logits, target, target != config.pad_id)
        return total / count

    value, gradient = jax.jit(jax.value_and_grad(mean))(params, source, target)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-6)
    named = model.named_parameters()
    theirs = {name: p.grad.numpy() for name, p in named if p.grad is not None}
    _, expected = from_state(model.config.to_dict(), theirs)
    gradient.pop("logits", None)  # theirs is no parameter
    if family == "marian":  # theirs has no gradient from the input at padding's row
        for tree in (gradient, expected):
            tree["embedding"]["table"] = tree["embedding"]["table"][:-1]
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 0.1
    jax.tree.map(close, gradient, expected)


def same_trees(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_in_one_file_or_more_and_in_half_precision(family, tmp_path):
    """What save_pretrained writes is read; numbers in half precision are those of
    their model in half precision.
    """
    model = make(family, 11)
    expected = from_model(model)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "more", max_shard_size="5KB")
    assert len(list((tmp_path / "more").glob("*.safetensors"))) > 2
    for name in ("one", "more"):
        found = huggingface.read(tmp_path / name)
        assert found.config == expected[0]
        assert found.generation["eos_token_id"] == model.config.eos_token_id
        same_trees(found.params, expected[1])
    for dtype in (torch.float16, torch.bfloat16):
        half = make(family, 11).to(dtype)
        half.save_pretrained(tmp_path / str(dtype))
        found = huggingface.read(tmp_path / str(dtype))
        same_trees(found.params, from_model(half)[1])
        half = type(model).from_pretrained(tmp_path / str(dtype), dtype=torch.float32)
        close(*compare(half.eval(), found.config, found.params))


def check_loading(info):
    """Check that a model took every tensor and lacks none but sines and cosines."""
    assert all("embed_positions" in name for name in info.pop("missing_keys"))
    assert not any(info.values()), info


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_written_is_loaded_by_transformers(form, tmp_path):
    """Logits are equal bit for bit. The file is the one that transformers writes:
    unless tables are untied, it has the same tensors, of equal bytes.
    """
    model, _ = make_form(form, 12)
    model.save_pretrained(tmp_path / "theirs")
    read = huggingface.read(tmp_path / "theirs")
    ours = tmp_path / "ours"
    huggingface.write(
        ours, read.config, read.params, settings=read.settings, generation={}
    )
    again, info = type(model).from_pretrained(ours, output_loading_info=True)
    check_loading(info)
    source = draw(model.config, 13, 9, read.config.source_vocabulary_size or 41)
    target = draw(model.config, 14, 9)
    expected = logits_of(model, source, target)
    np.testing.assert_array_equal(logits_of(again.eval(), source, target), expected)
    found, given = (
        load_file(tmp_path / x / "model.safetensors") for x in ("ours", "theirs")
    )
    unread = {"model.shared.weight"} if form == "mbart untied" else set()
    assert found.keys() == given.keys()
    for name in found.keys() - unread:
        assert found[name].tobytes() == given[name].tobytes(), name
    settings, expected = again.config.to_dict(), model.config.to_dict()
    named = {"_name_or_path", "torch_dtype"}
    for name in settings.keys() - named:
        assert settings[name] == expected[name], name


def test_a_file_s_tensors_are_enough():
    """Files leave some names out, and may be in half precision. A bias of zeros is
    left out.
    """
    model = make("marian", 5)
    whole = from_model(model)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for name in [name for name in state if "embed_" in name] + ["lm_head.weight"]:
        del state[name]
    config, params = from_state(model.config.to_dict(), state)
    assert config == whole[0]
    same_trees(params, whole[1])
    model.final_logits_bias.zero_()
    config, params = from_model(model)
    assert not config.output_bias
    assert "logits" not in params


NORM, FC1 = "model.encoder.layer_norm.weight", "model.encoder.layers.0.fc1.weight"
POSITIONS = "model.decoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        ({NORM: np.ones(16)}, f"takes the tensors {NORM};"),
        ({FC1: None}, f"the model lacks the tensor {FC1}; give the tensors of the wh"),
        ({FC1: np.ones((16, 24))}, f"{FC1} must have the shape (24, 16) by the conf"),
        ({POSITIONS: np.ones((64, 16))}, f"{POSITIONS} must hold sines and cosines"),
    ],
)
def test_what_cannot_be_carried_over_is_named(tensors, line):
    """Each tensor is taken once."""
    model = make("marian", 7)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    state = {name: x for name, x in (state | tensors).items() if x is not None}
    with pytest.raises(InputError, match=re.escape(line)):
        from_state(model.config.to_dict(), state)


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_the_stored_logits_are_those_of_transformers(family, tmp_path):
    """And every tensor of the folders that the tests make has its place there."""
    folders.make_folder(tmp_path, family)
    logits, info = folders.compute_logits(tmp_path, family)
    close(np.load(folders.GOLDEN)[family], logits, atol=1e-6)
    check_loading(info)


@functools.cache
def compile_search(config, beam_size, first, eos_id):
    """Compile a search for the best ``beam_size`` hypotheses under their penalty."""

    @jax.jit
    def search(params, source, alpha):
        model = Transformer(config)
        memory = model.apply({"params": params}, source, method="start")
        options = {
            "max_lengths": jnp.full(source.shape[0], LONGEST),
            "length": LONGEST,
            "alpha": alpha,
            "penalty": "average",
            "bos_id": first,
            "eos_id": eos_id,
            "pad_id": config.pad_id,
        }

        def step(tokens, cache):
            tokens = jnp.where(tokens == first, config.bos_id, tokens)
            return model.apply({"params": params}, tokens, cache, memory, method="step")

        cache = empty_cache(config, source.shape[0] * beam_size, LONGEST, beam_size)
        if beam_size == 1:
            return greedy_search(step, cache, SearchRules(**options))
        rules = SearchRules(beam_size=beam_size, n_best=beam_size, **options)
        return beam_search(step, cache, rules)

    return search


def first_id(settings):
    """Return the token that begins a search and is never found: that of Marian's
    models, and in those that begin with the end of sentence one that stands for it.
    """
    start = settings.decoder_start_token_id
    return 0 if start == settings.eos_token_id else start


def our_search(settings, config, params, source, beam_size, alpha=0.0):
    search = compile_search(
        config, beam_size, first_id(settings), settings.eos_token_id
    )
    found = search(params, jnp.asarray(source), jnp.float32(alpha))
    return jax.tree.map(np.asarray, found)


def their_search(model, source, **options):
    source = torch.tensor(source, dtype=torch.long)
    pad, first = model.config.pad_token_id, first_id(model.config)
    with one_thread():
        return model.generate(
            source,
            attention_mask=(source != pad).long(),
            do_sample=False,
            max_new_tokens=LONGEST,
            # as published models have it, and as jaxformer always has it
            bad_words_ids=[[token] for token in {pad, first}],
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def padded(tokens, pad):
    """Return their sequences as ours: without the first token, padded."""
    tokens = tokens.numpy()[:, 1:]
    return np.pad(tokens, ((0, 0), (0, LONGEST - tokens.shape[1])), constant_values=pad)


@pytest.fixture(scope="module", params=FAMILIES)
def ending(request):
    """A model that ends its sentences, sources, and the model carried over."""
    with one_thread():
        model = make_ending(request.param, 0)
    return model, draw(model.config, 9, 200), *from_model(model)


def test_greedy_search_finds_the_same_tokens(ending):
    model, source, config, params = ending
    found = our_search(model.config, config, params, source, 1)
    expected = padded(their_search(model, source, num_beams=1).sequences, config.pad_id)
    assert len(set(found.lengths[:, 0].tolist())) > 10  # sentences of many lengths
    np.testing.assert_array_equal(found.tokens[:, 0], expected)


@pytest.mark.parametrize("alpha", [1.0, -0.7])
def test_beam_search_finds_the_same_hypotheses(ending, alpha):
    """All four hypotheses with their scores, under the length to the power of alpha as
    penalty, where all end within the limit.

    Both count the end of a sentence as one of its tokens, and not the decoder's first.
    ``early_stopping="never"`` stops only when nothing alive can displace a finished
    hypothesis, as ours does.
    """
    model, source, config, params = ending
    found = our_search(model.config, config, params, source, 4, alpha)
    options = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"}
    theirs = their_search(model, source, length_penalty=alpha, **options)
    ended = found.finished.all(axis=1)
    assert ended.mean() > 0.8
    tokens = padded(theirs.sequences, config.pad_id).reshape(found.tokens.shape)
    np.testing.assert_array_equal(found.tokens[ended], tokens[ended])
    scores = theirs.sequences_scores.numpy().reshape(found.scores.shape)
    np.testing.assert_allclose(found.scores[ended], scores[ended], rtol=1e-5, atol=1e-4)
