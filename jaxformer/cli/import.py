# ruff: noqa: N999  (modules have the names of their commands)
"""``jaxformer import``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxformer import bucket
from jaxformer.cli.arguments import add_options, add_workdir
from jaxformer.cli.output import phase, warn, write_result
from jaxformer.interop.huggingface.run import import_run

EXAMPLE = """
examples:
  jaxformer import downloads/opus-mt-en-de --workdir=runs/opus
  jaxformer import downloads/nllb-200-distilled-600M --workdir=runs/nllb \\
      --from=eng_Latn --to=deu_Latn
  echo "Insert a table." | jaxformer translate --workdir=runs/nllb --to=fra_Latn
  jaxformer train --config=finetune:runs/opus --workdir=runs/mine \\
      --config.data.train=text:train.en,train.de
  jaxformer import downloads/bert-base-uncased --workdir=runs/bert

Reads a model as Hugging Face's transformers saves it, with config.json,
model.safetensors and the files of the tokenizer: Marian (OPUS-MT), M2M-100, NLLB-200,
mBART, mBART-50 and BART translate; BERT, RoBERTa, DistilBERT, GPT and GPT-2 have the
objective of their head. The result is the directory of a run with one checkpoint, whose
search, of a model that translates, is that of generation_config.json. --from and --to
are the languages that it translates without these options later. The directory appears
when it is whole.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the model")
    add_workdir(parser, "directory of the run to make, empty or missing")
    default = "(default: as the folder says)"
    add_options(
        parser,
        ("from", str, "CODE", f"what to translate from {default}"),
        ("to", str, "CODE", f"what to translate into {default}"),
    )


@phase("importing")
def run(options: argparse.Namespace) -> None:
    """Import."""
    config, ignored = import_run(
        options.folder,
        options.workdir,
        source_language=vars(options)["from"],
        target_language=options.to,
    )
    if ignored:
        warn(f"not taken from the folder: {', '.join(ignored)}")
    record = {"workdir": bucket.reword(str(options.workdir))}
    if config.training.objective == "translation":
        record |= {
            "source_language": config.data.source_language,
            "target_language": config.data.target_language,
        }
    else:
        record |= {
            "objective": config.training.objective,
            "head": config.model.head,
        }
    write_result({**record, "vocabulary": config.data.vocabulary_size})
