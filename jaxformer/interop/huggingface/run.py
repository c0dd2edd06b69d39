"""Make the directory of a run from a folder of Hugging Face's transformers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxformer import bucket
from jaxformer.checkpoints import folder as checkpoint
from jaxformer.checkpoints import saved
from jaxformer.data.config import DataConfig
from jaxformer.data.frame import TEXT, Template, make_frame, name_language
from jaxformer.data.sources import IMPORTED
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.files import new_folder
from jaxformer.interop.huggingface import one_stack_run
from jaxformer.interop.huggingface.generation import (
    KNOWN,
    list_ignored,
    read_banned,
    read_decoding,
)
from jaxformer.interop.huggingface.one_stack_kinds import KINDS
from jaxformer.interop.huggingface.seq2seq import Imported, read
from jaxformer.interop.huggingface.tokenizers import read_options, read_vocabularies
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig


class _Mapped(np.ndarray):
    """An array that orbax writes from where it is: it would copy all of them first."""

    def __deepcopy__(self, memo: Any) -> _Mapped:
        return self


def import_run(
    folder: Path,
    directory: Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> tuple[RunConfig, list[str]]:
    """Make a run of a model that ``save_pretrained`` wrote or that was downloaded.

    Its one checkpoint, step 0, has parameters only. Nothing is written on an error.

    Args:
        folder: with ``config.json``, ``model.safetensors`` and the tokenizer's files.
        directory: of the run, empty or missing.
        source_language: what is translated from, as a code of the model; None: as the
            folder says.
        target_language: what is translated into; None: as the folder says.

    Returns:
        The configuration, and the settings of the folder's search that are not taken.

    Raises:
        InputError: the folder is not that of a known model, or is damaged; a language
            is unknown or must be named; the directory is not empty.
    """
    if directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise InputError(
            f"{directory} is not an empty folder: choose another --workdir"
        )
    imported = read(folder)
    # Names of data sets give other characters a meaning.
    name = re.sub(r"[^\w.-]", "_", folder.resolve().name)
    if imported.settings["model_type"] in KINDS:
        if source_language or target_language:
            raise InputError("--from and --to are for models that translate: drop them")
        config, vocabularies, ignored = one_stack_run.describe(folder, name, imported)
        _write(directory, name, config, vocabularies, imported.params)
        return config, ignored
    vocabularies = read_vocabularies(folder, imported.settings)
    search, tokenizer = _search_settings(imported), read_options(folder)
    template = _make_template(imported, vocabularies, search, tokenizer)
    vocabularies = dataclasses.replace(vocabularies, template=template)
    languages = _choose_languages(
        (source_language, target_language), vocabularies, search, tokenizer
    )
    frame = make_frame(vocabularies, languages)
    model = dataclasses.replace(imported.config, bos_id=frame.start)
    config = configuration.parse({})
    config = dataclasses.replace(
        config,
        model=model,
        data=_data(name, imported, vocabularies, languages),
        decoding=read_decoding(search, model.max_length, frame),
    )
    _write(directory, name, config, vocabularies, imported.params)
    ignored = list_ignored(search, frame, vocabularies.target)
    kind, table = imported.settings["model_type"], folder / "vocab.json"
    # Byte-pair pieces, those of BART and NLLB, are never cleaned up.
    cleaned = kind in ("marian", "mbart") or (kind == "m2m_100" and table.is_file())
    if cleaned and tokenizer.get("clean_up_tokenization_spaces") is True:
        ignored.append("clean_up_tokenization_spaces=True (text stays as it is)")
    return config, ignored


def _search_settings(imported: Imported) -> dict[str, Any]:
    """Return the settings of the search, which older folders have with the model's."""
    if imported.generation is not None:
        return imported.generation
    settings, forced = imported.settings, "forced_bos_token_id"
    search = {name: settings[name] for name in settings if name in KNOWN}
    oldest = settings.get("force_bos_token_to_be_generated") is True
    if oldest and search.get(forced) is None:
        search[forced] = settings.get("bos_token_id")
    return search


def _make_template(
    imported: Imported,
    vocabularies: Vocabularies,
    search: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
) -> Template:
    """Return what the model's tokenizer and decoder have around a text.

    Raises:
        InputError: the decoder begins with another token than a special one.
    """
    kind = imported.settings["model_type"]
    source: tuple[str, ...] = (TEXT, "{eos}")
    target: tuple[str, ...] = (TEXT, "{eos}")
    start = _name_start(imported, vocabularies, search)
    languages = vocabularies.source.languages
    if kind == "marian" and languages:
        source = ("{target}", *source)
    elif kind == "bart":
        source = ("{bos}", *source)
        if search.get("forced_bos_token_id") == vocabularies.target.bos_id:
            target = ("{bos}", *target)
    elif kind == "m2m_100" or (kind == "mbart" and _is_mbart50(tokenizer, languages)):
        target = ("{target}", *target)
        legacy = kind == "m2m_100" and tokenizer.get("legacy_behaviour") is True
        source = (*source, "{source}") if legacy else ("{source}", *source)
    elif kind == "mbart":
        source, start = (*source, "{source}"), "{target}"
    banned = read_banned(search, vocabularies, imported.config.vocabulary_size)
    return Template(source, target, start, banned)


