"""The systems of the comparison of translation: a random model as each of them reads
it, and its search.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from jaxformer.data.encoding import cores
from turns import Message

LENGTH = 32
"""Tokens of a sentence of forced length."""

PAD, UNK, EOS, FIRST = 0, 1, 3, 4  # as a vocabulary of jaxformer has them
SHORTLIST = "shortlist.npz"

Translate: TypeAlias = Callable[[Sequence[list[int]], int, int], int]
"""``translate(batch, length, beam) -> tokens``: write so many tokens for each
source, and return their total.
"""


def make_config(options: argparse.Namespace) -> Any:
    """Describe the model."""
    from jaxformer.models.config import TransformerConfig

    return {"base": TransformerConfig.base, "tiny": TransformerConfig.tiny}[
        options.model
    ](options.vocabulary_size)


def write_models(options: argparse.Namespace) -> None:
    """Draw parameters, and write them as each system reads them."""
    import jax
    import jax.numpy as jnp
    from flax.traverse_util import flatten_dict

    from jaxformer.interop import ctranslate2
    from jaxformer.models.transformer import Transformer

    config = make_config(options)
    token = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)[
        "params"
    ]
    rng = np.random.default_rng(0)

    def draw(path: tuple[Any, ...], leaf: Any) -> np.ndarray:
        return (path[-1].key == "scale") + np.float32(0.05) * rng.standard_normal(
            leaf.shape, np.float32
        )

    params = jax.tree_util.tree_map_with_path(draw, shapes)
    flat: dict[str, Any] = dict(flatten_dict(params, sep="/"))
    np.savez(options.folder / "params.npz", **flat)
    frameworks = {system.partition("-")[0] for system in options.systems}
    if "ctranslate2" in frameworks:
        words = [f"t{i}" for i in range(config.vocabulary_size)]
        tokens = ctranslate2.Tokens(
            words, words, unk_id=UNK, eos_id=EOS, source_eos=False
        )
        ctranslate2.save(options.folder / "ctranslate2", config, params, tokens)
    if "huggingface" in frameworks:
        from torch_learners import make_marian

        make_marian(config).save_pretrained(options.folder / "huggingface")


def begin(request: Message) -> Callable[[Message], Message]:
    """Build the system that a process is, and translate a sentence."""
    options = argparse.Namespace(**request)
    options.folder = Path(options.folder)
    system, _, kind = options.system.partition("-")
    make: Callable[[argparse.Namespace, str], Translate] = {
        "jaxformer": make_jaxformer,
        "ctranslate2": make_ctranslate2,
        "huggingface": make_huggingface,
    }[system]
    translate = make(options, kind)
    translate([[FIRST] * LENGTH], LENGTH, options.first_beam)

    def answer(request: Message) -> Message:
        batches, beam = request["batches"], request["beam"]
        begun = time.perf_counter()
        tokens = sum(translate(batch, max(map(len, batch)), beam) for batch in batches)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "work": sum(map(len, batches)), "tokens": tokens}

    return answer


def make_jaxformer(options: argparse.Namespace, kind: str) -> Translate:
    """Read the parameters; search as a Translator does."""
    import jax.numpy as jnp
    from flax.traverse_util import unflatten_dict

    from jaxformer.models.transformer import Transformer
    from jaxformer.search.config import DecodingConfig
    from jaxformer.translation.batch import Sentence, search_batch
    from jaxformer.translation.models import Models
    from jaxformer.translation.shortlist import Shortlist

    with np.load(options.folder / "params.npz") as saved:
        params = unflatten_dict(
            {name: jnp.asarray(saved[name]) for name in saved}, sep="/"
        )
    precision, _, listed = kind.partition("-")
    models = Models((Transformer(make_config(options)),), (params,)).prepare(
        cast(Any, precision)
    )
    del params
    shortlist = None
    if listed:
        with np.load(options.folder / SHORTLIST) as parts:
            shortlist = Shortlist(
                parts["first"], parts["best"], str(parts["vocabulary"])
            )

    def translate(batch: Sequence[list[int]], length: int, beam: int) -> int:
        # As if each source had as many words as are to be written.
        sentences = [Sentence(ids, length, (0, 0)) for ids in batch]
        decoding = DecodingConfig(
            beam_size=beam, max_extra_length=0, min_length=length, batch_size=len(batch)
        )
        found = search_batch(
            models, sentences, decoding, eos_id=EOS, n_best=1, shortlist=shortlist
        )
        return int(found.lengths[: len(batch)].sum())

    return translate


def make_ctranslate2(options: argparse.Namespace, compute_type: str) -> Translate:
    """Load the model with a thread a core."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(options.folder / "ctranslate2"),
        device=options.device,
        compute_type=compute_type,
        intra_threads=cores(),
    )

    def translate(batch: Sequence[list[int]], length: int, beam: int) -> int:
        results = translator.translate_batch(
            [[f"t{i}" for i in ids] for ids in batch],
            beam_size=beam,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return sum(len(result.hypotheses[0]) for result in results)

    return translate


def make_huggingface(options: argparse.Namespace, dtype: str) -> Translate:
    """Load the model."""
    import torch
    import transformers

    model: Any = transformers.MarianMTModel.from_pretrained(
        options.folder / "huggingface", dtype=dtype
    )
    model = model.eval().to(options.device)

    def translate(batch: Sequence[list[int]], length: int, beam: int) -> int:
        width = max(map(len, batch))
        source = torch.tensor(
            [ids + [PAD] * (width - len(ids)) for ids in batch], device=options.device
        )
        found = model.generate(
            source,
            attention_mask=(source != PAD).long(),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
        )
        return found.shape[0] * (found.shape[1] - 1)

    return translate
