"""``jaxformer export``."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import get_args

from jaxformer import bucket
from jaxformer.cli.arguments import (
    add_model,
    add_options,
    check_source_language,
    number,
    refuse_flags,
)
from jaxformer.cli.output import phase, warn, write_result
from jaxformer.data.frame import UNKNOWN
from jaxformer.errors import UsageError
from jaxformer.files import new_folder
from jaxformer.interop import export
from jaxformer.interop.ctranslate2 import target_prefix, tokens_of
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.search.config import MOST_BEAM, Precision
from jaxformer.translation.translator import Translator

EXAMPLE = """
examples:
  jaxformer export --workdir=runs/opus --out=opus-mine --format=huggingface
  jaxformer export --workdir=runs/ende --out=ende-ct2 --format=ctranslate2
  jaxformer export --workdir=runs/ende --out=ende.argosmodel --format=argos
  jaxformer export --workdir=runs/ende --out=ende-hlo --format=stablehlo \\
    --beam_size=1

Writes a run for another system, into a new folder that appears when it is whole.
huggingface: model, search and tokenizer for transformers; an imported model goes back
to its family, and a run that was trained here becomes a Marian model, or for other
objectives than translation a BERT, RoBERTa, DistilBERT, GPT or GPT-2, if it computes
what these do. ctranslate2: the model and its tokens, float32. argos: a package, one
file, that Argos Translate and LibreTranslate install; its search is their own.
stablehlo: the search as one program for CPUs, GPUs and TPUs, its parameters, and
translate.py, which needs jax, numpy, safetensors and flatbuffers only.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_model(parser)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="PATH",
        help="folder to make; for argos a file, NAME.argosmodel",
    )
    parser.add_argument(
        "--format", required=True, choices=export.PRECISIONS, help="the other system"
    )
    beam = "hypotheses of the search; 1 is greedy search (default: that of the run)"
    add_options(parser, ("beam_size", number(1, MOST_BEAM), "W", beam))
    parser.add_argument(
        "--precision",
        choices=(*get_args(Precision), "float16"),
        help="type of the weights (default: that of the run's search): "
        + "; ".join(f"{form} {', '.join(x)}" for form, x in export.PRECISIONS.items()),
    )


@phase("exporting")
def run(options: argparse.Namespace) -> None:
    """Export."""
    config = configuration.load(options.workdir / "config.json")
    if config.training.objective != "translation":
        _export_one_stack(options, config)
        return
    ending = export.PACKED.get(options.format, "")
    if not options.out.name.endswith(ending):
        raise UsageError(
            f"--out={options.out} must end with {ending} for --format={options.format}:"
            f" write --out={options.out}{ending}"
        )
    with new_folder(options.out, packed=bool(ending)) as folder:
        translator = _load(options, config.data.languages)
        decoding = translator.decoding
        if options.beam_size is not None:
            decoding = dataclasses.replace(decoding, beam_size=options.beam_size)
        lost = export.write(
            folder, options.format, translator, decoding, options.precision
        )
    if lost:
        warn(f"--format={options.format} has no counterpart of {', '.join(lost)}")
    frame, vocabularies = translator.codec.frame, translator.vocabularies
    before, after = frame.target_before, frame.source_after
    if options.format == "ctranslate2":
        before = target_prefix(translator)
        if tokens_of(translator).source_eos:
            after = ()
    write_result(
        {
            "out": bucket.reword(str(options.out)),
            "format": options.format,
            "checkpoint": translator.checkpoint,
            "source_before": vocabularies.source.pieces(frame.source_before),
            "source_after": vocabularies.source.pieces(after),
            "target_before": vocabularies.target.pieces(before),
        }
    )


def _load(options: argparse.Namespace, own: tuple[str, str]) -> Translator:
    """Load a run. Languages that it does not know are named by the options.

    Args:
        options: of the command line.
        own: the languages of the run.

    Raises:
        InputError: there is no such run, checkpoint or language.
    """
    asked = options.source_language, options.target_language
    # As an import without languages names them.
    unknown = [code == side for code, side in zip(own, UNKNOWN, strict=True)]
    options.source_language, target = (
        None if free else code for free, code in zip(unknown, asked, strict=True)
    )
    translator = Translator.load(
        options.workdir, options.checkpoint, target, options.source_language
    )
    check_source_language(options, translator)
    source, target = (
        (free and code) or found
        for free, code, found in zip(unknown, asked, translator.languages, strict=True)
    )
    translator.languages = source, target
    return translator


def _export_one_stack(options: argparse.Namespace, config: RunConfig) -> None:
    """Export an encoder-only or a decoder-only model."""
    from jaxformer.interop.huggingface import one_stack_run

    if options.format != "huggingface":
        raise UsageError(
            f"--format={options.format} is for models that translate: this one goes to"
            " --format=huggingface"
        )
    flags = "beam_size", "source_language", "target_language"
    refuse_flags(options, config.training.objective, flags)
    precision = options.precision or config.decoding.precision
    dtype = export.choose_dtype(options.format, precision)
    with new_folder(options.out) as folder:
        name, missing = one_stack_run.save(
            options.workdir, options.checkpoint, folder, dtype
        )
    if missing:
        warn(f"this model has no {missing}, which transformers will draw")
    write_result(
        {
            "out": bucket.reword(str(options.out)),
            "format": options.format,
            "checkpoint": name,
        }
    )
