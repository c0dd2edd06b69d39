"""The score of a run is sacreBLEU's, of every sentence once, against raw references."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import pytest

import runs
from jaxformer.data import TrainingText, files, sources
from jaxformer.data.sources import Pair
from jaxformer.errors import InputError
from jaxformer.evaluation import evaluate, metrics, tokenized_bleu
from jaxformer.evaluation.choice import choose_metrics
from jaxformer.runs import config as configuration
from jaxformer.runs import records
from jaxformer.runs.records import Validator
from jaxformer.search.config import DecodingConfig
from jaxformer.training.run import Run
from jaxformer.translation.translator import Translator

GREEDY = DecodingConfig(beam_size=1)


@functools.cache
def translator() -> Translator:
    return Translator.load(runs.reversal_run())


@functools.cache
def pairs() -> list[Pair]:
    """Return 64 sentences, with blank lines among them and references that
    normalisation would change.
    """
    given = list(sources.load("synthetic:reverse/test", "", ""))[:64]
    given[5] = Pair("", "a b")
    given[9] = Pair("  ", "")
    for place in range(20, 40):
        # Full-width letters and double spaces: the same text to the vocabulary, another
        # text to sacreBLEU's 13a.
        wide = "".join(
            chr(ord(letter) + 0xFEE0) if letter.isalpha() else "  "
            for letter in given[place].target
        )
        given[place] = Pair(given[place].source, wide)
    return given


@functools.cache
def result() -> tuple[dict, list[str]]:
    return evaluate.evaluate(
        translator(), pairs(), "synthetic:reverse/odd", decoding=GREEDY
    )


def sacrebleu(hypotheses: Path, references: Path) -> list[dict]:
    """Score two files by the command line of sacreBLEU."""
    files = [str(references), "-i", str(hypotheses)]
    command = [sys.executable, "-m", "sacrebleu", *files, "-m", "bleu", "chrf"]
    done = subprocess.run(
        [*command, "-w", "2"], capture_output=True, check=True, env=runs.environment()
    )
    return json.loads(done.stdout)


def test_scores_are_those_of_sacrebleu(tmp_path):
    """The files that are written give sacreBLEU's command line the numbers and
    signatures in results.json.
    """
    record, hypotheses = result()
    output = records.write_result(tmp_path, record, hypotheses)
    references = tmp_path / "references.txt"
    references.write_text(
        "".join(f"{pair.target}\n" for pair in pairs()), encoding="utf-8"
    )
    saved = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))[
        "synthetic:reverse/odd"
    ]
    for metric, expected in zip(
        ("bleu", "chrf"), sacrebleu(output, references), strict=True
    ):
        assert saved[metric] == expected["score"]
        assert 1 < saved[metric] < 99
        assert saved[f"{metric}_signature"] == expected["signature"]


def test_references_are_raw():
    """References never go through the vocabulary, which would change them and the
    score.
    """
    record, hypotheses = result()
    vocabulary = translator().vocabularies.target
    decoded = [vocabulary.decode(vocabulary.encode(pair.target)) for pair in pairs()]
    assert decoded[20] != pairs()[20].target
    assert record["bleu"] == round(
        metrics.score(
            metrics.BLEU, hypotheses, [pair.target for pair in pairs()]
        ).value,
        2,
    )
    assert metrics.score(metrics.BLEU, hypotheses, decoded).value > record["bleu"] + 5


def test_every_sentence_once_and_in_order(tmp_path):
    """One line for each sentence, in the order of the source; blank sources have
    blank lines.
    """
    record, hypotheses = result()
    assert hypotheses == translator().translate(
        [pair.source for pair in pairs()], beam_size=1
    )
    lines = records.write_result(tmp_path, record, hypotheses).read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert lines == [line.encode() for line in hypotheses]
    assert record["sentences"] == len(lines) == 64
    assert lines[5] == lines[9] == b""


def test_record():
    """The record says what was translated, how, and by which parameters."""
    record, _ = result()
    found = translator().search([pair.source for pair in pairs()], beam_size=1)
    assert record["dataset"] == "synthetic:reverse/odd"
    assert record["checkpoint"] == translator().checkpoint == 200
    assert record["tokens"] == sum(len(best.tokens) for (best,) in found)
    assert record["unfinished"] == sum(not best.finished for (best,) in found)
    assert record["decoding"] == dataclasses.asdict(translator().decoding) | {
        "beam_size": 1,
        "shortlist": False,
    }
    assert record["decoding"]["max_extra_length"] == 50
    assert {
        name: importlib.metadata.version(name) for name in record["versions"]
    } == record["versions"]
    assert set(record["versions"]) == {"jaxformer", "jax", "sacrebleu"}
    assert record["seconds"] >= 0
    json.dumps(record)


def test_record_tells_texts_apart():
    """What a record calls its text differs where any source or reference does, and
    only there.
    """
    record, _ = result()
    texts, references = (list(lines) for lines in zip(*pairs(), strict=True))
    assert record["text"] == records.fingerprint(texts, [references])
    others = [
        records.fingerprint(texts[::-1], [references]),
        records.fingerprint(texts, [references[::-1]]),
        records.fingerprint(texts, [references, references]),
        records.fingerprint([*texts[:-1], texts[-1] + " "], [references]),
        records.fingerprint([*texts, references[0]], [references[1:]]),
    ]
    assert len({record["text"], *others}) == 6


def test_other_metrics_and_references():
    """The metrics that are asked for are recorded, each with its signature, against
    all references.
    """
    more = [" ".join(pair.target.split()[:-1]) for pair in pairs()]
    chosen = choose_metrics(["chrf++", "ter"])
    record, hypotheses = evaluate.evaluate(
        translator(),
        pairs(),
        "odd",
        decoding=GREEDY,
        metrics=chosen,
        more_references=[more],
    )
    references = [pair.target for pair in pairs()], more
    for metric in chosen:
        expected = metrics.score(metric, hypotheses, *references)
        assert record[metric.key] == round(expected.value, 2)
        assert record[f"{metric.key}_signature"] == expected.signature
        assert expected.signature.startswith("nrefs:2|")
    assert "bleu" not in record


def test_wrong_references_are_found_before_the_work(monkeypatch):
    """References of another length and missing packages are found before translating."""
    monkeypatch.setattr(Translator, "search", lambda *_, **__: 1 / 0)
    with pytest.raises(InputError, match="reference 2 has 3 lines for 64 sentences"):
        evaluate.evaluate(
            translator(), pairs(), "odd", more_references=[["a", "b", "c"]]
        )
    with pytest.raises(
        InputError, match=r"f1 scores linearised trees .* reference 1 is"
    ):
        evaluate.evaluate(translator(), pairs(), "odd", metrics=choose_metrics(["f1"]))
    tokenized_bleu._load_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match=r"pip install 'jaxformer\[moses\]'"):
        evaluate.evaluate(
            translator(),
            pairs(),
            "odd",
            metrics=choose_metrics(["tokenized_bleu"], language="de"),
        )


def test_nothing_to_score():
    """An empty set is an error, not a score."""
    with pytest.raises(InputError, match="at least one sentence"):
        evaluate.evaluate(translator(), [], "empty")


# What is written


def make_record(name: str, bleu: float = 1.0) -> dict:
    return {"dataset": name, "bleu": bleu}


def test_results_of_several_sets(tmp_path):
    """Each data set has one entry and one file; scoring it again replaces them and
    leaves the others.
    """
    records.write_result(tmp_path, make_record("bundled:en-de/test"), ["alt"])
    records.write_result(tmp_path, make_record("bundled:en-de/valid"), ["gültig"])
    records.write_result(tmp_path, make_record("bundled:en-de/test", 2.0), ["neu"])
    found = records.read_results(tmp_path)
    assert {name: record["bleu"] for name, record in found.items()} == {
        "bundled:en-de/test": 2.0,
        "bundled:en-de/valid": 1.0,
    }
    texts = {
        name: (tmp_path / record["hypotheses"]).read_text("utf-8")
        for name, record in found.items()
    }
    assert texts == {"bundled:en-de/test": "neu\n", "bundled:en-de/valid": "gültig\n"}
    assert {path.name for path in tmp_path.iterdir()} == {
        "results.json",
        "hypotheses.bundled_en-de_test.txt",
        "hypotheses.bundled_en-de_valid.txt",
    }


def test_other_line_separators_stay_in_their_line(tmp_path):
    r"""Only ``\n`` ends a line of what is written."""
    lines = ["one\u2028two", "three\x85four\x0b", "", "🙂"]
    output = records.write_result(tmp_path, make_record("odd"), lines)
    assert files.read_lines(output) == lines


def test_each_data_set_has_a_file_of_its_own(tmp_path):
    """Names that differ in punctuation, and long paths, have different files, whose
    names every file system takes.
    """
    names = [
        *("text:a/b.en,c.de", "text:a_b.en,c.de", "text:a/b.en_c.de", "a_b:c", "a:b/c")
    ]
    for folder in ("d" * 120, "ü" * 120):
        path = f"/{folder}/{folder}"
        names += [f"text:{path}/{n}.en,{path}/{n}.de" for n in ("one", "two")]
    outputs = {
        records.write_result(tmp_path, make_record(name), [name]) for name in names
    }
    assert {path.read_text("utf-8").strip() for path in outputs} == set(names)
    assert all(len(output.name.encode()) < 200 for output in outputs)
    assert set(records.read_results(tmp_path)) == set(names)


@pytest.mark.parametrize("content", [b"{", b"", b"[1]", b"\xff\xfe{}"])
def test_damaged_results(tmp_path, content):
    """A damaged file is not overwritten."""
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(InputError, match=r"results\.json .*move it away"):
        records.write_result(tmp_path, make_record("set"), ["x"])
    assert (tmp_path / "results.json").read_bytes() == content


def test_a_kill_between_the_two_files_leaves_no_text_under_the_score_of_another(
    tmp_path, monkeypatch
):
    """Where only the translations are new, who reads them is refused; records of
    earlier versions have no digest.
    """
    records.write_result(tmp_path, make_record("set"), ["old"])
    (old,) = records.read_results(tmp_path).values()
    assert records.read_hypotheses(tmp_path, old) == ["old"]
    write_whole = records.write_whole

    def killed(path, content):
        if path.name == "results.json":
            raise KeyboardInterrupt
        write_whole(path, content)

    monkeypatch.setattr(records, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        records.write_result(tmp_path, make_record("set", 2.0), ["new"])
    assert records.read_results(tmp_path) == {"set": old}
    with pytest.raises(
        InputError,
        match=r"hypotheses\.set\S* is not the text that results\.json has the score of",
    ):
        records.read_hypotheses(tmp_path, old)
    del old["hypotheses_sha256"]
    assert records.read_hypotheses(tmp_path, old) == ["new"]


def test_results_written_at_the_same_time_are_all_kept(tmp_path, monkeypatch):
    """A result is added to those of other processes."""
    read = records.read_results

    def read_slowly(directory):
        found = read(directory)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(records, "read_results", read_slowly)
    names = [f"set{number}" for number in range(4)]
    threads = [
        threading.Thread(
            target=records.write_result, args=(tmp_path, make_record(name), ["x"])
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read(tmp_path)) == set(names)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/b", "", ".", "..", "a\0b"]
)
def test_a_record_names_no_file_outside_the_run(tmp_path, name):
    """A name cannot leave the folder of the run."""
    (tmp_path / "results.json").write_text(
        json.dumps({"set": {"dataset": "set", "hypotheses": name}})
    )
    with pytest.raises(
        InputError,
        match=(
            r"hypotheses of the entry 'set' of .* must be the name of a file in the run"
        ),
    ):
        records.read_results(tmp_path)


def test_a_link_is_not_read_as_translations(tmp_path):
    """A link may lead out of the run."""
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "hypotheses.set.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="is a link: copy the file"):
        records.read_hypotheses(tmp_path, {"hypotheses": "hypotheses.set.txt"})


def test_results_are_json_whatever_their_numbers(tmp_path):
    """JSON has no NaN."""
    records.write_result(
        tmp_path, {"dataset": "set", "bleu": 1.0, "seconds": math.nan}, ["a"]
    )
    assert (
        json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)[
            "set"
        ]["seconds"]
        is None
    )


# During training


def validator(max_sentences: int | None, samples: int, given: list[Pair]) -> Validator:
    config = configuration.load(runs.reversal_run() / "config.json")
    evaluation = dataclasses.replace(
        config.evaluation, max_sentences=max_sentences, samples=samples
    )
    config = dataclasses.replace(config, evaluation=evaluation)
    run = Run(
        Path("none"),
        config,
        translator().vocabularies,
        TrainingText.open(config.data),
        given,
        "x",
    )
    return evaluate.make_validator(run, translator().model)


def test_validation_scores_what_evaluation_scores():
    """The scores during training are those of an evaluation of the same sentences by
    the same search.
    """
    validation = validator(None, 3, pairs())(translator().params, lambda: False)
    record, hypotheses = result()
    assert validation is not None
    assert {name: round(value, 2) for name, value in validation.scores.items()} == {
        name: record[name] for name in ("bleu", "chrf")
    }
    assert validation.samples == [
        {"source": pair.source, "reference": pair.target, "translation": hypothesis}
        for pair, hypothesis in list(zip(pairs(), hypotheses, strict=True))[:3]
    ]


def test_validation_takes_the_first_sentences():
    """``max_sentences`` limits what is translated; what is kept of it may be less or
    nothing.
    """
    expected = evaluate.evaluate(translator(), pairs()[:50], "part", decoding=GREEDY)[0]
    validation = validator(50, 0, pairs())(translator().params, lambda: False)
    assert validation is not None
    assert round(validation.scores["bleu"], 2) == expected["bleu"]
    assert validation.samples == []


def test_validation_that_is_stopped_has_no_score(monkeypatch):
    """A signal in between gives nothing, not the score of a part."""
    # so that there is a second batch
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    given = list(sources.load("synthetic:reverse/test", "", ""))[:100]
    answers = iter([False, True])
    assert validator(None, 1, given)(translator().params, lambda: next(answers)) is None
