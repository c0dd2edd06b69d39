"""Data sets of TensorFlow Datasets and of Hugging Face ``datasets``.

Each reader yields pairs lazily and imports its package when called. Only preparing a
data set of TFDS needs TensorFlow, which is kept off the GPUs
(:func:`hide_gpus_from_tensorflow`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxformer.data.records import Pair, has_languages, pair_of
from jaxformer.errors import InputError, did_you_mean, first_line, require

_HF_BATCH = 1000


def hide_gpus_from_tensorflow() -> None:
    """Keep TensorFlow, if it is imported, from taking the memory of JAX's GPUs."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return
    try:
        tensorflow.config.set_visible_devices([], "GPU")
    except RuntimeError:
        warnings.warn(
            "TensorFlow already uses the GPUs: JAX may run out of memory", stacklevel=2
        )


def split_tfds(rest: str) -> tuple[str, str]:
    """Split ``wmt14_translate/de-en/train`` into the name of the builder and the split.

    Raises:
        InputError: there is no split.
    """
    name, _, split = rest.rpartition("/")
    if not name or not split:
        raise InputError(
            f"'tfds:{rest}' must end with a split, as in"
            " tfds:wmt14_translate/de-en/train"
        )
    return name, split


def read_tfds(rest: str, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yield the pairs of a TFDS data set, without TensorFlow once it is prepared as
    ArrayRecord.

    The folder is ``TFDS_DATA_DIR``, by default ``~/tensorflow_datasets``. Of data sets
    with many languages (``ted_multi_translate``) the examples with both are read.

    Args:
        rest: builder, perhaps its config and version, and split:
            ``wmt14_translate/de-en/train``, ``.../train[:10%]``.
        languages: the features to translate from and to.

    Raises:
        InputError: no such data set, config, split or language; it cannot be prepared;
            or a file is missing or cut off.
    """
    for record, place in records_tfds(rest):
        several = record.get("translations") if isinstance(record, Mapping) else None
        if isinstance(several, Mapping):
            codes = map(_plain, several["language"])
            record = dict(zip(codes, several["translation"], strict=True))
            if not has_languages(record, languages):
                continue
        yield pair_of(record, languages, place)


def records_tfds(rest: str) -> Iterator[tuple[Any, str]]:
    """Yield the records of a TFDS data set, each with what an error calls it.

    Raises:
        InputError: as :func:`read_tfds`.
    """
    source = open_tfds(rest)
    for index in range(len(source)):
        place = f"tfds:{rest}, record {index}"
        fault, record = "", None
        try:
            record = source[index]
        except RuntimeError as error:
            fault = first_line(error)
        # ArrayRecord reads None, without an error, after the end of a file that was
        # cut off.
        values = record.values() if isinstance(record, Mapping) else ()
        if fault or any(value is None for value in values):
            raise InputError(
                f"{place}: {fault or 'the file is incomplete'}; remove its folder, and"
                " it is prepared again"
            )
        yield record, place


def open_tfds(rest: str) -> Any:
    """Open a TFDS data set as a sequence of records; it is prepared if it is not.

    Raises:
        InputError: as :func:`read_tfds`.
    """
    name, split = split_tfds(rest)
    builder = _tfds_builder(name)
    if split.split("[")[0] in (getattr(builder, "builder_configs", None) or {}):
        raise InputError(f"'tfds:{rest}' must end with a split: try tfds:{rest}/train")
    builder = _prepare_tfds(builder, name)
    try:
        with quiet("absl"):
            source = builder.as_data_source(split=split)
    except NotImplementedError:
        raise InputError(
            f"{builder.data_dir} is prepared as {builder.info.file_format.value}, which"
            " only TensorFlow reads: set TFDS_DATA_DIR to another folder, where it is"
            " prepared as ArrayRecord"
        ) from None
    except ValueError as error:
        near = did_you_mean(split, list(builder.info.splits))
        raise InputError(
            f"no data set tfds:{rest}: {first_line(error)}{near}"
        ) from None
    hide_gpus_from_tensorflow()
    return source


def _prepare_tfds(builder: Any, name: str) -> Any:
    """Return a builder whose data set is prepared: downloaded and written as
    ArrayRecord, unless it is there.

    TFDS unpacks archives with TensorFlow, so most data sets need it once.

    Raises:
        InputError: it needs TensorFlow, which is not installed; or an archive cannot be
            fetched or unpacked (with its address or path).
    """
    with quiet("absl"):
        if builder.is_prepared():
            return builder
    wmt = require("tensorflow_datasets.translate.wmt", "data")
    # before gigabytes are fetched
    if isinstance(builder, wmt.WmtTranslate) and find_spec("tensorflow") is None:
        year, config = builder.name.partition("_")[0], builder.builder_config.name
        raise InputError(
            f"tfds:{name} is not prepared in {builder.data_dir}, which needs TensorFlow"
            " once: pip install tensorflow; or read"
            f" hf:wmt/{year}#{config}/train, which needs none"
        )
    download = require("tensorflow_datasets.core.download", "data")
    failures = (
        ModuleNotFoundError,
        OSError,
        download.DownloadError,
        download.download_manager.NonMatchingChecksumError,
        download.extractor.ExtractError,
    )
    builder = _tfds_builder(name, file_format="array_record")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # which it tells its progress
            builder.download_and_prepare()
    except failures as error:
        reason, cause = first_line(error), error.__cause__
        if cause and first_line(cause) not in reason:
            reason += f": {first_line(cause)}"
        raise InputError(
            f"cannot prepare tfds:{name} ({reason}): check the network and what is"
            " installed (most need `pip install tensorflow` once), remove what is"
            f" damaged from {builder.data_dir_root / 'downloads'} and try again; what"
            " came whole is not fetched again"
        ) from None
    finally:
        hide_gpus_from_tensorflow()
    return builder


def _tfds_builder(name: str, **options: str) -> Any:
    """Find a builder by name: of the package, or prepared in the folder."""
    tfds = require("tensorflow_datasets", "data")
    require("tensorflow_datasets.translate", "data")  # it registers the names of WMT
    hide_gpus_from_tensorflow()
    try:
        with quiet("absl"):
            # TFDS itself reads the variable only when it is imported.
            return tfds.builder(
                name, data_dir=os.environ.get("TFDS_DATA_DIR"), **options
            )
    except tfds.core.DatasetNotFoundError:
        known = tfds.list_builders(with_community_datasets=False)
        folder = os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
        near = did_you_mean(name.split("/")[0], known)
        raise InputError(
            f"no data set tfds:{name}, neither known to TFDS nor prepared in"
            f" {folder}{near}"
        ) from None
    except ValueError as error:
        raise _no_config(tfds, name, error) from None


def _no_config(tfds: Any, name: str, error: ValueError) -> InputError:
    """Explain why TFDS has no builder of a name."""
    data_set, _, config = name.partition("/")
    try:
        configs = list(tfds.builder_cls(data_set).builder_configs)
    except ValueError:
        configs = []
    if not configs or config.split(":")[0] in configs:
        return InputError(f"no data set tfds:{name}: {first_line(error)}")
    near, turned = did_you_mean(config, configs), "-".join(config.split("-")[::-1])
    if turned in configs:
        near = f"; did you mean {turned}? The languages choose the direction"
    return InputError(
        f"tfds:{data_set} has no config {config!r}: it has {', '.join(configs)}{near}"
    )


def _plain(text: str | bytes) -> str:
    return text.decode("utf-8") if isinstance(text, bytes) else text


def split_hf(rest: str) -> tuple[str, str | None, str]:
    """Split ``wmt/wmt14#de-en/train`` into name, config and split; the config may be
    absent.

    Raises:
        InputError: there is no split.
    """
    name, _, split = rest.rpartition("/")
    name, _, config = name.partition("#")
    if not name or not split:
        raise InputError(
            f"'hf:{rest}' must end with a split: hf:NAME/SPLIT, hf:NAME#CONFIG/SPLIT or"
            " hf:FOLDER/SPLIT, as in hf:wmt/wmt14#de-en/train"
        )
    return name, config or None, split


def read_hf(rest: str, languages: tuple[str, str]) -> Iterator[Pair]:
    """Yield the pairs of a Hugging Face data set, from the hub or a local folder.

    A folder has what ``save_to_disk`` wrote, or files that ``datasets`` reads (JSONL,
    parquet, CSV) named by their split. The library copies the records to its cache.

    Args:
        rest: ``NAME/SPLIT``, ``NAME#CONFIG/SPLIT`` or ``FOLDER/SPLIT``.
        languages: the columns, or the fields of the column ``translation``, to
            translate from and to.

    Raises:
        InputError: no such data set, config, split or language, or it cannot be
            fetched.
    """
    for record, place in records_hf(rest):
        yield pair_of(record, languages, place)


def records_hf(rest: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of a Hugging Face data set, each with what an error calls it.

    Raises:
        InputError: as :func:`read_hf`.
    """
    index = 0
    for batch in _open_hf(rest).iter(_HF_BATCH):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True)), f"hf:{rest}, record {index}"
            index += 1


