"""Text becomes token ids: the same in any number of processes, counted, and sampled
where asked for.
"""

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
    Vocabularies,
    Vocabulary,
    encode,
    encoding,
    load,
)
from jaxformer.data.cleaning import Counts
from jaxformer.data.encoding import (
    SubwordSampling,
    Tokenizer,
    encode_evaluation,
    tokenize,
)
from jaxformer.errors import InputError

PAIRS = list(load("bundled:en-de/train", "en", "de"))[:3000]


def train(model):
    """Train separate vocabularies, so that a mix-up of the two shows."""
    return Vocabularies(
        Vocabulary.train([pair.source for pair in PAIRS], 500, model=model),
        Vocabulary.train([pair.target for pair in PAIRS], 600, model=model),
    )


@pytest.fixture(scope="module")
def vocabularies():
    return train("bpe")


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def both_models(request, vocabularies):
    return vocabularies if request.param == "bpe" else train("unigram")


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
    """One process or several: the same pairs in the same order, also sampled ones.

    An error in a worker process is raised here.
    """
    monkeypatch.setattr(encoding, "CHUNK", 100)
    monkeypatch.setattr(encoding, "_FEWEST_CHUNKS", 2)
    sampled = tokenizer(vocabularies, sampling=SubwordSampling(0.2, 1, 3))
    alone, counts = everything(tokenize(PAIRS[:1000], sampled, workers=1))
    several, same_counts = everything(tokenize(PAIRS[:1000], sampled, workers=2))
    assert alone == several
    assert counts == same_counts
    assert counts.read == 1000
    assert len(alone) == counts.kept
    with pytest.raises(InputError, match="no tag <2de>"):
        list(tokenize(PAIRS[:300], tokenizer(vocabularies, tagged=True), workers=2))


def test_chunks_change_nothing(vocabularies, monkeypatch):
    whole = everything(tokenize(PAIRS, tokenizer(vocabularies), workers=1))
    monkeypatch.setattr(encoding, "CHUNK", 64)
    assert everything(tokenize(PAIRS, tokenizer(vocabularies), workers=1)) == whole


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
    def test_an_epoch_has_its_own_segmentation_of_the_same_text(self, both_models):
        """Another each epoch, the same again when asked again, and always of the
        same sentences.
        """
        pairs = PAIRS[:300]
        best, _ = everything(tokenize(pairs, tokenizer(both_models)))
        drawn = {
            epoch: everything(
                tokenize(
                    pairs,
                    tokenizer(both_models, sampling=SubwordSampling(0.3, 5, epoch)),
                )
            )[0]
            for epoch in (0, 1)
        }
        again, _ = everything(
            tokenize(pairs, tokenizer(both_models, sampling=SubwordSampling(0.3, 5, 1)))
        )
        assert drawn[1] == again
        assert drawn[0] != drawn[1]
        other_seed, _ = everything(
            tokenize(pairs, tokenizer(both_models, sampling=SubwordSampling(0.3, 6, 1)))
        )
        assert other_seed != again
        for (source, target), (drawn_source, drawn_target) in zip(
            best, drawn[0], strict=True
        ):
            assert both_models.source.decode(source) == both_models.source.decode(
                drawn_source
            )
            assert both_models.target.decode(target) == both_models.target.decode(
                drawn_target
            )
            assert len(drawn_source) <= 60
            assert len(drawn_target) <= 60
        differing = sum(one != other for one, other in zip(best, drawn[0], strict=True))
        assert differing > 0.8 * len(best)

    def test_what_is_kept_does_not_depend_on_the_drawing(self, both_models):
        """A drawn segmentation that is too long is replaced by the best one."""
        pairs = PAIRS[:300]
        found, _ = everything(tokenize(pairs, tokenizer(both_models)))
        limit = int(np.median([len(source) for source, _ in found]))
        best, counts = everything(
            tokenize(pairs, tokenizer(both_models, max_length=limit))
        )
        sampling = SubwordSampling(0.1, 0, 0)
        drawn, same_counts = everything(
            tokenize(pairs, tokenizer(both_models, max_length=limit, sampling=sampling))
        )
        assert counts == same_counts
        assert max(len(side) for pair in drawn for side in pair) <= limit
        decoded = [
            [both_models.target.decode(t) for _, t in ids] for ids in (best, drawn)
        ]
        assert decoded[0] == decoded[1]


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
        assert read <= (number + 1) * encoding.CHUNK


@pytest.mark.parametrize("source_eos", [True, False])
def test_every_target_ends_with_one_eos(vocabularies, source_eos):
    """So does the source if asked; also where the sentence spells one."""
    pairs = [*PAIRS[:300], Pair("a </s>", "</s> b</s>")]
    encoded = encode(pairs, vocabularies, source_eos=source_eos)
    source, target = vocabularies.source, vocabularies.target
    for i, pair in enumerate(pairs):
        assert (
            list(encoded.source[i])
            == source.encode(pair.source) + [source.eos_id] * source_eos
        )
        assert list(encoded.target[i]) == [*target.encode(pair.target), target.eos_id]
        assert list(encoded.source[i]).count(source.eos_id) == int(source_eos)
        assert list(encoded.target[i]).count(target.eos_id) == 1


def test_evaluation_drops_nothing(vocabularies):
    """A loss counts every pair, empty and long ones too; only what the model cannot
    take is refused.
    """
    pairs = [Pair("", "leer"), Pair("empty", ""), Pair("kurz", "lang " * 100)]
    encoded = encode_evaluation(pairs, vocabularies, source_eos=True, max_length=1000)
    assert len(encoded) == len(pairs)
    assert list(encoded.target[1]) == [vocabularies.target.eos_id]
    with pytest.raises(
        InputError,
        match=r"the target of pair 3 has \d+ tokens and the model takes 64 \(2 such\)",
    ):
        encode_evaluation(
            [*pairs, pairs[2]], vocabularies, source_eos=True, max_length=64
        )


def test_a_tag_begins_the_source_and_cannot_be_spelled():
    """A tag that the vocabulary lacks is named."""
    texts = [text for pair in PAIRS[:500] for text in pair]
    vocabulary = Vocabulary.train(texts, 400, tags=("de", "fr"))
    both = Vocabularies(vocabulary, vocabulary)
    plain = encode([Pair("<2de> a table", "x")], both, source_eos=True)
    tagged = encode([Pair("<2de> a table", "x")], both, source_eos=True, tag="fr")
    assert list(tagged.source[0]) == [vocabulary.tag_id("fr"), *plain.source[0]]
    assert vocabulary.tag_id("de") not in plain.source[0]
    assert vocabulary.decode(tagged.source[0]) == vocabulary.decode(plain.source[0])
    with pytest.raises(
        InputError, match=r"no tag <2es>: train with data\.language_tags=True"
    ):
        encode([Pair("a", "b")], both, source_eos=True, tag="es")


PARENT = """
import itertools, sys
from jaxformer.data import Cleaning, Pair, Vocabularies, Vocabulary
from jaxformer.data.encoding import Tokenizer, tokenize
if __name__ == "__main__":
    vocabulary = Vocabulary.train(["a b c d e f g h"] * 9, 20)
    both = Vocabularies(vocabulary, vocabulary)
    tokenizer = Tokenizer(both, Cleaning(), ("en", "de"), True, 60)
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
