"""Attention maps and compared systems to show, and pictures read back."""

from __future__ import annotations

import numpy as np
from PIL import Image

from jaxformer.evaluation.comparison import ComparisonConfig, compare
from jaxformer.evaluation.metrics import BLEU, CHRF
from jaxformer.translation.results import Attention

REFERENCES = ["the cat sat on the mat", "a house", "an old tree is green . " * 3, "x"]
TEXTS = [
    ["the cat sat on a mat", "the house", "an old tree was green", "x"],
    ["a cat sat on the mat", "a house", "an old tree", "nothing"],
    REFERENCES,
]


def make_maps(source, target, shapes=((2, 3),) * 3):
    """Draw weights of so many layers and heads: encoder, decoder and cross."""
    rng, s, t = np.random.default_rng(0), len(source), len(target)
    sizes = zip(shapes, ((s, s), (t, t), (t, s)), strict=True)
    weights = [rng.exponential(size=(*shape, *size)) for shape, size in sizes]
    weights[1] *= np.tri(t)
    weights = [values / values.sum(axis=-1, keepdims=True) for values in weights]
    return Attention(source, target, ["<s>", *target[:-1]], *weights)


def make_comparison(*names, more=()):
    """Compare three systems, of which the second is better in some sentences and worse
    in others and the third is perfect.
    """
    references = [*REFERENCES, *more]
    texts = [[*text, *more] for text in TEXTS]
    sources = [f"source {number} <b>" for number in range(len(references))]
    config = ComparisonConfig(resamples=100, trials=20, examples=2)
    systems = dict(zip(names, texts, strict=True))
    return compare(systems, [references], [BLEU, CHRF], config, sources=sources)


def pixels(picture):
    """Read a PNG as red, green and blue from 0 to 255: ``[height, width, 3]``."""
    with Image.open(picture, formats=["PNG"]) as image:
        return np.asarray(image.convert("RGB")).astype(int)
