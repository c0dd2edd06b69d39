"""Small folders of each family as transformers writes them, made without it, and what
its models compute from them.

Tensors are draws of ``numpy.random.RandomState(SEED)``, whose stream never changes. The
logits in ``golden.npz`` are those of transformers 5.23 and torch 2.13, float32:

    python tests/interop/folders.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SEED = 22
GOLDEN = Path(__file__).with_name("golden.npz")
SIZE, WIDTH, HIDDEN, HEADS, PAD, EOS, START = 19, 8, 12, 2, 1, 2, 2

SETTINGS = {
    "vocab_size": SIZE,
    "d_model": WIDTH,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_ffn_dim": HIDDEN,
    "decoder_ffn_dim": HIDDEN,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "max_position_embeddings": 12,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "forced_eos_token_id": EOS,
    "decoder_start_token_id": START,
    "encoder_layerdrop": 0.05,
    "is_encoder_decoder": True,
}
FAMILIES = {
    "marian": {"activation_function": "swish", "scale_embedding": True},
    "m2m_100": {"activation_function": "relu", "scale_embedding": True},
    "mbart": {"activation_function": "gelu", "scale_embedding": True},
    "bart": {"activation_function": "gelu_new", "scale_embedding": False},
}
CLASSES = {
    "marian": "MarianMTModel",
    "m2m_100": "M2M100ForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
}


def shapes(family):
    """Return the shape of each tensor in a file of a family."""
    found = {"model.shared.weight": (SIZE, WIDTH)}
    if family != "m2m_100":
        found["final_logits_bias"] = (1, SIZE)
    norms = []
    for side, depth in (("encoder", 1), ("decoder", 2)):
        attentions = ["self_attn"] + ["encoder_attn"] * (side == "decoder")
        for i in range(depth):
            layer = f"model.{side}.layers.{i}"
            for attention in attentions:
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    found[f"{layer}.{attention}.{name}.weight"] = (WIDTH, WIDTH)
                    found[f"{layer}.{attention}.{name}.bias"] = (WIDTH,)
                norms.append(f"{layer}.{attention}_layer_norm")
            found[f"{layer}.fc1.weight"] = (HIDDEN, WIDTH)
            found[f"{layer}.fc1.bias"] = (HIDDEN,)
            found[f"{layer}.fc2.weight"] = (WIDTH, HIDDEN)
            found[f"{layer}.fc2.bias"] = (WIDTH,)
            norms.append(f"{layer}.final_layer_norm")
        if family in ("m2m_100", "mbart"):
            norms.append(f"model.{side}.layer_norm")
        if family in ("mbart", "bart"):
            norms.append(f"model.{side}.layernorm_embedding")
            found[f"model.{side}.embed_positions.weight"] = (14, WIDTH)
    parts = [(norm, part) for norm in norms for part in ("weight", "bias")]
    return found | {f"{norm}.{part}": (WIDTH,) for norm, part in parts}


def draw_tensors(family):
    rng = np.random.RandomState(SEED)
    tensors = {}
    for name, shape in sorted(shapes(family).items()):
        drawn = 0.4 * rng.standard_normal(shape)
        around = "norm" in name and name.endswith("weight")
        tensors[name] = (drawn + around).astype(np.float32)
    return tensors


def make_folder(folder, family, tensors=None, **settings):
    """Write a model's folder; a setting that is None is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"model_type": family, "architectures": [CLASSES[family]]}
    whole |= SETTINGS | FAMILIES[family] | {"dtype": "float32"} | settings
    whole = {name: value for name, value in whole.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = draw_tensors(family) if tensors is None else tensors
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def draw_pair(seed=SEED, lengths=((7, 4), (3, 9), (11, 1))):
    """Draw sources and targets that end with the end of sentence, padded."""
    rng = np.random.RandomState(seed)
    sides = []
    for of_side in zip(*lengths, strict=True):
        tokens = np.full((len(of_side), max(of_side)), PAD, np.int32)
        for row, length in zip(tokens, of_side, strict=True):
            row[:length] = [*rng.randint(3, SIZE, length - 1), EOS]
        sides.append(tokens)
    return sides


def compute_logits(folder, family):
    """Return the logits of the pairs by transformers, and what it says of the file."""
    import torch
    import transformers

    source, target = draw_pair()
    inputs = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    source, inputs = (torch.tensor(x, dtype=torch.long) for x in (source, inputs))
    model, info = getattr(transformers, CLASSES[family]).from_pretrained(
        folder, output_loading_info=True
    )
    mask = (source != PAD).long()
    with torch.no_grad():
        found = model.eval()(
            input_ids=source, attention_mask=mask, decoder_input_ids=inputs
        )
    return found.logits.numpy(), info


def main():
    logits = {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            make_folder(Path(folder), family)
            logits[family], _ = compute_logits(folder, family)
    np.savez_compressed(GOLDEN, seed=SEED, **logits)


if __name__ == "__main__":
    main()