def _open_hf(rest: str) -> Any:
    """Open one split."""
    name, config, split = split_hf(rest)
    datasets = require("datasets", "data")
    folder = Path(name).expanduser()
    if name.startswith((".", "/", "~")) and not folder.exists():
        # not the name of a data set of the hub
        raise InputError(f"cannot read hf:{rest}: no folder {name}")
    where = str(folder) if folder.exists() else name
    files = (folder / file for file in ("dataset_dict.json", "state.json"))
    saved = any(file.is_file() for file in files)
    try:
        with quiet("datasets"), quiet("huggingface_hub"):
            read = datasets.load_from_disk
            found = read(where) if saved else datasets.load_dataset(where, config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = first_line(error.__cause__ or error)
        cure = f"mend the files in {folder}"
        if not folder.exists():
            reason = f"there is no folder {name} here, and the hub says: {reason}"
            cure = "check the name and the network, or give a local folder"
        raise InputError(f"cannot read hf:{rest}: {reason}; {cure}") from None
    hide_gpus_from_tensorflow()
    splits = found if isinstance(found, Mapping) else {str(found.split or split): found}
    if split not in splits:
        raise InputError(
            f"hf:{rest}: no split {split!r}: there are"
            f" {', '.join(splits)}{did_you_mean(split, list(splits))}"
        )
    return splits[split]


@contextlib.contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence a package's log while its errors are turned into ours."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
