"""``rerank``: lists of translations, ordered by a weighted sum of scores."""

from __future__ import annotations

import json

import pytest
from cli.text import change, encode, write

import runs
from jaxformer.data.records import Pair
from jaxformer.translation.translator import Translator


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Return a file with the 4-best lists of a few sentences and a blank one, and
    what it holds.
    """
    text = [*runs.sentences(4, longest=12), ""]
    found = Translator.load(runs.random_run()).search(text, n_best=4)
    records = [
        {"source": source, "translations": [each.to_json() for each in hypotheses]}
        for source, hypotheses in zip(text, found, strict=True)
    ]
    return write_lists(tmp_path_factory.mktemp("lists") / "lists", records), records


def write_lists(path, records):
    return write(path, map(json.dumps, records))


def read(outcome):
    assert outcome.code == 0
    return [json.loads(line)["translations"] for line in outcome.lines]


def test_by_models(call, lists):
    """Lists are ordered by the scores of the search, of a reverse model and of a
    language model, each with its weight.
    """
    file, records = lists
    best, last = (Translator.load(runs.random_run(), which) for which in ("10", "20"))
    expected = []
    for record in records:
        texts = [each["text"] for each in record["translations"]]
        pairs = [Pair(text, record["source"]) for text in texts]
        means = [
            [score.log_probability / score.tokens for score in model.score(given)]
            for model, given in ((last, pairs), (best, [Pair(".", t) for t in texts]))
        ]
        totals = [
            0.25 * each["score"] + 3 * reverse + 2 * lm if each["text"].strip() else -99
            for each, reverse, lm in zip(record["translations"], *means, strict=True)
        ]
        order = sorted(range(len(texts)), key=lambda place: -totals[place])
        expected.append([texts[place] for place in order])
    weights = [f"--weight={each}" for each in ("reverse=3", "language_model=2")]
    weights += ["--weight", "search=0.25"]
    run = runs.random_run()
    models = (f"--reverse={run}@20", f"--language_model={run}")
    outcome = call("rerank", f"--input={file}", *models, *weights)
    assert outcome == (0, encode(texts[0] for texts in expected), "")
    assert outcome.lines != [record["translations"][0]["text"] for record in records]
    given = (*models, *weights, "--format=jsonl")
    found = read(call("rerank", *given, stdin=file.read_bytes()))
    assert [[each["text"] for each in texts] for texts in found] == expected
    names = ("search", "reverse", "language_model")
    for each in found[0]:
        search, *models = (each["scores"][name] for name in names)
        total = 0.25 * search + 3 * models[0] + 2 * models[1]
        assert each["total"] == pytest.approx(total)
        assert {"finished", "score"} <= each.keys()


def test_by_a_file(call, lists, tmp_path):
    """Scores from a file order the lists; --tune prints the weights that suit the
    references.
    """
    file, records = lists
    sizes = [len(record["translations"]) for record in records]
    numbers = [str(float(n - size)) for size in sizes for n in range(size)]
    scores = write(tmp_path / "scores", numbers)
    options = (f"--input={file}", f"--scores=mine={scores}")
    last = [record["translations"][-1]["text"] for record in records]
    assert call("rerank", *options, "--weight=search=0").lines == last
    references = write(tmp_path / "references", [text or "a" for text in last])
    record = json.loads(call("rerank", *options, f"--tune={references}").out)
    assert record["weights"]["search"] == 1
    assert record["weights"]["mine"] > 0
    assert record["bleu"] > record["bleu_before"]


def test_one_line_for_each_sentence(call, tmp_path):
    """A translation with a line end is refused as text, and whole as JSON lines."""
    output = tmp_path / "output"
    translations = [{"text": text, "score": -1.0} for text in ("x\u2028y", "x\ny")]
    records = [
        {"source": "a", "translations": translations[:1]},
        {"source": "b", "translations": translations},
    ]
    lists = write_lists(tmp_path / "lists", records)
    error = call("rerank", f"--input={lists}", f"--output={output}").error
    assert error.startswith(f"{lists}, line 2 has a translation with a line end, and")
    assert not output.exists()
    found = read(call("rerank", f"--input={lists}", "--format=jsonl"))
    assert [each[-1]["text"] for each in found] == ["x\u2028y", "x\ny"]
    write_lists(lists, records[:1])
    assert call("rerank", f"--input={lists}").lines == ["x\u2028y"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--weight=lm=1", "--weight lm: there are scores search"),
        ("--weight=search=x", "must be a number from -1e9 to 1e9, not 'x'"),
        ("--weight=search", "must be NAME=X, not 'search'"),
        ("--scores=search=FILE", "two scores have one name"),
        ("--scores=a=/nowhere", "no file /nowhere"),
    ],
)
def test_wrong_options(option, message, call, lists):
    assert message in call("rerank", f"--input={lists[0]}", option).error


def test_what_is_read_is_not_written(call, lists, tmp_path):
    file = write_lists(tmp_path / "file", lists[1])
    before = file.read_bytes()
    for option in ("--input=", "--tune=", "--scores=mine="):
        given = (f"--input={lists[0]}", f"{option}{file}", f"--output={file}")
        error = call("rerank", *given).error
        assert f"{file} is the file that is read: name another to write" in error
    assert file.read_bytes() == before


def test_a_reverse_model_of_the_same_direction_is_refused(call, run, lists, tmp_path):
    """Lists of ``translate`` name their languages, and so does a run."""
    languages = {"source_language": "en", "target_language": "de"}
    file = write_lists(tmp_path / "lists", [{**lists[1][0], **languages}])
    given = ("rerank", f"--input={file}", f"--reverse={run}@20")
    rule = f"--reverse {run}@20 translates from en into de, and the lists are from en"
    assert call(*given).error.startswith(rule)
    change(run, "data", source_language="de", target_language="en")
    assert call(*given).code == 0


@pytest.mark.parametrize("name", ["reverse", "language_model"])
def test_translations_that_a_model_cannot_read_come_last(name, call, tmp_path):
    """Those that are too long for a model are counted, and have no score."""
    long = "word " * 300
    given = [("a", [long, "b", ""]), ("c", [long, long]), ("d", ["e"])]
    records = [
        {"source": source, "translations": [{"text": t, "score": -1.0} for t in texts]}
        for source, texts in given
    ]
    lists = write_lists(tmp_path / "lists", records)
    model = f"--{name}={runs.random_run()}"
    outcome = call("rerank", f"--input={lists}", model, "--format=jsonl")
    warning = f"3 of 6 translations have no score {name} and come last: "
    assert outcome.err.startswith(
        f"jaxformer: warning: {warning}{runs.random_run()} has"
    )
    found = read(outcome)
    texts = [[each["text"] for each in row] for row in found]
    assert texts == [["b", long, ""], [long, long], ["e"]]
    missing = [[each["scores"][name] is None for each in row] for row in found]
    assert missing == [[False, True, True], [True, True], [False]]
