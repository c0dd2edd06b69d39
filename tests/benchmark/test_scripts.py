"""The benchmarks run, at a size without any meaning for speed, and print what a
person or a program reads.
"""

import argparse
import contextlib
import json
import runpy
import sys

import jax
import pytest
from training.little import LITTLE_RUN, write_corpus

import decode
import decode_systems
import imported
import loop
import one_stack
import runs
import train
import turns
from jaxformer.interop.huggingface.run import import_run
from jaxformer.models.config import TransformerConfig
from jaxformer.models.seq2seq import abstract_parameters, count_parameters

SCRIPTS = runs.ROOT / "scripts" / "benchmark"
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


@pytest.mark.slow
def test_the_loop_is_compared_with_its_bare_steps(call, tmp_path):
    """Each block of the loop is compared with one of bare steps."""
    little = {key: value for key, value in LITTLE_RUN.items() if key[:4] != "trai"}
    little |= {**write_corpus(tmp_path), "data.num_buckets": 1}
    little["training.engine"] = "jit"
    changes = [f"--config.{key}={value}" for key, value in little.items()]
    profile = tmp_path / "loop.prof"
    options = "--steps=3", "--blocks=2", f"--profile={profile}"
    printed, (result,) = call(loop, *options, *changes)
    assert result["model"]["d_model"] == 16
    assert (result["steps_a_block"], result["blocks"]) == (3, 2)
    for kind in ("wall", "processor"):
        assert any(line.startswith(kind) for line in printed)
        figures = result[kind]
        assert min(figures.values()) > 0.0
        low, high = figures["lower_quartile"], figures["upper_quartile"]
        assert low <= figures["ratio"] <= high
    assert profile.stat().st_size > 0


@pytest.mark.parametrize("name", ["loop", "memory"])
def test_keys_without_their_prefix_are_refused(name, monkeypatch):
    """The script ends with one line before anything is measured."""
    for variable in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(variable, "cpu")
    monkeypatch.setattr(sys, "argv", [name, "training.steps=5"])
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    said = "error: 'training.steps=5' sets no key of the configuration: write "
    assert str(caught.value).startswith(said)


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


@pytest.mark.slow
def test_training_steps_are_measured_for_several_sizes_of_batch(
    call, tmp_path, monkeypatch
):
    """Each size has a line of JSON and a row; a CPU has no known peak, so no MFU."""
    small = {"tiny": lambda size: TransformerConfig(size, **SMALL)}
    monkeypatch.setattr(train, "MODELS", small)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "1")
    options = "--preset=cpu", "--vocabulary_size=50", "--tokens=sweep", "--buckets=1"
    kind = "--most_tokens=500", "--scan_layers", "--dtype=bfloat16", "--engine=jit"
    more = "--steps=2", "--rematerialization=dots", f"--profile={tmp_path / 'trace'}"
    printed, results = call(train, *options, *kind, *more)
    assert [result["tokens"] for result in results] == [250, 500]
    for result in results:
        assert (result["model"], result["dtype"]) == ("tiny", "bfloat16")
        assert (result["shapes"], result["steps"]) == (1, 2)
        assert 0.0 < result["target_tokens_per_second"] < result["tokens_per_second"]
        assert 0.0 <= result["padding"] < 1.0
        assert result["step_ms"] > 0.0
        assert result["mfu"] is result["memory_gib"] is None
    header, *rows = printed[-3:]
    assert header.split()[:3] == ["tokens", "shapes", "padding"]
    assert {row.split()[0] for row in rows} == {"250", "500"}
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


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
    pytest.importorskip("ctranslate2", reason="needs the extra `benchmark`")
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


@pytest.mark.slow
@pytest.mark.parity
def test_models_of_one_stack_work_in_turn(call, monkeypatch):
    """Each kind of work has a row for each system, whose models have as many
    parameters; what does not exist is refused.
    """
    pytest.importorskip("transformers", reason="needs the extra `benchmark`")
    monkeypatch.setattr(turns, "Process", Here)
    monkeypatch.setattr(one_stack, "SHAPES", {"gpt2": (2, 8), "bert": (2, 16)})
    sizes = {"layers": 1, "width": 64, "vocabulary_size": 150}
    size = [f"--{name}={value}" for name, value in sizes.items()]
    work, precision = ("gpt2", "bert", "generate-1"), "bfloat16"
    chosen = f"--work={','.join(work)}", f"--precisions={precision}"
    _, results = call(one_stack, "--repeats=1", *chosen, *size)
    ours, other, places = one_stack.OURS, one_stack.REFERENCE, one_stack.PLACES
    assert [(row["work"], row["precision"], row["system"]) for row in results] == [
        (each, precision, system)
        for each in work
        for system in ([ours, other, places] if each == "bert" else [ours, other])
    ]
    assert all(row["tokens_per_second"] > 0 for row in results)
    assert all(row["ratio"] == 1 for row in results if row["system"] == other)
    for kind in ("gpt2", "bert"):
        options = argparse.Namespace(kind=kind, precision="float32", **sizes)
        count = count_parameters(abstract_parameters(one_stack.make_config(options)))
        parameters = one_stack.make_torch_model(options).parameters()
        assert count == sum(each.numel() for each in parameters)
    monkeypatch.setattr(sys, "argv", ["one_stack.py", "--work=t5"])
    with pytest.raises(SystemExit):
        one_stack.parse()


@pytest.mark.slow
def test_an_imported_model_is_measured(tmp_path, monkeypatch, capsys):
    """The folder is one that can be imported, and the figures are of its run."""
    for name, value in {"WIDTH": 32, "HIDDEN": 32, "PIECES": 400, "REPEATS": 1}.items():
        monkeypatch.setattr(imported, name, value)
    imported.make_model(str(tmp_path / "model"), 1, 2_000)
    languages = {"source_language": "eng_Latn", "target_language": "deu_Latn"}
    config, ignored = import_run(tmp_path / "model", tmp_path / "run", **languages)
    assert config.model.vocabulary_size == 2_000
    assert config.data.vocabulary_size < 1_000
    assert not ignored
    imported.time_steps(str(tmp_path / "run"), "int8", 2, 4)
    _, name, *figures, _ = capsys.readouterr().out.split("|")
    assert name.strip() == "int8"
    assert min(map(float, figures)) > 0
    peak, own, seconds = imported.measure("info", f"--workdir={tmp_path / 'run'}")
    assert peak >= own > 0.01
    assert seconds > 0
