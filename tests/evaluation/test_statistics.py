"""Scores of parts put together are the scores of the whole: over hosts, with filler,
whatever the sizes.
"""

import random
import re

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation.metrics import BLEU, CHRF, CHRF_PLUS_PLUS, TER, score
from jaxformer.evaluation.statistics import join_shards, measure_shard, score_rows
from jaxformer.evaluation.tokenized_bleu import TokenizedBleu

METRICS = [BLEU, CHRF, CHRF_PLUS_PLUS, TER, TokenizedBleu(None, compounds=True)]
WORDS = [f"w{number}" for number in range(12)] + ["a-b-c", ".", "ü"]


def corpus(seed, size=37):
    rng = random.Random(seed)
    references = [
        " ".join(rng.choices(WORDS, k=rng.randint(4, 15))) for _ in range(size)
    ]
    keep = [[w for w in line.split() if rng.random() < 0.9] for line in references]
    return [" ".join(words) for words in keep], references


def deal(rng, sentences, hosts):
    """Deal sentences to hosts in unequal shares, some of them empty, each with
    filler at its end.
    """
    owners = [rng.choice(hosts) for _ in range(sentences)]
    shares = [
        [number for number in range(sentences) if owners[number] == host]
        for host in range(max(hosts) + 1)
    ]
    for share in shares:
        rng.shuffle(share)
    return [[*share, *[None] * rng.randint(0, 3)] for share in shares]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.key)
@pytest.mark.parametrize(
    "hosts", [[0], [0, 1], [0, 0, 0, 2], [0, 1, 2, 3, 4, 5, 5, 5, 7]]
)
def test_hosts_score_as_one(metric, hosts):
    """Any division of the sentences over hosts, with filler beside them, gives one
    host's score to the last bit.
    """
    hypotheses, references = corpus(len(hosts))
    rng = random.Random(7)
    shards = []
    for share in deal(rng, len(references), hosts):
        lines = [
            ("filler", "other") if n is None else (hypotheses[n], references[n])
            for n in share
        ]
        shards.append(
            measure_shard(metric, share, [h for h, _ in lines], [r for _, r in lines])
        )
    rng.shuffle(shards)
    joined = join_shards(shards, len(references))
    whole = metric.statistics(hypotheses, references)
    np.testing.assert_array_equal(joined.rows, whole.rows)
    assert (
        score_rows(metric, joined)
        == score_rows(metric, whole)
        == score(metric, hypotheses, references)
    )


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.key)
def test_scores_are_not_averaged(metric):
    """The score of the whole is another number than the mean of the parts'."""
    hypotheses, references = corpus(3)
    parts = [
        score(metric, hypotheses[cut], references[cut]).value
        for cut in (slice(0, 5), slice(5, None))
    ]
    assert score(metric, hypotheses, references).value != pytest.approx(
        sum(parts) / 2, abs=1e-3
    )


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (
            [[0, 1], [3]],
            (
                "4 sentences must be scored once, but the shards hold 3; missing or"
                " double 3"
            ),
        ),
        ([[0, 1, 2], [2, 3]], "the shards hold 5; missing or double 3"),
        ([[0, 1, 1], [3]], "the shards hold 4; missing or double 2, 3"),
        (
            [[0, 1, 2, 3], [4]],
            "the shards hold 5; missing or double numbers beyond the last",
        ),
        ([[]], "the shards hold 0; missing or double 1, 2, 3"),
    ],
)
def test_every_sentence_once(shares, message):
    """A sentence that is missing or there twice is an error that names it, not
    another score.
    """
    shards = [
        measure_shard(BLEU, share, ["a"] * len(share), ["a"] * len(share))
        for share in shares
    ]
    with pytest.raises(InputError, match=re.escape(message)):
        join_shards(shards, 4)


def test_shards_that_do_not_belong_together():
    """Hosts that score otherwise, or give lines for other sentences, are refused."""
    one, other = (
        measure_shard(BLEU, [0], ["a"], ["a"]),
        measure_shard(BLEU, [1], ["a"], ["a"], ["b"]),
    )
    with pytest.raises(InputError, match=r"signatures are nrefs:1.*, nrefs:2"):
        join_shards([one, other], 2)
    with pytest.raises(InputError, match="2 sentences has 1 lines"):
        measure_shard(BLEU, [0, None], ["a"], ["a", "b"])
