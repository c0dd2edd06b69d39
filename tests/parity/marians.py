"""Little models of Hugging Face's MarianMTModel, and sentences for them."""

# pyright: reportOptionalMemberAccess=false

import contextlib

import numpy as np

try:
    import torch
    import transformers
# the tests are collected all the same, so that they can be counted
except ModuleNotFoundError:
    torch = transformers = None

SIZE, EOS, PAD, LONGEST = 41, 0, 40, 48

LITTLE = {
    "vocab_size": SIZE,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
    "forced_eos_token_id": None,
}

SETTINGS = {
    "shared": {},
    "separate": {
        "share_encoder_decoder_embeddings": False,
        "vocab_size": 43,
        "decoder_vocab_size": SIZE,
    },
    "untied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "deep encoder": {
        "encoder_layers": 4,
        "decoder_layers": 1,
        "activation_function": "relu",
    },
    "unscaled": {"scale_embedding": False, "activation_function": "gelu"},
    "another first token": {
        "decoder_start_token_id": 7,
        "activation_function": "gelu_new",
    },
}


def make(seed, **settings):
    """Make a model whose every parameter is drawn, biases, norms and the row of
    padding too.
    """
    model = transformers.MarianMTModel(
        transformers.MarianConfig(**(LITTLE | settings))
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(generator=generator).mul_(0.4)
                if "norm" in name and name.endswith("weight"):
                    parameter.add_(1.0)
        model.final_logits_bias.normal_(generator=generator)
    return model


def draw(seed, count, size=SIZE, longest=20):
    """Draw sources of 1 to 20 tokens, the end of sentence among them, padded on the
    right.
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=count)
    tokens = rng.integers(1, size - 3, size=(count, longest)).astype(np.int32)
    place = np.arange(longest)[None]
    tokens[place == lengths[:, None] - 1] = EOS
    tokens[place >= lengths[:, None]] = PAD
    return tokens


@contextlib.contextmanager
def one_thread():
    """Let torch compute in one thread: for models so little, several cost many times
    more than they gain.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_ending(seed, steps=300):
    """Make a model whose sentences end, at mixed lengths: it has begun to learn to
    copy, and is sure of little.

    A model as it is drawn ends each sentence at once or never, and searches of such
    models have nothing to compare.
    """
    model = make(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed_positions" not in name:
                parameter.mul_(0.5)
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=5e-3
    )
    for step in range(steps):
        source = torch.tensor(draw(100 + step, 32), dtype=torch.long)
        labels = source.masked_fill(source == PAD, -100)
        model(
            input_ids=source, attention_mask=(source != PAD).long(), labels=labels
        ).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
