"""``scripts/ablations``: which runs it makes, how it continues them, and which results
it reports.
"""

import dataclasses
import json
import os
import runpy
import signal
import subprocess
import sys

import jax
import pytest
from training.little import write_corpus

import ablation_results
import ablation_runs
import runs
from ablation_results import AVERAGED, BASE_ROW, OTHERS, USUAL
from ablation_runs import plan
from jaxformer.errors import InputError
from jaxformer.paper.parameters import parameters_by_formula
from jaxformer.runs import config as configuration
from jaxformer.runs.records import write_result

SCRIPT = runs.ROOT / "scripts" / "ablations" / "__main__.py"


@pytest.fixture
def main(monkeypatch):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ablations", *map(str, arguments)])
        return runpy.run_path(str(SCRIPT))["main"]()

    before = jax.config.values["jax_platforms"]
    yield call
    jax.config.update("jax_platforms", before)


def test_the_plan_puts_the_base_first(tmp_path):
    """Every row of one seed comes before the next seed, and each run has its seed."""
    steps = "--config.training.steps=501"
    jobs = plan(["a_h2", "a_h1"], [4, 2], tmp_path, [steps])
    names = ["base-4", "a_h1-4", "a_h2-4", "base-2", "a_h1-2", "a_h2-2"]
    assert [job.directory.name for job in jobs] == names
    assert [job.config.training.seed for job in jobs] == [4, 4, 4, 2, 2, 2]
    assert {job.config.training.steps for job in jobs} == {501}
    assert [job.config.model.num_heads for job in jobs[:3]] == [4, 1, 2]
    assert not any(job.is_finished for job in jobs)


@pytest.mark.parametrize(
    ("rows", "given", "said"),
    [
        (["c_d64"], ["model.d_model=16"], "the row c_d64 is there to change model.d"),
        ([], ["training.seed=7"], "use --seeds in place of"),
        ([], ["data.test=text:a,b"], "base-1 was made by other settings, data.test"),
        # at 300, 600, 700 (an evaluation) and 800
        ([], ["training.steps=800", "training.checkpoint_every=300"], "make 4, and"),
        ([], ["training.keep_latest=4"], "keep_latest=4 keeps too few checkpoints"),
    ],
)
def test_the_plan_refuses_what_would_not_compare(rows, given, said, tmp_path):
    made_up(tmp_path, BASE_ROW, 1, 70)
    overrides = [f"--config.{setting}" for setting in given]
    with pytest.raises(InputError) as caught:
        plan(rows, [2], tmp_path, overrides)
    assert said in str(caught.value)


def test_runs_of_another_length_and_seed_share_a_folder(tmp_path):
    """A base that is finished may have too few checkpoints for another mean."""
    made_up(tmp_path, BASE_ROW, 1, 400)
    assert plan(["base"], [1, 2], tmp_path, ["--config.training.steps=401"])
    for steps in (400, 2800):
        job, _ = plan(["a_h1"], [1], tmp_path, [f"--config.training.steps={steps}"])
        assert job.is_finished == (steps == 400)


