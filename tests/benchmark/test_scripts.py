"""The benchmarks run, at a size without any meaning for speed, and print what a
person or a program reads.
"""

import re
import sys

import numpy as np

import data


def test_padding_and_pairs_a_second_are_measured(tmp_path, monkeypatch, capfd):
    """Each way has a rate, and packed rows have less padding than one length."""
    files = tmp_path / "text.en", tmp_path / "text.de"
    for path, text in zip(files, write_words(), strict=True):
        path.write_text(text, encoding="utf-8")
    options = [f"--source={files[0]}", f"--target={files[1]}", "--vocabulary_size=40"]
    options += ["--tokens_per_batch=512", "--repeats=1"]

    def call(kind):
        monkeypatch.setattr(sys, "argv", ["data.py", kind, *options])
        data.main()
        return capfd.readouterr().out

    printed = call("padding")
    one, packed = (
        float(re.search(rf"^{shape}, .* 1: ([\d.]+)%", printed, re.M)[1])
        for shape in ("1 buckets", "packed")
    )
    assert packed < one
    printed = call("speed").splitlines()
    assert len(printed) == 4
    assert all("pairs/s" in line for line in printed)


def write_words():
    """Return lines of one to twelve words, and their translations."""
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 12, 300)
    for words in (["one", "two", "three"], ["eins", "zwei", "drei"]):
        yield "".join(f"{' '.join(rng.choice(words, count))}\n" for count in counts)
