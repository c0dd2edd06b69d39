"""``shortlist``: learned from the training text, kept with the run."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from cli.text import change, encode, write

import runs
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Translator


@pytest.fixture
def listed(run):
    """Return a run whose training text is a few hundred pairs."""
    pairs = runs.pairs()[:200]
    text = write(run / "train.tsv", [f"{pair.source}\t{pair.target}" for pair in pairs])
    change(run, "data", train=f"tsv:{text}")
    return run


def test_shortlist(call, listed):
    """It has the most frequent tokens, is used where it is asked for, and the result of
    an evaluation says so.
    """
    lines, workdir = runs.sentences(5, longest=12), f"--workdir={listed}"
    outcome = call("shortlist", workdir, "--first=20", "--best=5")
    assert outcome.code == 0
    record = json.loads(outcome.out)
    translator = Translator.load(listed)
    found = Shortlist.load(listed / "shortlist.npz", translator.vocabularies.hash)
    assert record["vocabulary"] == 400
    assert 20 <= record["tokens_per_sentence"] < 200
    assert found.best.shape == (400, 5)
    assert len(found.first) <= 24
    encode_target = translator.vocabularies.target.encode
    counts = Counter(
        t for pair in runs.pairs()[:200] for t in encode_target(pair.target)
    )
    assert {token for token, _ in counts.most_common(10)} <= set(found.first.tolist())

    plain = translator.translate(lines)
    translator.shortlist = found
    expected = translator.translate(lines)
    assert plain != expected
    given = ("translate", workdir, "--shortlist")
    assert call(*given, stdin=encode(lines)).lines == expected
    text = write(listed / "text", lines)
    files = [f"--source={text}", f"--reference={text}", "--metrics=bleu"]
    assert call("evaluate", workdir, "--shortlist", *files).code == 0
    (name,) = json.loads((listed / "results.json").read_text())
    assert name.endswith(" shortlist=True")


@pytest.mark.parametrize("named", ["files", "dataset"])
def test_text_from_anywhere(named, call, listed):
    """The list is that of the same text as training data."""
    pairs, workdir = runs.pairs()[:200], f"--workdir={listed}"
    assert call("shortlist", workdir).code == 0
    expected = dict(np.load(listed / "shortlist.npz"))
    (listed / "shortlist.npz").unlink()
    change(listed, "data", train="bundled:en-de/valid")
    files = [
        write(listed / f"text,{i}", side)
        for i, side in enumerate(zip(*pairs, strict=True))
    ]
    text = [f"--source={files[0]}", f"--reference={files[1]}"]
    if named == "dataset":
        text = [f"--dataset=tsv:{listed / 'train.tsv'}"]
    assert call("shortlist", workdir, *text).code == 0
    found = dict(np.load(listed / "shortlist.npz"))
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--source=a", "--source and --reference go together"),
        ("--source=a --reference=b --dataset=c", "give either --dataset, or --source"),
        ("--to=de", "--from and --to are the languages of given text"),
        ("--to=fr --dataset=bundled:en-de/valid", "translates only into de, not into"),
        (f"--best={10**23}", "must be at most 10,000"),
    ],
)
def test_refused(options, rule, call, workdir):
    assert rule in call("shortlist", workdir, *options.split()).error
