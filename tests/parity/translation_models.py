"""Little translation models of Hugging Face's transformers, and sentences for them."""

# pyright: reportOptionalMemberAccess=false

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.interop.huggingface.seq2seq import from_state

try:
    import torch
    import transformers
except ModuleNotFoundError:  # the tests are collected all the same
    torch = transformers = None

SIZE = 41

LITTLE = {
    "vocab_size": SIZE,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}

MARIAN = {
    "activation_function": "swish",
    "pad_token_id": 40,
    "eos_token_id": 0,
    "decoder_start_token_id": 40,
}

# The classes of a family in transformers, and the settings of its models.
FAMILIES = {
    "marian": ("MarianConfig", "MarianMTModel", MARIAN),
    "m2m_100": (
        "M2M100Config",
        "M2M100ForConditionalGeneration",
        {"activation_function": "relu"},
    ),
    "mbart": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        {"activation_function": "gelu"},
    ),
    "bart": (
        "BartConfig",
        "BartForConditionalGeneration",
        {"activation_function": "gelu", "scale_embedding": False},
    ),
}

# Models by family and settings, and how their tables are tied.
FORMS = {
    "marian shared": (
        "all",
        {"scale_embedding": False, "activation_function": "gelu"},
    ),
    "marian separate": (
        "target",
        {
            "share_encoder_decoder_embeddings": False,
            "vocab_size": 43,
            "decoder_vocab_size": SIZE,
            "encoder_layers": 3,
            "decoder_layers": 1,
            "activation_function": "relu",
        },
    ),
    "marian untied": (
        "none",
        {
            "share_encoder_decoder_embeddings": False,
            "tie_word_embeddings": False,
            "decoder_start_token_id": 7,
            "activation_function": "gelu_new",
        },
    ),
    "m2m_100 shared": ("all", {"encoder_layers": 2}),
    "m2m_100 other padding": (
        "all",
        {"pad_token_id": 5, "scale_embedding": False, "activation_function": "silu"},
    ),
    "mbart shared": ("all", {"decoder_layers": 2}),
    "mbart untied": ("none", {"tie_word_embeddings": False}),
    "bart shared": ("all", {}),
    "bart scaled": ("all", {"scale_embedding": True, "encoder_layers": 2}),
}


def make(family, seed, std=0.4, **settings):
    """Draw every parameter, biases, norms and the row of padding too."""
    config, model, own = FAMILIES[family]
    config = getattr(transformers, config)(**(LITTLE | own | settings))
    model = getattr(transformers, model)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if family == "marian" and "embed_positions" in name:
                continue
            parameter.normal_(generator=generator).mul_(std)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
        if family != "m2m_100":
            model.final_logits_bias.normal_(generator=generator)
    return model


def draw(config, seed, count, size=SIZE, longest=20):
    """Draw sentences that end with the end of sentence, padded on the right."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=count)
    tokens = rng.integers(6, size - 3, size=(count, longest)).astype(np.int32)
    place = np.arange(longest)[None]
    tokens[place == lengths[:, None] - 1] = config.eos_token_id
    tokens[place >= lengths[:, None]] = config.pad_token_id
    return tokens


def inputs_of(model, source, target):
    """Return what a model takes for pairs: the target follows the first token."""
    pad = model.config.pad_token_id
    first = np.full((len(target), 1), model.config.decoder_start_token_id)
    inputs = np.concatenate([first, target[:, :-1]], 1)
    source, inputs = (torch.tensor(x, dtype=torch.long) for x in (source, inputs))
    return {
        "input_ids": source,
        "attention_mask": (source != pad).long(),
        "decoder_input_ids": inputs,
    }


def logits_of(model, source, target):
    with torch.no_grad():
        return model(**inputs_of(model, source, target)).logits.float().numpy()


def check_gradients(model, inputs, mean, params, *batch):
    """Compare their loss of a batch with labels, and its gradients, with those of
    ``mean(params, *batch)``.
    """
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    value, gradient = jax.jit(jax.value_and_grad(mean))(params, *batch)
    np.testing.assert_allclose(value, loss.item(), rtol=1e-6)
    named = model.named_parameters()
    theirs = {name: p.grad.numpy() for name, p in named if p.grad is not None}
    _, expected = from_state(model.config.to_dict(), theirs)
    gradient.pop("logits", None)  # theirs is no parameter
    if model.config.model_type == "marian":
        # Theirs has no gradient from the input at padding's row, the last one.
        for tree in (gradient, expected):
            tree["embedding"]["table"] = tree["embedding"]["table"][:-1]
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 0.1
    jax.tree.map(
        lambda found, each: np.testing.assert_allclose(found, each, rtol=0, atol=2e-5),
        gradient,
        expected,
    )
