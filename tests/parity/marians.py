"""Little models of Hugging Face's MarianMTModel, and sentences for them."""

# pyright: reportOptionalMemberAccess=false

import contextlib

import numpy as np

try:
    import torch
    import transformers
except ModuleNotFoundError:  # the tests are collected all the same
    torch = transformers = None

SIZE, EOS, PAD, LONGEST = 41, 0, 40, 48

LITTLE = {
    "vocab_size": SIZE,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
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
    "shared": {"scale_embedding": False, "activation_function": "gelu"},
    "separate": {
        "share_encoder_decoder_embeddings": False,
        "vocab_size": 43,
        "decoder_vocab_size": SIZE,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "activation_function": "relu",
    },
    "untied": {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "decoder_start_token_id": 7,
        "activation_function": "gelu_new",
    },
}


def make(seed, **settings):
    """Draw every parameter, biases, norms and the row of padding too."""
    config = transformers.MarianConfig(**(LITTLE | settings))
    model = transformers.MarianMTModel(config).eval()
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
    """Draw sources that end with the end of sentence, padded on the right."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=count)
    tokens = rng.integers(1, size - 3, size=(count, longest)).astype(np.int32)
    place = np.arange(longest)[None]
    tokens[place == lengths[:, None] - 1] = EOS
    tokens[place >= lengths[:, None]] = PAD
    return tokens


@contextlib.contextmanager
def one_thread():
    """Let torch compute in one thread: for such small models several cost more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_ending(seed, steps=300):
    """Train a model to copy until its sentences end, at mixed lengths.

    A random model ends each sentence at once or never.
    """
    model = make(seed, encoder_layers=2, decoder_layers=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed_positions" not in name:
                parameter.mul_(0.5)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=5e-3)
    for step in range(steps):
        source = torch.tensor(draw(100 + step, 32), dtype=torch.long)
        labels = source.masked_fill(source == PAD, -100)
        mask = (source != PAD).long()
        model(input_ids=source, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
