"""Raw text becomes token ids: the same in any number of processes, counted, and
drawn anew where asked for.
"""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxformer.data import (
    Cleaning,
    Pair,
    Sampling,
    Tokenizer,
    Vocabularies,
    Vocabulary,
    load,
    tokenize,
    tokenizing,
)
from jaxformer.data.cleaning import Counts
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/train", "en", "de"))[:3000]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def vocabularies(request):
    """Separate, so that a mix-up of the two shows."""
    return Vocabularies(
        Vocabulary.train([pair.source for pair in PAIRS], 500, model=request.param),
        Vocabulary.train([pair.target for pair in PAIRS], 600, model=request.param),
    )


def tokenizer(vocabularies, **options):
    values = {
        "cleaning": Cleaning(),
        "languages": ("en", "de"),
        "source_eos": True,
        "max_length": 60,
        **options,
    }
    return Tokenizer(vocabularies, **values)


def everything(pieces):
    """Put the pieces together: ids of each pair, and the counts."""
    pieces = list(pieces)
    ids = [
        (tuple(piece.pairs.source[i]), tuple(piece.pairs.target[i]))
        for piece in pieces
        for i in range(len(piece.pairs))
    ]
    return ids, sum((piece.counts for piece in pieces), Counts())


def test_processes_change_nothing(vocabularies, monkeypatch):
    """One process or several, small chunks or large: the same pairs in the same
    order.
    """
    alone, counts = everything(tokenize(PAIRS, tokenizer(vocabularies), workers=1))
    monkeypatch.setattr(tokenizing, "CHUNK", 64)
    monkeypatch.setattr(tokenizing, "_FEWEST_CHUNKS", 2)
    monkeypatch.setattr(tokenizing.chunks, "__defaults__", (64,))
    several, same_counts = everything(
        tokenize(PAIRS, tokenizer(vocabularies), workers=2)
    )
    assert alone == several
    assert counts == same_counts
    assert counts.read == 3000
    assert len(alone) == counts.kept


def test_every_pair_is_kept_or_counted(vocabularies):
    """Both sides go together, and nothing is cut."""
    pairs = [
        Pair("a table", "eine Tabelle"),
        Pair("", "leer"),
        Pair("empty", " \u200b "),
        Pair("long " * 50, "kurz"),
        Pair("short", "lang " * 50),
        Pair("", "lang " * 50),
        Pair("a page", "eine Seite"),
    ]
    ids, counts = everything(tokenize(pairs, tokenizer(vocabularies, max_length=40)))
    assert counts == Counts(read=7, changed={}, dropped={"empty": 3, "max_length": 2})
    source, target = vocabularies.source, vocabularies.target
    assert [(source.decode(s), target.decode(t)) for s, t in ids] == [
        tuple(pairs[0]),
        tuple(pairs[-1]),
    ]
    assert all(s[-1] == source.eos_id and t[-1] == target.eos_id for s, t in ids)


def test_what_is_empty_to_the_vocabulary_alone_is_empty(vocabularies):
    """A text that has letters for cleaning and no token for SentencePiece counts as
    empty.
    """
    blank = next(
        text
        for text in ("\ue000", "\u00ad", "\u115f", "\x7f")
        if not vocabularies.source.encode(text)
    )
    _, counts = everything(tokenize([Pair(blank, "x")], tokenizer(vocabularies)))
    assert counts.dropped["empty"] == 1


@pytest.mark.parametrize(
    "pair",
    [Pair("Insert a new table.", "Ja"), Pair("No", "Eine neue Tabelle einfügen.")],
)
def test_the_limit_counts_eos_and_nothing_is_cut(vocabularies, pair):
    """A pair of exactly the limit stays whole; one token less of a limit drops it."""
    length = (
        max(
            len(vocabularies.source.encode(pair.source)),
            len(vocabularies.target.encode(pair.target)),
        )
        + 1
    )
    ((source, target),), _ = everything(
        tokenize([pair], tokenizer(vocabularies, max_length=length))
    )
    assert vocabularies.target.decode(target) == pair.target
    assert max(len(source), len(target)) == length
    ids, counts = everything(
        tokenize([pair], tokenizer(vocabularies, max_length=length - 1))
    )
    assert (ids, counts.dropped["max_length"]) == ([], 1)


def test_lengths_count_those_too_long(vocabularies):
    """The histogram is of all that are not empty."""
    pairs = [Pair("a table", "x"), Pair("long " * 50, "x"), Pair("", "x")]
    (piece,) = tokenize(pairs, tokenizer(vocabularies, max_length=40))
    source, target = piece.lengths
    assert source.sum() == target.sum() == 2
    assert len(source) - 1 == len(vocabularies.source.encode(pairs[1].source)) + 1 > 40


