"""Text becomes token ids: the same in any number of processes, counted, and sampled
where asked for.
"""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxformer.data import encoding
from jaxformer.data.cleaning import Counts
from jaxformer.data.config import DataConfig
from jaxformer.data.encoding import (
    SubwordSampling,
    Tokenizer,
    encode,
    tokenize,
)
from jaxformer.data.records import Pair
from jaxformer.data.sources import load
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/train", "en", "de"))[:1000]


@functools.cache
def train(model="bpe"):
    """Train separate vocabularies, so that a mix-up of the two shows."""
    sides = zip(*PAIRS, strict=True)
    return Vocabularies(
        *(
            Vocabulary.train(side, size, model=model)
            for side, size in zip(sides, (500, 600), strict=True)
        )
    )


def tokenizer(model="bpe", *, sampling=None, **options):
    config = DataConfig(**{"max_length": 60, **options})
    return Tokenizer(train(model), config, ("en", "de"), sampling=sampling)


def everything(pairs, tokenizer, workers=1):
    """Return the ids of each pair, and the counts."""
    pieces = list(tokenize(pairs, tokenizer, workers=workers))
    ids = [
        (tuple(piece.pairs.source[i]), tuple(piece.pairs.target[i]))
        for piece in pieces
        for i in range(len(piece.pairs))
    ]
    return ids, sum((piece.counts for piece in pieces), Counts())


def test_processes_and_chunks_change_nothing(monkeypatch):
    """An error in a worker process is raised here."""
    whole = everything(PAIRS, tokenizer())
    monkeypatch.setattr(encoding, "CHUNK", 100)
    monkeypatch.setattr(encoding, "_FEWEST_CHUNKS", 2)
    assert everything(PAIRS, tokenizer()) == whole
    sampled = tokenizer(sampling=SubwordSampling(0.2, 1, 3, (60, 60)))
    ids, counts = everything(PAIRS, sampled)
    assert everything(PAIRS, sampled, workers=2) == (ids, counts)
    assert counts.read == 1000
    assert len(ids) == counts.kept
    with pytest.raises(InputError, match="no tag <2de>"):
        everything(PAIRS[:300], tokenizer(language_tags=True), workers=2)


def test_every_pair_is_kept_or_counted():
    """Both sides go together. The histogram of lengths counts those too long; a text
    that only SentencePiece finds empty is empty.
    """
    source, target = train().source, train().target
    blanks = "\ue000", "\u00ad", "\u115f", "\x7f"
    blank = next(text for text in blanks if not source.encode(text))
    long = "long " * 50
    texts = [("a table", "eine Tabelle"), ("", "leer"), ("empty", " \u200b ")]
    texts += [(long, "kurz"), ("short", long), ("", long), (blank, "x")]
    texts += [("a page", "eine Seite")]
    pairs = [Pair(*text) for text in texts]
    short = tokenizer(max_length=40)
    ids, counts = everything(pairs, short)
    assert counts == Counts(8, {}, {"empty": 4, "max_length": 2})
    found = [(source.decode(s), target.decode(t)) for s, t in ids]
    assert found == [texts[0], texts[-1]]
    (piece,) = tokenize(pairs, short)
    assert [side.sum() for side in piece.lengths] == [4, 4]
    assert len(piece.lengths[0]) - 1 == len(source.encode(long)) + 1 > 40


@pytest.mark.parametrize(
    "pair",
    [Pair("Insert a new table.", "Ja"), Pair("No", "Eine neue Tabelle einfügen.")],
)
def test_the_limit_counts_eos_and_nothing_is_cut(pair):
    """A pair of exactly the limit stays whole; one token less of a limit drops it."""
    sides = train().source, train().target
    longest = max(len(v.encode(text)) for v, text in zip(sides, pair, strict=True))
    (ids,), _ = everything([pair], tokenizer(max_length=longest + 1))
    assert sides[1].decode(ids[1]) == pair.target
    assert max(map(len, ids)) == longest + 1
    ids, counts = everything([pair], tokenizer(max_length=longest))
    assert (ids, counts.dropped["max_length"]) == ([], 1)


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_each_epoch_has_its_own_segmentation(model):
    """The text stays. A drawn segmentation that is too long is replaced by the best,
    so the same pairs are kept.
    """
    pairs, sides = PAIRS[:200], (train(model).source, train(model).target)

    def draw(seed, epoch, limit=60):
        sampling = SubwordSampling(0.3, seed, epoch, (limit, limit))
        return everything(pairs, tokenizer(model, sampling=sampling, max_length=limit))

    def decoded(ids):
        return [tuple(map(Vocabulary.decode, sides, pair)) for pair in ids]

    best, counts = everything(pairs, tokenizer(model))
    first, second = draw(5, 0), draw(5, 1)
    assert draw(5, 1) == second
    assert len({str(ids) for ids, _ in (first, second, draw(6, 1))}) == 3
    assert first[1] == second[1] == counts
    assert decoded(first[0]) == decoded(second[0]) == decoded(best)
    assert sum(
        one != other for one, other in zip(best, first[0], strict=True)
    ) > 0.8 * len(best)
    limit = int(np.median([len(source) for source, _ in best]))
    best, counts = everything(pairs, tokenizer(model, max_length=limit))
    ids, same_counts = draw(0, 0, limit)
    assert counts == same_counts
    assert max(len(side) for pair in ids for side in pair) <= limit
    assert decoded(ids) == decoded(best)


def test_text_is_read_a_few_chunks_ahead():
    """A corpus of any size streams."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield Pair("a table", "eine Tabelle")

    pieces = tokenize(endless(), tokenizer(), workers=1)
    for number in range(1, 4):
        next(pieces)
        assert read <= (number + 1) * encoding.CHUNK


def test_a_tag_begins_the_source_and_cannot_be_spelled():
    """A tag that the vocabulary lacks is named."""
    texts = [text for pair in PAIRS[:500] for text in pair]
    vocabulary = Vocabulary.train(texts, 400, tags=("de", "fr"))
    both = Vocabularies(vocabulary, vocabulary)
    plain, tagged = (
        encode([Pair("<2de> a table", "x")], both, source_eos=True, tag=tag).source[0]
        for tag in (None, "fr")
    )
    assert list(tagged) == [vocabulary.tag_id("fr"), *plain]
    assert vocabulary.tag_id("de") not in plain
    assert vocabulary.decode(tagged) == vocabulary.decode(plain)
    with pytest.raises(
        InputError, match=r"no tag <2es>: train with data\.language_tags"
    ):
        encode([Pair("a", "b")], both, source_eos=True, tag="es")


PARENT = """
import itertools, multiprocessing, sys
from jaxformer.data.config import DataConfig
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.data.encoding import Tokenizer, tokenize
if __name__ == "__main__":
    vocabulary = Vocabulary.train(["a b c d e f g h"] * 9, 20)
    both = Vocabularies(vocabulary, vocabulary)
    tokenizer = Tokenizer(both, DataConfig(), ("en", "de"))
    pieces = tokenize(itertools.repeat(Pair("a b", "c d")), tokenizer, workers=2)
    next(pieces)
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    sys.stdin.read()
"""


def is_running(pid):
    """Look for a process that is no zombie."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """SIGKILL leaves the parent no time to end them."""
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
