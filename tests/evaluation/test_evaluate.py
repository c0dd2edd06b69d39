"""The score of a run is sacreBLEU's, of every sentence once, against raw references."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import runs
from jaxformer.data import files, sources
from jaxformer.data.corpus import TrainingText
from jaxformer.data.sources import Pair
from jaxformer.diagnosis.checks import results
from jaxformer.diagnosis.evidence import UnseenError
from jaxformer.errors import InputError
from jaxformer.evaluation import evaluate, metrics, tokenized_bleu
from jaxformer.evaluation.choice import choose_metrics
from jaxformer.runs import config as configuration
from jaxformer.runs import records
from jaxformer.runs.records import Validation
from jaxformer.search.config import DecodingConfig
from jaxformer.training.run import Run
from jaxformer.translation.results import Hypothesis
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
        # Full-width: the same text to the vocabulary, other text to sacreBLEU's 13a.
        source, target = given[place]
        wide = (chr(ord(x) + 0xFEE0) if x.isalpha() else "  " for x in target)
        given[place] = Pair(source, "".join(wide))
    return given


@functools.cache
def result() -> tuple[dict, list[str]]:
    name = "synthetic:reverse/odd"
    return evaluate.evaluate(translator(), pairs(), name, decoding=GREEDY)


@pytest.mark.slow
def test_scores_are_those_of_sacrebleu(tmp_path):
    """The written files give sacreBLEU's command line the numbers and signatures in
    results.json: references never go through the vocabulary, which would change them.
    """
    record, hypotheses = result()
    output = records.write_result(tmp_path, record, hypotheses)
    references, targets = tmp_path / "references.txt", [pair.target for pair in pairs()]
    references.write_text("".join(f"{line}\n" for line in targets), encoding="utf-8")
    (saved,) = json.loads((tmp_path / "results.json").read_text("utf-8")).values()
    command = (
        f"{sys.executable} -m sacrebleu {references} -i {output} -m bleu chrf -w 2"
    )
    environment = {"env": runs.environment()}
    theirs = subprocess.check_output(command.split(), **environment)
    for found in json.loads(theirs):
        key = {"BLEU": "bleu", "chrF2": "chrf"}[found["name"]]
        assert 1 < saved[key] < 99
        assert saved[key] == found["score"]
        assert saved[f"{key}_signature"] == found["signature"]
    vocabulary = translator().vocabularies.target
    assert vocabulary.decode(vocabulary.encode(targets[20])) != targets[20]


def test_record(tmp_path):
    """A line for each sentence, in the order of the source, blank for blank sources;
    the record has what was translated, how, and by which parameters.
    """
    record, hypotheses = result()
    found = translator().search([pair.source for pair in pairs()], beam_size=1)
    assert hypotheses == [best.text for (best,) in found]
    lines = records.write_result(tmp_path, record, hypotheses).read_bytes().split(b"\n")
    assert lines == [line.encode() for line in [*hypotheses, ""]]
    assert lines[5] == lines[9] == b""
    assert (record["dataset"], record["sentences"]) == ("synthetic:reverse/odd", 64)
    assert record["checkpoint"] == translator().checkpoint == 200
    assert record["tokens"] == sum(len(best.tokens) for (best,) in found)
    assert record["unfinished"] == sum(not best.finished for (best,) in found)
    search = dataclasses.asdict(translator().decoding)
    assert record["decoding"] == search | {"beam_size": 1, "shortlist": False}
    names = "jaxformer", "jax", "sacrebleu"
    assert record["versions"] == {
        name: importlib.metadata.version(name) for name in names
    }
    assert record["seconds"] >= 0


def test_the_fingerprint_of_a_text():
    """It differs where any source or reference does."""
    record, _ = result()
    texts, references = (list(lines) for lines in zip(*pairs(), strict=True))
    assert record["text"] == records.fingerprint(texts, [references])
    others = (
        (texts[::-1], [references]),
        (texts, [references[::-1]]),
        (texts, [references, references]),
        ([*texts[:-1], texts[-1] + " "], [references]),
        ([*texts, references[0]], [references[1:]]),
    )
    prints = {records.fingerprint(*other) for other in others}
    assert len({record["text"], *prints}) == 6


def test_wrong_references_are_found_before_the_work(monkeypatch):
    """So are missing packages and an empty set."""
    monkeypatch.setattr(Translator, "search", lambda *_, **__: pytest.fail("searched"))
    tokenized_bleu._load_tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    moses = choose_metrics(["tokenized_bleu"], language="de")
    for given, options, said in (
        (pairs(), {"more_references": [["a"]]}, "reference 2 has 1 lines for 64"),
        (pairs(), {"metrics": choose_metrics(["f1"])}, "f1 scores .* reference 1 is"),
        (pairs(), {"metrics": moses}, r"pip install 'jaxformer\[data\]'"),
    ):
        with pytest.raises(InputError, match=said):
            evaluate.evaluate(translator(), given, "odd", **options)
    monkeypatch.undo()
    with pytest.raises(InputError, match="at least one sentence"):
        evaluate.evaluate(translator(), [], "empty")


def make_record(name: str, bleu: float = 1.0) -> dict:
    return {"dataset": name, "bleu": bleu}


def test_results_of_several_sets(tmp_path):
    r"""Each data set has one entry and one file; scoring it again replaces them. Only
    ``\n`` ends a line of what is written; JSON has no NaN.
    """
    lines = ["one\u2028two", "three\x85four\x0b", "", "🙂"]
    for name, bleu, texts in (
        ("bundled:en-de/test", 1.0, ["alt"]),
        ("bundled:en-de/valid", 1.0, ["gültig"]),
        ("bundled:en-de/test", 2.0, lines),
    ):
        record = make_record(name, bleu) | {"seconds": math.nan}
        records.write_result(tmp_path, record, texts)
    found = json.loads((tmp_path / "results.json").read_text())
    scores = [(record["bleu"], record["seconds"]) for record in found.values()]
    assert scores == [(2.0, None), (1.0, None)]
    texts = {path.name: files.read_lines(path) for path in tmp_path.glob("*.txt")}
    assert texts == {
        "hypotheses.bundled_en-de_test.txt": lines,
        "hypotheses.bundled_en-de_valid.txt": ["gültig"],
    }


def test_each_data_set_has_a_file_of_its_own(tmp_path):
    """Names that differ in punctuation, and long paths, have different files, whose
    names every file system takes.
    """
    names = ["text:a/b.en,c.de", "text:a_b.en,c.de", "text:a/b.en_c.de", "a_b:c"]
    for path in ("d" * 120 + "/d" * 120, "ü" * 120 + "/x" * 120):
        names += [f"text:/{path}/{n}.en,/{path}/{n}.de" for n in ("one", "two")]
    outputs = [
        records.write_result(tmp_path, make_record(name), [name]) for name in names
    ]
    assert [path.read_text("utf-8").strip() for path in outputs] == names
    assert all(len(output.name.encode()) < 200 for output in outputs)
    assert list(records.read_results(tmp_path)) == names


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{}"])
def test_damaged_results(tmp_path, content):
    """A damaged file is not overwritten."""
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(InputError, match=r"results\.json .*move it away"):
        records.write_result(tmp_path, make_record("set"), ["x"])
    assert (tmp_path / "results.json").read_bytes() == content


def test_translations_are_those_of_the_score(tmp_path):
    """Changed ones are refused; records of earlier versions have no hash of them."""
    path = records.write_result(tmp_path, make_record("set"), ["old"])
    (old,) = records.read_results(tmp_path).values()
    assert records.read_hypotheses(tmp_path, old) == ["old"]
    path.write_text("new\n")
    said = r"hypotheses\.set\S* is not the text that results\.json has the score of"
    with pytest.raises(InputError, match=said):
        records.read_hypotheses(tmp_path, old)
    del old["hypotheses_sha256"]
    assert records.read_hypotheses(tmp_path, old) == ["new"]


def test_each_text_of_a_pipe_has_a_result(tmp_path):
    """Process substitutions have one name for any text; files keep one entry a name."""
    for name in ("text:/dev/fd/63,/dev/fd/62", "tsv:/dev/stdin", "text:/data/dev/a,b"):
        for text, bleu in (("aa", 1.0), ("bb", 2.0), ("aa", 3.0)):
            record = make_record(name, bleu) | {"text": text}
            records.write_result(tmp_path, record, [f"{bleu}"])
    found = records.read_results(tmp_path)
    scores = {name: record["bleu"] for name, record in found.items()}
    assert scores == {
        "text:/dev/fd/63,/dev/fd/62 text=aa": 3.0,
        "text:/dev/fd/63,/dev/fd/62 text=bb": 2.0,
        "tsv:/dev/stdin text=aa": 3.0,
        "tsv:/dev/stdin text=bb": 2.0,
        "text:/data/dev/a,b": 3.0,
    }
    files = {record["hypotheses"] for record in found.values()}
    assert len(files) == 5


def validate(max_sentences: int | None, samples: int, stop: bool) -> Validation | None:
    """Score the pairs as training does."""
    config = configuration.load(runs.reversal_run() / "config.json")
    limits = {"max_sentences": max_sentences, "samples": samples}
    evaluation = dataclasses.replace(config.evaluation, **limits)
    config = dataclasses.replace(config, evaluation=evaluation)
    text, vocabularies = TrainingText.open(config.data), translator().vocabularies
    run = Run(Path("none"), config, vocabularies, text, pairs(), ("x", "x"))
    validator = evaluate.make_validator(run, translator().model)
    return validator(translator().params, lambda: stop)


@pytest.mark.parametrize(
    ("lines", "said", "bleu"),
    [
        (["天地玄黄。", "宇宙洪荒。"], "BLEU uses sacreBLEU's tokenizer zh", 100.0),
        (["ฉันกินข้าวทุกวัน"], "tokenizer char, since flores200 is not downloaded", 100.0),
        (["Das Haus ist alt."], "", 100.0),
        (["Haus", "altes Haus"], "the loss chooses the best checkpoint", 0.0),
    ],
)
def test_validation_goes_by_the_script(lines, said, bleu, monkeypatch, tmp_path):
    """Before training begins the log names a tokenizer other than 13a, and a metric
    that cannot choose the best; a perfect translation has BLEU 100.
    """
    folder = "sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR"
    monkeypatch.setattr(folder, str(tmp_path))
    config = configuration.load(runs.reversal_run() / "config.json")
    text, vocabularies = TrainingText.open(config.data), translator().vocabularies
    given, log = [Pair("a", line) for line in lines], []
    languages = ("en", "de")
    run = Run(Path("none"), config, vocabularies, text, given, languages, log.append)
    validator = evaluate.make_validator(run, translator().model)
    assert said in "".join(log)
    assert len(log) == bool(said)
    found = [[Hypothesis(line, 0.0, 0.0, [], True)] for line in lines]
    monkeypatch.setattr(Translator, "search", lambda *_, **__: found)
    validation = validator(translator().params, lambda: False)
    assert validation.scores["bleu"] == pytest.approx(bleu)


def test_a_result_names_its_tokenizer(monkeypatch, tmp_path):
    """``evaluate`` and validation count by one tokenizer; ``doctor`` counts a result
    again by the tokenizer of its signature, those of before by 13a.
    """
    lines = ["天地玄黄。", "宇宙洪荒。"]
    given = [Pair("a", line) for line in lines]
    found = [[Hypothesis(line, 0.0, 0.0, [], True)] for line in lines]
    monkeypatch.setattr(Translator, "search", lambda *_, **__: found)
    record, hypotheses = evaluate.evaluate(translator(), given, "odd")
    assert record["bleu"] == 100.0
    assert "|tok:zh|" in record["bleu_signature"]
    seen = {"hypotheses": hypotheses, "references": lines}
    before = {"bleu": 0.0, "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|x:y"}
    for old, verdict in (
        (record, "ok"),
        (before, "ok"),
        ({"bleu": 0.0}, "ok"),
        ({**record, "bleu": 99.0}, "wrong"),
    ):
        run = SimpleNamespace(record=old, **seen)
        assert results.check_recount(run).verdict == verdict
    lacking = {"bleu": 1.0, "bleu_signature": "tok:flores200|smooth:exp"}
    folder = "sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR"
    monkeypatch.setattr(folder, str(tmp_path))
    with pytest.raises(UnseenError, match="flores200 is not downloaded"):
        results.check_recount(SimpleNamespace(record=lacking, **seen))


def test_validation_scores_what_evaluation_scores():
    """The scores during training are those of the same sentences by the same search;
    ``max_sentences`` takes the first, and a run that is stopped has no score.
    """
    _, hypotheses = result()
    references = [pair.target for pair in pairs()]
    for count, samples in ((None, 3), (50, 0)):
        validation = validate(count, samples, stop=False)
        assert validation is not None
        for metric in (metrics.BLEU, metrics.CHRF):
            expected = metrics.score(metric, hypotheses[:count], references[:count])
            assert validation.scores[metric.key] == expected.value
        assert validation.samples == [
            {"source": pair.source, "reference": pair.target, "translation": hypothesis}
            for pair, hypothesis in zip(pairs()[:samples], hypotheses, strict=False)
        ]
    assert validate(None, 1, stop=True) is None
