"""Other ways from text to padded batches, for `data.py` to compare with: a plain
loop, and Hugging Face `datasets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from jaxformer.data import DataConfig, Vocabularies, Vocabulary, load
from jaxformer.errors import require

Batch: TypeAlias = Mapping[str, Sequence[Sequence[int]]]

# Sentences of the bundled corpus are about this long when they are padded to the
# longest of some hundred.
_LIKELY_LENGTH = 32


def plain_loop(config: DataConfig, vocabularies: Vocabularies) -> int:
    """Read, tokenise a sentence at a time, fill buckets by length, pad: what a
    person writes first.
    """
    lengths = [16, 32, 48, 64, 96, 128]
    buckets: dict[int, list[tuple[list[int], list[int]]]] = {
        length: [] for length in lengths
    }
    source, target = vocabularies.source, vocabularies.target
    pairs = 0

    def pad(rows: list[list[int]], length: int) -> np.ndarray:
        return np.array(
            [row + [source.pad_id] * (length - len(row)) for row in rows], np.int32
        )

    for pair in load(config.train, "en", "de"):
        ids = (
            [*source.encode(pair.source), source.eos_id],
            [*target.encode(pair.target), target.eos_id],
        )
        length = next(
            (length for length in lengths if length >= max(map(len, ids))), None
        )
        if length is None:
            continue
        pairs += 1
        buckets[length].append(ids)
        if len(buckets[length]) * length >= config.tokens_per_batch:
            for side in range(2):
                pad([both[side] for both in buckets[length]], length)
            buckets[length] = []
    return pairs


def hugging_face(
    config: DataConfig, vocabularies: Vocabularies, folder: Path
) -> Mapping[str, Callable[[], int]]:
    """Return epochs over a data set that was tokenised and saved as Arrow before,
    shuffled and padded batch by batch.

    One pads as their users do, with the collator for translation; one with the fewest
    lines of NumPy. Of the ways to join data set and collator the quickest was taken:
    iterating in batches and asking for NumPy. PyTorch's DataLoader is as quick without
    workers and slower with them, and so is asking for its tensors.

    Args:
        config: names the text.
        vocabularies: tokenise it.
        folder: where the data set is saved.

    Raises:
        InputError: a package is missing.
    """
    datasets = require("datasets", "benchmark")
    transformers = require("transformers", "benchmark")
    datasets.disable_progress_bars()
    source = vocabularies.source
    texts = zip(*load(config.train, "en", "de"), strict=True)
    sides = zip(("input_ids", "labels"), (source, vocabularies.target), strict=True)
    columns = {
        name: [[*ids, side.eos_id] for ids in side.encode_batch(list(lines))]
        for (name, side), lines in zip(sides, texts, strict=True)
    }
    datasets.Dataset.from_dict(columns).save_to_disk(folder)
    data = datasets.load_from_disk(folder)
    collator = transformers.DataCollatorForSeq2Seq(
        _fast_tokenizer(source), return_tensors="np"
    )

    def epoch(pad: Callable[[Batch], object]) -> int:
        count, size = 0, config.tokens_per_batch // _LIKELY_LENGTH
        for batch in data.shuffle(seed=0).iter(batch_size=size):
            pad(batch)
            count += len(batch["labels"])
        return count

    def collate(batch: Batch) -> None:
        rows = zip(batch["input_ids"], batch["labels"], strict=True)
        collator([{"input_ids": ids, "labels": labels} for ids, labels in rows])

    def pad(batch: Batch) -> None:
        for rows in batch.values():
            width = max(map(len, rows))
            padded = [[*ids, *[source.pad_id] * (width - len(ids))] for ids in rows]
            np.array(padded, np.int32)

    return {
        "Hugging Face datasets with its collator": lambda: epoch(collate),
        "Hugging Face datasets, a loop of NumPy": lambda: epoch(pad),
    }


def _fast_tokenizer(vocabulary: Vocabulary):
    """Return a tokenizer of theirs with our pieces, which the collator asks for the
    padding.
    """
    tokenizers, transformers = (
        require("tokenizers", "benchmark"),
        require("transformers", "benchmark"),
    )
    pieces = vocabulary.pieces(range(vocabulary.size))
    words = tokenizers.models.WordLevel(
        {piece: id_ for id_, piece in enumerate(pieces)},
        unk_token=pieces[vocabulary.unk_id],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        pad_token=pieces[vocabulary.pad_id],
    )
