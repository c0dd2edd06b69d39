"""The benchmarks run, at a size that says nothing about speed, and print what a
person or a program reads.
"""

import json
import subprocess
import sys

import pytest
from training.little import write_corpus

import decode
import runs

SCRIPTS = runs.ROOT / "scripts" / "benchmark"


def run(script, *arguments):
    line = [sys.executable, SCRIPTS / script, *arguments]
    done = subprocess.run(
        line, capture_output=True, text=True, env=runs.environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    return printed, [json.loads(text) for text in printed if text.startswith("{")]


def test_the_loop_is_compared_with_its_bare_steps(tmp_path):
    """Each block of the loop is compared with one of bare steps, and the first of
    both with none.
    """
    little = {
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_heads": 2,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "data.vocabulary_size": 57,
        "data.max_length": 16,
        "data.tokens_per_batch": 200,
        "data.num_buckets": 2,
        **write_corpus(tmp_path),
    }
    changes = [f"--config.{key}={value}" for key, value in little.items()]
    profile = tmp_path / "loop.prof"
    printed, (result,) = run(
        "loop.py", "--steps=3", "--blocks=2", f"--profile={profile}", *changes
    )
    assert result["model"]["d_model"] == 16
    assert (result["steps_a_block"], result["blocks"]) == (3, 2)
    for kind in ("wall", "processor"):
        assert any(line.startswith(kind) for line in printed)
        figures = result[kind]
        assert min(figures.values()) > 0.0
        assert (
            figures["lower_quartile"] <= figures["ratio"] <= figures["upper_quartile"]
        )
    assert profile.stat().st_size > 0


@pytest.mark.parametrize(
    "line",
    [
        ("loop.py",),
        ("memory.py",),
        ("quality.py", "--config=quickstart", "--workdir=nowhere"),
    ],
    ids=["loop", "memory", "quality"],
)
def test_words_that_say_nothing_are_refused(line, tmp_path):
    """A key of the configuration without its prefix ends the script with one line,
    before anything is measured.
    """
    words = [sys.executable, SCRIPTS / line[0], *line[1:], "training.steps=5"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env=runs.environment(),
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: 'training.steps=5' sets no key of the configuration: write "
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--batch=0"],
            "--batch must be whole numbers from 1 separated by commas, not '0': ",
        ),
        (
            ["--batch=a"],
            "--batch must be whole numbers from 1 separated by commas, not 'a': ",
        ),
        (["--batch=1,,4"], "not '1,,4': --batch=1,4"),
        (
            ["--beam=4,-1"],
            "--beam must be whole numbers from 1 separated by commas, not '4,-1': ",
        ),
        (["--repeats=0"], "--repeats must be at least 1, not 0: "),
        (
            ["--corpus", "nofile", "nofile2"],
            "no file nofile: --corpus must name two files of parallel text",
        ),
        (["--corpus", __file__, "nofile2"], "no file nofile2: "),
        (["--corpus", str(SCRIPTS), __file__], f"no file {SCRIPTS}: "),
    ],
)
def test_what_cannot_be_timed_is_refused(words, said, monkeypatch, capsys):
    """Sizes, repeats and texts are checked before any model is written."""
    monkeypatch.setattr(sys, "argv", ["decode.py", *words])
    with pytest.raises(SystemExit, match="2"):
        decode.parse()
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_training_steps_are_measured_for_several_sizes_of_batch(tmp_path):
    """There is one line of JSON and one row of the table for each size; a CPU has no
    known peak, and so no MFU.
    """
    printed, results = run(
        "train.py",
        *(
            "--preset=cpu",
            "--vocabulary_size=50",
            "--tokens=sweep",
            "--most_tokens=500",
            "--steps=2",
            "--buckets=1",
        ),
        *(
            "--scan_layers",
            "--dtype=bfloat16",
            "--rematerialization=dots",
            f"--profile={tmp_path / 'trace'}",
        ),
    )
    assert [result["tokens"] for result in results] == [250, 500]
    for result in results:
        assert (
            result["model"],
            result["dtype"],
            result["shapes"],
            result["steps"],
        ) == ("tiny", "bfloat16", 1, 2)
        assert 0.0 < result["target_tokens_per_second"] < result["tokens_per_second"]
        assert 0.0 <= result["padding"] < 1.0
        assert result["step_ms"] > 0.0
        assert result["compile_seconds"] > 0.0
        assert result["mfu"] is None
        assert result["memory_gib"] is None
    header, *rows = printed[-3:]
    assert header.split()[:3] == ["tokens", "shapes", "padding"]
    assert {row.split()[0] for row in rows} == {"250", "500"}
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


@pytest.mark.slow
def test_systems_translate_in_turn(tmp_path):
    """Each case has a row for each system, with as many tokens as were asked for,
    and the reference has the ratio 1.
    """
    pytest.importorskip("ctranslate2", reason="needs the extra `benchmark`")
    corpus = [tmp_path / "text.en", tmp_path / "text.de"]
    lines = [
        "Four words stand here.\n\nTwo here.\nOne\n" * 50,
        "Vier Worte stehen hier.\n\nZwei hier.\nEins\n" * 50,
    ]
    for path, text in zip(corpus, lines, strict=True):
        path.write_text(text, encoding="utf-8")
    systems = [
        "jaxformer-float32",
        "jaxformer-int8-shortlist",
        "ctranslate2-float32",
        "ctranslate2-int8",
    ]
    printed, results = run(
        "decode.py",
        *(
            f"--systems={','.join(systems)}",
            "--vocabulary_size=50",
            "--batch=2",
            "--beam=1",
        ),
        *("--sentences=4", "--repeats=2", "--corpus", *map(str, corpus)),
    )
    found = [
        (result["lengths"], result["batch"], result["beam"], result["system"])
        for result in results
    ]
    assert found == [
        (lengths, 2, 1, system)
        for lengths in ("forced", "natural")
        for system in systems
    ]
    for result in results:
        assert result["model"] == "tiny"
        assert (
            min(
                result[name]
                for name in (
                    "ratio",
                    "startup_seconds",
                    "memory_gib",
                    "sentences_per_second",
                )
            )
            > 0.0
        )
        if result["lengths"] == "forced":
            assert result["tokens_per_second"] == pytest.approx(
                32 * result["sentences_per_second"]
            )
        if result["system"] == "ctranslate2-float32":
            assert result["ratio"] == 1.0
    header, *rows = printed[-9:]
    assert header.split()[:3] == ["system", "lengths", "batch"]
    assert [row.split()[0] for row in rows] == systems * 2