class TestSampling:
    def test_an_epoch_has_its_own_segmentation_of_the_same_text(self, vocabularies):
        """Another each epoch, the same again when asked again, and always of the
        same sentences.
        """
        pairs = PAIRS[:300]
        best, _ = everything(tokenize(pairs, tokenizer(vocabularies)))
        drawn = {
            epoch: everything(
                tokenize(
                    pairs, tokenizer(vocabularies, sampling=Sampling(0.3, 5, epoch))
                )
            )[0]
            for epoch in (0, 1)
        }
        again, _ = everything(
            tokenize(pairs, tokenizer(vocabularies, sampling=Sampling(0.3, 5, 1)))
        )
        assert drawn[1] == again
        assert drawn[0] != drawn[1]
        other_seed, _ = everything(
            tokenize(pairs, tokenizer(vocabularies, sampling=Sampling(0.3, 6, 1)))
        )
        assert other_seed != again
        for (source, target), (drawn_source, drawn_target) in zip(
            best, drawn[0], strict=True
        ):
            assert vocabularies.source.decode(source) == vocabularies.source.decode(
                drawn_source
            )
            assert vocabularies.target.decode(target) == vocabularies.target.decode(
                drawn_target
            )
            assert len(drawn_source) <= 60
            assert len(drawn_target) <= 60
        differing = sum(one != other for one, other in zip(best, drawn[0], strict=True))
        assert differing > 0.8 * len(best)

    def test_what_is_kept_does_not_depend_on_the_drawing(self, vocabularies):
        """A drawing that is too long gives way to the best segmentation, so that no
        pair is lost.
        """
        pairs = PAIRS[:300]
        limit = int(
            np.median(
                [
                    len(s)
                    for (s, _), _ in zip(
                        everything(
                            # fmt: skip
                            tokenize(pairs, tokenizer(vocabularies))
                        )[0],
                        itertools.count(),
                        strict=False,
                    )
                ]
            )
        )
        best, counts = everything(
            tokenize(pairs, tokenizer(vocabularies, max_length=limit))
        )
        sampling = Sampling(0.1, 0, 0)
        drawn, same_counts = everything(
            tokenize(
                pairs, tokenizer(vocabularies, max_length=limit, sampling=sampling)
            )
        )
        assert counts == same_counts
        assert max(len(side) for pair in drawn for side in pair) <= limit
        decoded = [
            [vocabularies.target.decode(t) for _, t in ids] for ids in (best, drawn)
        ]
        assert decoded[0] == decoded[1]

    def test_processes_draw_alike(self, vocabularies, monkeypatch):
        """One process and two draw the same tokens."""
        monkeypatch.setattr(tokenizing, "_FEWEST_CHUNKS", 2)
        monkeypatch.setattr(tokenizing.chunks, "__defaults__", (100,))
        runs = [
            everything(
                tokenize(
                    PAIRS[:500],
                    tokenizer(vocabularies, sampling=Sampling(0.2, 1, 3)),
                    workers=workers,
                )
            )
            for workers in (1, 2)
        ]
        assert runs[0] == runs[1]


def test_text_is_read_a_few_chunks_ahead(vocabularies):
    """A corpus of any size streams: what is read is not held."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield Pair("a table", "eine Tabelle")

    pieces = tokenize(endless(), tokenizer(vocabularies), workers=1)
    for number in range(1, 4):
        next(pieces)
        assert read <= (number + 1) * tokenizing.CHUNK


def test_an_error_in_a_process_is_the_error(vocabularies, monkeypatch):
    """What is wrong with the text says so, from whichever process."""
    monkeypatch.setattr(tokenizing, "_FEWEST_CHUNKS", 2)
    monkeypatch.setattr(tokenizing.chunks, "__defaults__", (10,))
    wrong = tokenizer(vocabularies, tagged=True)
    with pytest.raises(InputError, match="no tag <2de>"):
        list(tokenize(PAIRS[:100], wrong, workers=2))


PARENT = """
import itertools, sys
from jaxformer.data import Cleaning, Pair, Tokenizer, Vocabularies, Vocabulary, tokenize
if __name__ == "__main__":
    vocabulary = Vocabulary.train(["a b c d e f g h"] * 9, 20)
    tokenizer = Tokenizer(Vocabularies(vocabulary, vocabulary), Cleaning(), ("en", "de"), True, 60)
    pieces = tokenize(itertools.repeat(Pair("a b", "c d")), tokenizer, workers=2)
    next(pieces)
    import multiprocessing
    print(*[process.pid for process in multiprocessing.active_children()], flush=True)
    sys.stdin.read()
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    """SIGKILL leaves the parent no time to end them: they notice themselves."""
    (tmp_path / "parent.py").write_text(PARENT)
    command = [sys.executable, str(tmp_path / "parent.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.kill()
    deadline = time.monotonic() + 30
    while (
        left := [pid for pid in workers if is_running(pid)]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def is_running(pid):
    """Look for a process that is no zombie."""
    try:
        os.kill(pid, 0)
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        )
    except (ProcessLookupError, FileNotFoundError):
        return False
