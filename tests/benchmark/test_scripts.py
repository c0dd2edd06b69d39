"""The benchmarks run, at a size without any meaning for speed, and print what a
person or a program reads.
"""

import contextlib
import json
import re
import runpy
import sys

import jax
import numpy as np
import pytest

import data
import decode
import decode_systems
import turns
from jaxformer.models.config import TransformerConfig

SMALL = {"d_model": 16, "d_ff": 32, "num_heads": 2}
SMALL |= {"num_encoder_layers": 1, "num_decoder_layers": 1}


@pytest.fixture
def call(monkeypatch, capfd):
    """Return the lines that a script prints, and those that are JSON."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script.__file__, *map(str, arguments)])
        with jax.numpy_dtype_promotion("standard"):
            script.main()
        printed = capfd.readouterr().out.splitlines()
        return printed, [json.loads(text) for text in printed if text.startswith("{")]

    return run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch=1,,4"], "must be numbers separated by commas, such as 2,1, not '1,"),
        (["--beam=4,0"], "argument --beam: must be at least 1, not 0"),
        (["--corpus", __file__, "none"], "no file none: --corpus must name two files"),
        (["--systems=x"], "there is no system x: choose from jaxformer-float32, "),
    ],
)
def test_what_cannot_be_timed_is_refused(words, said, monkeypatch, capsys):
    """Sizes, repeats and texts are checked before any model is written."""
    monkeypatch.setattr(sys, "argv", ["decode.py", *words])
    with pytest.raises(SystemExit, match="2"):
        decode.parse()
    assert said in capsys.readouterr().err


def test_padding_and_pairs_a_second_are_measured(call, tmp_path):
    """Each way has a rate, and packed rows have less padding than one length."""
    files = tmp_path / "text.en", tmp_path / "text.de"
    for path, text in zip(files, write_words(), strict=True):
        path.write_text(text, encoding="utf-8")
    options = [f"--source={files[0]}", f"--target={files[1]}", "--vocabulary_size=40"]
    options += ["--tokens_per_batch=512", "--repeats=1"]
    printed, _ = call(data, "padding", *options)
    one, packed = (
        float(re.search(rf"^{shape}, .* 1: ([\d.]+)%", "\n".join(printed), re.M)[1])
        for shape in ("1 buckets", "packed")
    )
    assert packed < one
    printed, _ = call(data, "speed", *options)
    assert len(printed) == 4
    assert all("pairs/s" in line for line in printed)


def write_words():
    """Return lines of one to twelve words, and their translations."""
    rng = np.random.default_rng(1)
    counts = rng.integers(1, 12, 300)
    for words in (["one", "two", "three"], ["eins", "zwei", "drei"]):
        yield "".join(f"{' '.join(rng.choice(words, count))}\n" for count in counts)


class Here(contextlib.nullcontext):
    """A system in the process of the tests."""

    def __init__(self, name, script, request):
        super().__init__(self)
        begin = runpy.run_path(script)["begin"]
        self.answer, self.startup_seconds = begin(request), 1.0

    def ask(self, request):
        return {**self.answer(request), "memory_gib": 1.0}


@pytest.mark.slow
def test_systems_translate_in_turn(call, tmp_path, monkeypatch):
    """Each case has a row for each system, with as many tokens as were asked for,
    and the reference has the ratio 1.
    """
    pytest.importorskip("ctranslate2", reason="needs the extra `parity`")
    config = TransformerConfig(50, **SMALL)
    monkeypatch.setattr(decode_systems, "make_config", lambda _: config)
    monkeypatch.setattr(turns, "Process", Here)
    corpus = tmp_path / "text.en", tmp_path / "text.de"
    text = "Four words stand here.\n\nTwo here.\nOne\n" * 50
    for path in corpus:
        path.write_text(text, encoding="utf-8")
    systems = ["jaxformer-int8-shortlist", "ctranslate2-float32"]
    printed, results = call(
        decode,
        *(f"--systems={','.join(systems)}", "--vocabulary_size=50", "--batch=2"),
        *("--beam=1", "--sentences=4", "--repeats=2", "--corpus", *corpus),
    )
    keys = "model", "lengths", "batch", "beam", "system"
    assert [[result[key] for key in keys] for result in results] == [
        ["tiny", lengths, 2, 1, system]
        for lengths in ("forced", "natural")
        for system in systems
    ]
    figures = "ratio", "startup_seconds", "memory_gib", "sentences_per_second"
    for result in results:
        assert min(result[name] for name in figures) > 0.0
        if result["lengths"] == "forced":
            tokens = 32 * result["sentences_per_second"]
            assert result["tokens_per_second"] == pytest.approx(tokens)
        if result["system"] == "ctranslate2-float32":
            assert result["ratio"] == 1.0
    header, *rows = printed[-5:]
    assert header.split()[:3] == ["system", "lengths", "batch"]
    assert [row.split()[0] for row in rows] == systems * 2