def test_wrong_usage(main, tmp_path, capsys):
    for wrong, said in (
        ("--rows=base,heads", "there is no row 'heads': take base, a_h1"),
        ("--seeds=1,x", "numbers separated by commas"),
        ("--row=base", "unrecognized arguments: --row=base"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(f"--output={tmp_path}", wrong)
        assert said in capsys.readouterr().err
    assert main(f"--output={tmp_path}", "--report_only") == 1
    assert "has no finished run of the row base" in capsys.readouterr().err


@pytest.mark.slow
def test_two_rows_are_made_once_whatever_interrupts_them(
    main, tmp_path, monkeypatch, capsys
):
    """The same command continues after a signal; a third time it makes nothing."""
    output, log = tmp_path / "out", tmp_path / "out" / "base-1.log"
    corpus = write_corpus(tmp_path)
    for side in ("forwards", "backwards"):
        text = (tmp_path / f"valid.{side}").read_bytes()
        (tmp_path / f"test.{side}").write_bytes(text)
    sizes = {"d_model": 8, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    changes = {
        **{f"model.{key}": value for key, value in sizes.items()},
        "data.vocabulary_size": 57,
        "data.max_length": 16,
        "data.tokens_per_batch": 200,
        "data.num_buckets": 1,
        "decoding.max_extra_length": 3,
        "training.engine": "jit",
        "training.log_every": 10,
        "training.checkpoint_every": 10,
    }
    command = [
        *(f"--output={output}", "--rows=a_h1", "--steps=50"),
        *(f"--{key.removeprefix('data.')}={value}" for key, value in corpus.items()),
        *(f"--config.{key}={value}" for key, value in changes.items()),
    ]
    commands = []

    def run_process(line, said):
        commands.append(line[3])
        if commands == ["train", "evaluate"]:
            raise KeyboardInterrupt
        with jax.numpy_dtype_promotion("standard"):
            outcome = runs.call(*line[3:])
        with said.open("a") as file:
            file.write(outcome.err)
        return outcome.code

    monkeypatch.setattr(ablation_runs, "run_process", run_process)
    # the others are only other options of evaluate
    monkeypatch.setattr(ablation_results, "OTHERS", OTHERS[-1:])
    assert main(*command) == 130
    last = "ablations: interrupted; the same command continues"
    assert capsys.readouterr().err.splitlines()[-1] == last

    assert main(*command) == 0
    again = capsys.readouterr()
    assert again.err.splitlines() == [
        f"1/2 base-1 begins; its output is in {log}",
        "1/2 base-1 finished",
        f"2/2 a_h1-1 begins; its output is in {output / 'a_h1-1.log'}",
        "2/2 a_h1-1 finished",
    ]
    of_base = ["train", "evaluate", "average", "evaluate"]
    assert commands[2:] == [*of_base, "train", "evaluate"]
    assert (output / "ablations.md").read_text(encoding="utf-8") == again.out
    assert (output / "ablations.png").stat().st_size > 0
    text = (output / "ablations.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [
        (line["row"], line["decoding"], line["checkpoint"], line["changes"])
        for line in lines
    ] == [
        (BASE_ROW, USUAL.name, 50, {}),
        (BASE_ROW, OTHERS[-1].name, f"average/last-{AVERAGED}-at-50", {}),
        ("a_h1", USUAL.name, 50, {"model.num_heads": 1}),
    ]
    assert {(line["steps"], line["sentences"]) for line in lines} == {(50, 31)}
    # one head of the same width has as many
    assert len({line["parameters"] for line in lines}) == 1

    assert main(*command) == 0
    third = capsys.readouterr()
    before = "1/2 base-1 was finished before\n2/2 a_h1-1 was finished before\n"
    assert (third.out, third.err, len(commands)) == (again.out, before, 8)


def test_a_signal_ends_the_process_of_a_run(tmp_path, monkeypatch):
    """It is passed on as SIGTERM, after which the script ends too."""
    child = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()"
    started = []

    class Popen(subprocess.Popen):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    log, handler = tmp_path / "log", signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        ablation_runs.run_process([sys.executable, "-c", child], log)
    assert started[0].returncode == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is handler
    assert ablation_runs.run_process([sys.executable, "-c", "print(1)"], log) == 0
    assert log.read_text() == "1\n"


def made_up(
    output, row, seed, steps, *, perplexity=5.0, bleu=20.0, text="print", scored=True
):
    """Write the scores of a finished run, for a report."""
    proxy = runs.read_proxy(row)
    training = dataclasses.replace(proxy.training, steps=steps, seed=seed)
    config = dataclasses.replace(proxy, training=training)
    directory = ablation_results.run_directory(output, row, seed)
    directory.mkdir(parents=True)
    configuration.save(config, directory / "config.json")
    (directory / "metrics.jsonl").write_text(
        f'{{"step": {steps - 1}, "valid/perplexity": 99}}\n'
        f'{{"step": {steps}, "valid/perplexity": {perplexity}}}\n'
    )
    average = f"average/{ablation_results.average_name(steps)}"
    for decoding in ablation_results.decodings(row)[: None if scored else -1]:
        record = {
            "dataset": config.data.test,
            "text": text,
            "sentences": 500,
            "bleu": bleu,
            "bleu_signature": "nrefs:1",
            "checkpoint": average if decoding.averaged else steps,
            "decoding": {"beam_size": decoding.beam_size, "alpha": decoding.alpha},
        }
        write_result(directory, record, [], variant=decoding.name)
    return directory


def test_the_report_takes_what_compares(tmp_path):
    """Runs of the greatest length with all their scores, by row and seed; runs that
    were scored on different text are refused.
    """
    made_up(tmp_path, "base", 10, 70, perplexity=4.0, bleu=21.0)
    made_up(tmp_path, "base", 9, 70, perplexity=4.5, bleu=22.0)
    made_up(tmp_path, "a_h2", 1, 70, perplexity=6.0, bleu=18.0)
    made_up(tmp_path, "a_h1", 1, 60)
    made_up(tmp_path, "base", 3, 70, scored=False)
    made_up(tmp_path, "a_h8", 1, 70, scored=False)
    # no run, as 01 is no other seed than 1
    for name in ("base-old", "base-01"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    results = ablation_results.collect(tmp_path)
    found = [result for result in results if result.decoding == USUAL.name]
    assert [
        (result.row, result.seed, result.perplexity, result.bleu) for result in found
    ] == [("base", 9, 4.5, 22.0), ("base", 10, 4.0, 21.0), ("a_h2", 1, 6.0, 18.0)]
    assert [result.changes for result in found] == [{}, {}, {"model.num_heads": 2}]
    parameters = parameters_by_formula(runs.read_proxy(BASE_ROW).model)
    assert {result.parameters for result in found} == {parameters}
    made_up(tmp_path, "c_n1", 1, 70, text="another")
    with pytest.raises(InputError, match="were scored on different text"):
        ablation_results.collect(tmp_path)


def test_entries_without_a_score_of_a_search_are_passed_over(tmp_path):
    """An entry that lacks a key is no score, and hides none."""
    directory = made_up(tmp_path, BASE_ROW, 1, 70)
    expected = ablation_results.collect(tmp_path)
    results = json.loads((directory / "results.json").read_text())
    changed = {**next(iter(results.values())), "bleu": 1.0}
    for entry in ({"f1": 91.2}, {**changed, "decoding": {"alpha": 0.6}}):
        (directory / "results.json").write_text(json.dumps({"other": entry, **results}))
        assert ablation_results.collect(tmp_path) == expected
        (directory / "results.json").write_text(json.dumps({"other": entry}))
        assert not ablation_results.is_finished(BASE_ROW, directory, 70)


@pytest.mark.slow
def test_a_row_that_fails_does_not_stop_the_others(main, tmp_path, monkeypatch, capsys):
    """Its own last words are printed, and the exit code is 1; the others are made."""
    for name, value in runs.environment().items():
        monkeypatch.setitem(os.environ, name, value)
    (tmp_path / "a_h1-1").mkdir()
    (tmp_path / "a_h1-1" / "notes.txt").write_text("not a run")
    for row in ("base", "a_h2"):
        made_up(tmp_path, row, 1, 70)
    assert main(f"--output={tmp_path}", "--rows=a_h1,a_h2", "--steps=70") == 1
    said = capsys.readouterr()
    first, _, failed, last = said.err.splitlines()
    assert first == "1/3 base-1 was finished before"
    assert last == "3/3 a_h2-1 was finished before"
    assert failed.startswith("2/3 a_h1-1 failed: ")
    assert "train ended with exit code 1: jaxformer: error: " in failed
    assert "holds files but no run" in failed
    assert "`a_h2`" in said.out
    assert "`a_h1`" not in said.out