def _is_mbart50(tokenizer: Mapping[str, Any], languages: Mapping[str, int]) -> bool:
    named = str(tokenizer.get("tokenizer_class", ""))
    if named.startswith("MBart50"):
        return True
    # mBART has 25 languages.
    return not named.startswith("MBartTokenizer") and len(languages) > 25


def _name_start(
    imported: Imported, vocabularies: Vocabularies, search: Mapping[str, Any]
) -> str:
    """Return the part of a frame that is the decoder's first input.

    Raises:
        InputError: it is no special token and no language.
    """
    target, name = vocabularies.target, "decoder_start_token_id"
    start = search.get(name)
    if start is None:
        start = imported.settings.get(name)
    if start is not None and type(start) is not int:
        raise InputError(
            f"{name} must be a token id, not {start!r}: correct generation_config.json"
        )
    for special in ("pad", "eos", "bos"):
        if start == getattr(target, f"{special}_id"):
            return f"{{{special}}}"
    if start is None or start in target.languages.values():
        return "{target}"
    raise InputError(
        f"{name}={start} is the token {target.pieces([start])[0]!r}, and a decoder"
        " begins with a special token or a language: correct config.json or"
        " generation_config.json"
    )


def _choose_languages(
    asked: tuple[str | None, str | None],
    vocabularies: Vocabularies,
    search: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
) -> tuple[str, str]:
    """Return the codes of both languages: those asked for, or those of the folder.

    Raises:
        InputError: the model has no such language, or one must be named.
    """
    template, known = vocabularies.template, vocabularies.source.languages
    assert template is not None
    forced = [
        search.get(f"{name}_token_id") for name in ("forced_bos", "decoder_start")
    ]
    of_search = [code for own in forced for code, id_ in known.items() if id_ == own]
    needed = template.has_source, template.has_target
    both = needed == (True, True) and asked == (None, None)
    own = (
        (tokenizer.get("src_lang"), tokenizer.get("source_lang"), "source"),
        (
            *of_search[:1],
            tokenizer.get("tgt_lang"),
            tokenizer.get("target_lang"),
            "target",
        ),
    )
    found = []
    for code, names, must, flag in zip(asked, own, needed, ("from", "to"), strict=True):
        if code is None:
            texts = (name for name in names if isinstance(name, str) and name)
            usable = [name for name in texts if name in known or not must]
            if not usable:
                raise InputError(
                    f"the model has {len(known)} languages: name"
                    f" {'them by --from and --to' if both else f'one by --{flag}'},"
                    f" such as {', '.join(list(known)[:5])}"
                )
            code = usable[0]
        code = name_language(code, vocabularies)
        if must:
            vocabularies.source.tag_id(code)  # an unknown one is refused
        found.append(code)
    return found[0], found[1]


def _data(
    name: str,
    imported: Imported,
    vocabularies: Vocabularies,
    languages: tuple[str, str],
) -> DataConfig:
    template = vocabularies.template
    assert template is not None
    rows = imported.config.source_vocabulary_size
    text = f"{IMPORTED}{name}"
    return DataConfig(
        train=text,
        valid=text,
        test=text,
        source_language=languages[0],
        target_language=languages[1],
        vocabulary_size=vocabularies.target.size,
        # Of one table of ids, whichever models make the pieces.
        shared_vocabulary=rows is None,
        source_vocabulary_size=None if rows is None else vocabularies.source.size,
        language_tags=template.has_target,
        max_length=imported.config.max_length,
    )


def _write(
    directory: Path,
    name: str,
    config: RunConfig,
    vocabularies: Vocabularies,
    params: Any,
) -> None:
    """Write the directory of a run, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    if directory.exists():
        directory.rmdir()  # it is empty
    with new_folder(directory) as new:
        configuration.save(config, new / "config.json")
        vocabularies.save(new / "vocabulary")
        (new / "checkpoints").mkdir()
        record = {"vocabulary": vocabularies.hash, saved.IMPORTED: name}
        params = jax.tree.map(lambda each: each.view(_Mapped), params)
        largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
        checkpoint.write(
            new / "checkpoints" / "0", {"params": params}, record, at_once=largest
        )
    bucket.push(directory)
