"""Write a run for another system: Hugging Face's transformers, CTranslate2, Argos
Translate, or a program that needs only JAX.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxformer.errors import InputError, UsageError
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.translator import Translator

PRECISIONS = {
    "huggingface": ("float32", "bfloat16", "float16"),
    "ctranslate2": ("float32",),
    "argos": ("float32", "int8"),
    "stablehlo": ("float32", "bfloat16"),
}
"""The formats, and the types that their weights may have; ``model`` is float32, and in
the last the type that the model computes in.
"""

_OTHERWISE = ": CTranslate2 converts them when it loads them, by compute_type"

PACKED = {"argos": ".argosmodel"}
"""The formats whose content is packed into a ZIP file, and how its name ends."""


def write(
    folder: Path,
    form: str,
    translator: Translator,
    decoding: DecodingConfig,
    precision: str | None = None,
) -> list[str]:
    """Fill a folder with the model of a translator.

    Args:
        folder: exists, and is empty.
        form: of :data:`PRECISIONS`.
        translator: of a single model.
        decoding: how to search. CTranslate2 keeps no search, and Argos has its own.
        precision: type of the weights; None: that of the search.

    Returns:
        The settings of the search that the format does not have.

    Raises:
        InputError: the format has no such model or type, or a package is missing.
    """
    precision = precision or decoding.precision
    dtype = choose_dtype(form, precision)
    network = translator.model.config.network
    if form != "stablehlo" and network != "transformer":
        raise InputError(
            f"--format={form} has no model.network={network}: take --format=stablehlo"
        )
    if form == "argos":
        from jaxformer.interop import argos

        return argos.save(folder, translator, decoding, dtype)
    if form == "stablehlo":
        from jaxformer.interop import stablehlo

        decoding = dataclasses.replace(decoding, precision=precision)
        stablehlo.save(folder, translator, decoding)
        return ["sample=True (there it is greedy)"] if decoding.sample else []
    if form == "ctranslate2":
        from jaxformer.interop import ctranslate2

        tokens = ctranslate2.tokens_of(translator)
        config, params = translator.model.config, translator.params
        ctranslate2.save(folder, config, params, tokens)
        translator.vocabularies.save(folder / "vocabulary")
        return ctranslate2.list_limits(config)
    from jaxformer.interop.huggingface import export

    return export.save(folder, translator, decoding, dtype)


def choose_dtype(form: str, precision: str) -> str:
    """Return the type of the weights that a format gets by a precision.

    Raises:
        UsageError: the format has no such type.
    """
    possible = PRECISIONS[form]
    if precision not in ("model", *possible):
        raise UsageError(
            f"--format={form} writes weights of --precision={' or '.join(possible)},"
            f" not {precision}{_OTHERWISE if form == 'ctranslate2' else ''}"
        )
    return "float32" if precision == "model" else precision
