"""``scripts/ablations``: which runs it makes, how it continues them, and which
results it reports.
"""

import dataclasses
import importlib.util
import json
import math
import signal
import subprocess
import sys
import time

import pytest
from training.little import steps_of, write_corpus

import ablation_results
import runs
from ablation_results import AVERAGED, BASE_ROW, OTHERS, USUAL
from jaxformer.errors import InputError
from jaxformer.paper.parameters import parameters_by_formula
from jaxformer.runs import config as configuration
from jaxformer.runs.records import write_result

SCRIPT = runs.ROOT / "scripts" / "ablations" / "__main__.py"


@pytest.fixture(scope="module")
def script():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("ablations_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablations_script"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["ablations_script"]


def test_the_plan_puts_the_base_first(script, tmp_path):
    """The base is always there and first, every row of one seed comes before the
    next seed, and each has its seed.
    """
    jobs = script.plan(
        ["a_h2", "a_h1"], [4, 2], tmp_path, ["--config.training.steps=501"]
    )
    assert [job.directory.name for job in jobs] == [
        "base-4",
        "a_h1-4",
        "a_h2-4",
        "base-2",
        "a_h1-2",
        "a_h2-2",
    ]
    assert [job.config.training.seed for job in jobs] == [4, 4, 4, 2, 2, 2]
    assert {job.config.training.steps for job in jobs} == {501}
    assert [job.config.model.num_heads for job in jobs[:3]] == [4, 1, 2]
    assert not any(job.is_finished for job in jobs)


def test_the_plan_refuses_what_would_not_compare(script, tmp_path):
    """A key that a row is there to change cannot be set for all, and a folder holds
    runs by one setting alone.
    """
    with pytest.raises(InputError) as caught:
        script.plan(["a_h1", "c_d64"], [1], tmp_path, ["--config.model.d_model=16"])
    assert str(caught.value).startswith(
        "the row c_d64 is there to change model.d_model: leave out "
    )
    with pytest.raises(InputError, match="use --seeds in place of"):
        script.plan([], [1], tmp_path, ["--config.training.seed=7"])
    made_up(tmp_path, BASE_ROW, 1, 70)
    # length and seed may be others
    script.plan(["base"], [1, 2], tmp_path, ["--config.training.steps=9000"])
    with pytest.raises(
        InputError,
        match=r"base-1 was made by other settings, data\.test: \S+ -> text:a,b: ",
    ):
        script.plan(["a_h1"], [2], tmp_path, ["--config.data.test=text:a,b"])


def test_wrong_usage(script, tmp_path, monkeypatch, capsys):
    """Names of rows, seeds and options that are not there are refused with what
    there is; so is an empty report.
    """
    for wrong, said in (
        ("--rows=base,heads", "there is no row 'heads': take base, a_h1"),
        ("--seeds=1,x", "numbers separated by commas"),
        ("--row=base", "unrecognized arguments: --row=base"),
    ):
        monkeypatch.setattr(sys, "argv", ["ablations", f"--output={tmp_path}", wrong])
        with pytest.raises(SystemExit, match="2"):
            script.main()
        assert said in capsys.readouterr().err
    monkeypatch.setattr(
        sys, "argv", ["ablations", f"--output={tmp_path}", "--report_only"]
    )
    assert script.main() == 1
    assert capsys.readouterr().err.endswith(
        "has no finished run of the row base, which all are compared with: run it"
        " first\n"
    )


@pytest.fixture
def command(tmp_path):
    """Return the options of two rows of a very little model on a little text."""
    corpus = write_corpus(tmp_path)
    for side in ("forwards", "backwards"):  # which is read here
        (tmp_path / f"test.{side}").write_bytes(
            (tmp_path / f"valid.{side}").read_bytes()
        )
    changes = {
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "data.vocabulary_size": 57,
        "data.max_length": 16,
        "data.tokens_per_batch": 200,
        "data.num_buckets": 1,
        "decoding.max_extra_length": 3,
        "training.warmup_steps": 20,
        "training.log_every": 10,
        "training.checkpoint_every": 50,
    }
    return [
        *(f"--output={tmp_path / 'out'}", "--rows=a_h1", "--steps=1200"),
        *(f"--{key.removeprefix('data.')}={value}" for key, value in corpus.items()),
        *(f"--config.{key}={value}" for key, value in changes.items()),
    ]


@pytest.fixture
def environment(monkeypatch):
    """Return the environment of the runs: one device, and programs that are compiled
    quickly.
    """
    monkeypatch.setenv("XLA_FLAGS", "")
    for name, value in {
        **runs.environment(),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
def test_two_rows_are_made_once_whatever_interrupts_them(
    script, command, environment, tmp_path, monkeypatch, capsys
):
    """A signal stops the script after the run has saved; the same command goes on
    there, makes what is missing, and a third time makes nothing.
    """
    output = tmp_path / "out"
    log = output / "base-1.log"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        while not (log.exists() and b"step 30/1200" in log.read_bytes()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.endswith(b"ablations: interrupted; the same command continues\n")
    stopped = steps_of(output / "base-1")[-1]
    assert 30 <= stopped < 1200

    # the others are only other options of evaluate
    monkeypatch.setattr(ablation_results, "OTHERS", OTHERS[-1:])
    monkeypatch.setattr(sys, "argv", ["ablations", *command])
    assert script.main() == 0
    again = capsys.readouterr()
    assert again.err.splitlines() == [
        f"1/2 base-1 begins; its output is in {log}",
        "1/2 base-1 finished",
        f"2/2 a_h1-1 begins; its output is in {output / 'a_h1-1.log'}",
        "2/2 a_h1-1 finished",
    ]
    assert f"resuming at step {stopped} of 1200" in log.read_text(encoding="utf-8")
    assert (output / "ablations.md").read_text(encoding="utf-8") == again.out
    assert (output / "ablations.png").stat().st_size > 0
    lines = [
        json.loads(line)
        for line in (
            (output / "ablations.jsonl").read_text(encoding="utf-8").splitlines()
        )
    ]
    assert [
        (line["row"], line["decoding"], line["checkpoint"], line["changes"])
        for line in lines
    ] == [
        (BASE_ROW, USUAL.name, 1200, {}),
        (BASE_ROW, OTHERS[-1].name, f"average/last-{AVERAGED}-at-1200", {}),
        ("a_h1", USUAL.name, 1200, {"model.num_heads": 1}),
    ]
    for line in lines:
        assert (line["steps"], line["sentences"]) == (1200, 31)
        assert 1.0 < line["perplexity"] < math.inf
    # one head of the same width has as many
    assert len({line["parameters"] for line in lines}) == 1

    before = {
        path: path.stat().st_mtime_ns
        for path in output.rglob("*")
        if path.parent != output
    }
    logs = {path: path.read_bytes() for path in output.glob("*.log")}
    assert script.main() == 0
    third = capsys.readouterr()
    assert third.out == again.out
    assert (
        third.err == "1/2 base-1 was finished before\n2/2 a_h1-1 was finished before\n"
    )
    assert {
        path: path.stat().st_mtime_ns
        for path in output.rglob("*")
        if path.parent != output
    } == before
    assert {path: path.read_bytes() for path in output.glob("*.log")} == logs


def made_up(
    output, row, seed, steps, *, perplexity=5.0, bleu=20.0, text="print", scored=True
):
    """Write what a finished run leaves of its scores, for a report."""
    config = dataclasses.replace(
        runs.read_proxy(row),
        training=dataclasses.replace(
            runs.read_proxy(row).training, steps=steps, seed=seed
        ),
    )
    directory = ablation_results.run_directory(output, row, seed)
    directory.mkdir(parents=True)
    configuration.save(config, directory / "config.json")
    curve = [
        {"step": step, "valid/perplexity": perplexity + steps - step}
        for step in (steps - 1, steps)
    ]
    (directory / "metrics.jsonl").write_text(
        "".join(json.dumps(point) + "\n" for point in curve)
    )
    for decoding in ablation_results.decodings(row)[: None if scored else -1]:
        record = {
            "dataset": config.data.test,
            "text": text,
            "sentences": 500,
            "bleu": bleu,
            "bleu_signature": "nrefs:1",
            "checkpoint": (
                f"average/{ablation_results.average_name(steps)}"
                if decoding.averaged
                else steps
            ),
            "decoding": {"beam_size": decoding.beam_size, "alpha": decoding.alpha},
        }
        write_result(directory, record, [], variant=decoding.name)
    return directory


def test_the_report_takes_what_compares(tmp_path):
    """Runs of the greatest length with all their scores, seed by seed and row by row;
    others are passed over, and runs that were scored on different text are refused.
    """
    for row, seed, values in (
        ("base", 10, (4.0, 21.0)),
        ("base", 9, (4.5, 22.0)),
        ("a_h2", 1, (6.0, 18.0)),
    ):
        made_up(tmp_path, row, seed, 70, perplexity=values[0], bleu=values[1])
    made_up(tmp_path, "a_h1", 1, 60)
    made_up(tmp_path, "base", 3, 70, scored=False)
    made_up(tmp_path, "a_h8", 1, 70, scored=False)
    (tmp_path / "base-old").mkdir()
    found = [
        result
        for result in ablation_results.collect(tmp_path)
        if result.decoding == USUAL.name
    ]
    assert [
        (result.row, result.seed, result.perplexity, result.bleu) for result in found
    ] == [*(("base", 9, 4.5, 22.0), ("base", 10, 4.0, 21.0), ("a_h2", 1, 6.0, 18.0))]
    assert [result.changes for result in found] == [{}, {}, {"model.num_heads": 2}]
    assert {result.parameters for result in found} == {
        parameters_by_formula(runs.read_proxy(BASE_ROW).model)
    }
    made_up(tmp_path, "c_n1", 1, 70, text="another")
    with pytest.raises(InputError, match="were scored on different text"):
        ablation_results.collect(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"f1": 91.2},
        {"dataset": "bundled:en-de/test", "checkpoint": 70, "bleu": 20.0},
        {"decoding": {}},
        {"decoding": {"alpha": 0.6}},
        *(
            {key: None}
            for key in (
                "dataset",
                "text",
                "sentences",
                "checkpoint",
                "bleu",
                "bleu_signature",
                "decoding",
            )
        ),
    ],
)
def test_entries_without_a_score_of_a_search_are_passed_over(tmp_path, entry):
    """Such an entry among the results, or one that lacks a key (here None), neither
    is a score nor hides one.
    """
    directory = made_up(tmp_path, BASE_ROW, 1, 70)
    expected = ablation_results.collect(tmp_path)
    results = json.loads((directory / "results.json").read_text())
    if "decoding" in entry or None in entry.values():
        changed = {**next(iter(results.values())), "bleu": 1.0, **entry}
        entry = {key: value for key, value in changed.items() if value is not None}
    (directory / "results.json").write_text(json.dumps({"other": entry, **results}))
    assert ablation_results.collect(tmp_path) == expected
    (directory / "results.json").write_text(json.dumps({"other": entry}))
    assert not ablation_results.is_finished(BASE_ROW, directory, 70)


def test_a_seed_is_one_however_it_is_written(script, tmp_path):
    """1 and 01 are one seed; of the folders only the one that jaxformer itself makes
    counts.
    """
    for name in ("base-1", "base-01", "base-x", "base-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    found = [("base", 1, tmp_path / "base-1"), ("base", 2, tmp_path / "base-2")]
    assert list(ablation_results.find_runs(tmp_path)) == found
    assert script._seeds("2,1,01,2") == (2, 1)


def test_a_longer_run_is_not_finished(script, tmp_path):
    """A run that has all scores at its end is finished for that length and no other."""
    made_up(tmp_path, BASE_ROW, 1, 700)
    for steps in (700, 701):
        (job,) = script.plan(
            ["base"], [1], tmp_path, [f"--config.training.steps={steps}"]
        )
        assert job.is_finished == (steps == 700)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["steps=400"],
            (
                "400 steps with a checkpoint every 100 and at each evaluation make 4,"
                " and the base ends with the mean of 5"
            ),
        ),
        (
            ["steps=800", "checkpoint_every=300"],
            "at each evaluation make 4,",
        ),  # at 300, 600, 700 (an evaluation) and 800
        (["keep_latest=4"], "keep_latest=4 keeps too few checkpoints"),
    ],
)
def test_runs_that_end_with_too_few_checkpoints(script, tmp_path, given, said):
    """They are refused before anything is trained, unless the base was made already."""
    overrides = [f"--config.training.{setting}" for setting in given]
    with pytest.raises(InputError) as caught:
        script.plan(["a_h1"], [1], tmp_path, overrides)
    assert said in str(caught.value)
    assert script.plan([], [1], tmp_path, ["--config.training.steps=401"])
    made_up(tmp_path, BASE_ROW, 1, 400)
    assert script.plan(["a_h1"], [1], tmp_path, ["--config.training.steps=400"])


@pytest.mark.slow
def test_a_row_that_fails_does_not_stop_the_others(
    script, environment, tmp_path, monkeypatch, capsys
):
    """What fails is named with its own last words and makes the exit code 1; the
    others are made and reported.
    """
    blocked = tmp_path / "a_h1-1"
    blocked.mkdir()
    (blocked / "notes.txt").write_text("not a run")
    for row in ("base", "a_h2"):
        made_up(tmp_path, row, 1, 70)
    monkeypatch.setattr(
        sys,
        "argv",
        ["ablations", f"--output={tmp_path}", "--rows=a_h1,a_h2", "--steps=70"],
    )
    assert script.main() == 1
    said = capsys.readouterr()
    first, _, failed, last = said.err.splitlines()
    assert (first, last) == (
        "1/3 base-1 was finished before",
        "3/3 a_h2-1 was finished before",
    )
    assert failed.startswith("2/3 a_h1-1 failed: ")
    assert "train ended with exit code 1: jaxformer: error: " in failed
    assert "holds files but no run" in failed
    assert "`a_h2`" in said.out
    assert "`a_h1`" not in said.out
