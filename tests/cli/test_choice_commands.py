"""Several models, and the choice among several translations, on the command line."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import sacrebleu

import runs
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabulary
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Translator


@pytest.fixture(scope="module")
def workdir():
    return f"--workdir={runs.random_run()}"


@pytest.fixture(scope="module")
def lines():
    return runs.sentences(5, longest=12)


def encode(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


# Ensembles


@pytest.fixture(scope="module")
def together():
    """Both checkpoints of the run."""
    run = runs.random_run()
    return Translator.ensemble([Translator.load(run), Translator.load(run, "latest")])


def test_translate_by_an_ensemble(call, workdir, lines, together):
    """Runs and checkpoints that are named predict together; another folder of the
    same run is the same.
    """
    expected = together.translate(lines)
    assert expected != Translator.load(runs.random_run()).translate(lines)
    for name in (f"{runs.random_run()}@20", f"{runs.random_run()}@latest"):
        assert (
            call("translate", workdir, f"--ensemble={name}", stdin=encode(lines)).lines
            == expected
        )


def test_a_folder_with_the_sign_in_its_name(call, workdir, lines, tmp_path):
    """A directory that is there goes before a checkpoint of that name."""
    run = runs.copy(runs.random_run(), tmp_path / "a@20")
    outcome = call("translate", workdir, f"--ensemble={run}", stdin=encode(lines))
    assert outcome.lines == Translator.load(runs.random_run()).translate(lines)


def test_score_by_an_ensemble(call, workdir, together, tmp_path):
    """The scores are those of the mixture."""
    pairs = runs.pairs()[:3]
    for name, side in (("source", 0), ("target", 1)):
        (tmp_path / name).write_bytes(encode([pair[side] for pair in pairs]))
    files = [f"--{name}={tmp_path / name}" for name in ("source", "target")]
    outcome = call(
        "score", workdir, f"--ensemble={runs.random_run()}@20", "--format=jsonl", *files
    )
    found = [json.loads(line)["log_probability"] for line in outcome.lines]
    assert found == pytest.approx(
        [score.log_probability for score in together.score(pairs)], rel=1e-6
    )


def test_evaluate_an_ensemble(call, tmp_path, together):
    """It gets a result of its own, which names its models, beside that of the run
    alone.
    """
    run = runs.copy(runs.random_run(), tmp_path / "run")
    pairs = runs.pairs()[:3]
    for name, side in (("source", 0), ("reference", 1)):
        (tmp_path / name).write_bytes(encode([pair[side] for pair in pairs]))
    files = [f"--{name}={tmp_path / name}" for name in ("source", "reference")]
    outcome = call(
        "evaluate", f"--workdir={run}", f"--ensemble={run}@20", "--metrics=bleu", *files
    )
    assert json.loads(outcome.lines[0])["checkpoint"] == "run@10 + run@20"
    ((name, record),) = json.loads((run / "results.json").read_text()).items()
    assert name.endswith(f" ensemble={run}@20")
    assert (run / record["hypotheses"]).read_text().splitlines() == together.translate(
        [p.source for p in pairs]
    )


def test_weights_of_an_ensemble(call, tmp_path, lines):
    """Each model counts as it is told; the result of an evaluation says how much."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    models = [Translator.load(run), Translator.load(run, "latest")]
    options = [f"--workdir={run}", f"--ensemble={run}@20"]
    for text, weights in (("3,1", [3, 1]), ("0,1", [0, 1])):
        expected = Translator.ensemble(models, weights).search(lines, beam_size=1)
        given = [
            *options,
            f"--ensemble_weights={text}",
            "--beam_size=1",
            "--format=jsonl",
        ]
        found = [
            json.loads(line)["translations"][0]
            for line in call("translate", *given, stdin=encode(lines)).lines
        ]
        assert [each["text"] for each in found] == [best.text for (best,) in expected]
        values = [best.log_probability for (best,) in expected]
        assert [each["log_probability"] for each in found] == pytest.approx(
            values, rel=1e-4
        )
    (tmp_path / "text").write_bytes(encode(lines))
    files = [f"--{name}={tmp_path / 'text'}" for name in ("source", "reference")]
    assert (
        call(
            "evaluate", *options, "--ensemble_weights=3,0.5", "--metrics=bleu", *files
        ).code
        == 0
    )
    ((name, record),) = json.loads((run / "results.json").read_text()).items()
    assert name.endswith(f" ensemble={run}@20 ensemble_weights=3,0.5")
    assert record["checkpoint"] == "3*run@10 + 0.5*run@20"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (
            ["--ensemble_weights=1"],
            (
                "--ensemble_weights weighs the models of an ensemble: add --ensemble,"
                " or leave it out"
            ),
        ),
        (
            ["--ensemble=RUN", "--ensemble_weights=1,x"],
            "needs numbers with commas between, such as 2,1, not '1,x'",
        ),
        (
            ["--ensemble=RUN", "--ensemble_weights=1,2,3"],
            "there are 3 weights for an ensemble of 2 models",
        ),
        (
            ["--ensemble=RUN", "--ensemble_weights=1,-1"],
            "must be at least 0, and not all 0: not [1.0, -1.0]",
        ),
    ],
)
def test_wrong_weights_of_an_ensemble(options, rule, call, workdir, monkeypatch):
    """They are found before a model is read."""
    monkeypatch.setattr(Translator, "load", lambda *_: 1 / 0)
    assert rule in call("translate", workdir, *options, stdin=b"a\n").error


def test_an_ensemble_of_strangers_is_refused(call, workdir, tmp_path):
    """Another vocabulary, and a checkpoint that is not there, are errors of one
    line.
    """
    run = runs.copy(runs.random_run(), tmp_path / "other")
    Vocabulary.train([text for pair in runs.pairs()[:100] for text in pair], 400).save(
        run / "vocabulary" / "shared.model"
    )
    assert (
        "vocabulary"
        in call("translate", workdir, f"--ensemble={run}", stdin=b"a\n").error
    )
    assert (
        "99"
        in call(
            "translate", workdir, f"--ensemble={runs.random_run()}@99", stdin=b"a\n"
        ).error
    )
    assert (
        "nowhere"
        in call("translate", workdir, "--ensemble=nowhere", stdin=b"a\n").error
    )


# Minimum Bayes risk


def test_minimum_bayes_risk(call, workdir, lines):
    """One translation a line: that of the highest mean chrF against the other
    samples.
    """
    text = [*lines, ""]
    options = (
        "translate",
        workdir,
        "--sample",
        "--n_best=5",
        "--temperature=0.5",
        "--seed=3",
    )
    drawn = [
        json.loads(line)
        for line in call(*options, "--format=jsonl", stdin=encode(text)).lines
    ]
    found = call(*options, "--mbr", stdin=encode(text))
    metric, chosen = sacrebleu.CHRF(), []
    for record in drawn:
        samples = [each["text"] for each in record["translations"]]
        means = [
            sum(
                metric.sentence_score(one, [other]).score
                for j, other in enumerate(samples)
                if i != j
            )
            for i, one in enumerate(samples)
        ]
        chosen.append(samples[means.index(max(means))])
    assert found == (0, encode(chosen), "")
    records = [
        json.loads(line)
        for line in call(*options, "--mbr", "--format=jsonl", stdin=encode(text)).lines
    ]
    assert [
        [each["text"] for each in record["translations"]] for record in records
    ] == [[text] for text in chosen]
    assert (
        sum(
            r["translations"][0]["text"] != text
            for r, text in zip(drawn, chosen, strict=True)
        )
        > 1
    )


def test_one_translation_is_no_choice(call, workdir):
    """--mbr needs several translations to choose from."""
    assert "--n_best=32" in call("translate", workdir, "--mbr", stdin=b"a\n").error


# Reranking


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """Write the 4-best lists of a few sentences, and a blank one, and give them with
    the file.
    """
    file = tmp_path_factory.mktemp("lists") / "lists.jsonl"
    text = [*runs.sentences(4, longest=12), ""]
    found = Translator.load(runs.random_run()).search(text, n_best=4)
    records = [
        {
            "source": source,
            "translations": [
                {"text": each.text, "score": each.score, "finished": each.finished}
                for each in hypotheses
            ],
        }
        for source, hypotheses in zip(text, found, strict=True)
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file, records


def test_rerank_by_a_reverse_model(call, lists):
    """Lists are ordered by the search's score and the reverse model's, each with its
    weight.
    """
    file, records = lists
    back = Translator.load(runs.random_run(), "20")
    expected = []
    for record in records[:-1]:
        texts = [each["text"] for each in record["translations"]]
        scores = back.score([Pair(text, record["source"]) for text in texts])
        totals = [
            (
                0.25 * each["score"] + 3 * score.log_probability / score.tokens
                if each["text"].strip()
                else -99
            )
            for each, score in zip(record["translations"], scores, strict=True)
        ]
        expected.append(
            [
                text
                for _, text in sorted(
                    zip(totals, texts, strict=True), key=lambda item: -item[0]
                )
            ]
        )
    options = (
        f"--reverse={runs.random_run()}@20",
        "--weight",
        "reverse=3",
        "--weight=search=0.25",
    )
    outcome = call("rerank", f"--input={file}", *options)
    assert outcome == (0, encode([*(texts[0] for texts in expected), ""]), "")
    assert outcome.lines != [record["translations"][0]["text"] for record in records]
    found = [
        json.loads(line)
        for line in call(
            "rerank", *options, "--format=jsonl", stdin=file.read_bytes()
        ).lines
    ]
    assert [
        [each["text"] for each in record["translations"]] for record in found[:-1]
    ] == expected
    for each in found[0]["translations"]:
        assert each["total"] == pytest.approx(
            0.25 * each["scores"]["search"] + 3 * each["scores"]["reverse"]
        )
        assert {"finished", "score"} <= each.keys()


def test_rerank_by_a_file(call, lists, tmp_path):
    """Scores from a file order the lists; with --tune the weights that suit the
    references are reported.
    """
    file, records = lists
    numbers = [
        [float(-place) for place, _ in enumerate(record["translations"])][::-1]
        for record in records
    ]
    (tmp_path / "scores").write_bytes(
        encode([str(number) for row in numbers for number in row])
    )
    options = (
        f"--input={file}",
        f"--scores=mine={tmp_path / 'scores'}",
        "--weight=search=0",
    )
    last = [record["translations"][-1]["text"] for record in records]
    assert call("rerank", *options).lines == last
    (tmp_path / "references").write_bytes(encode([text or "a" for text in last]))
    record = json.loads(
        call("rerank", *options[:2], f"--tune={tmp_path / 'references'}").lines[0]
    )
    assert record["weights"]["search"] == 1
    assert record["weights"]["mine"] > 0
    assert record["bleu"] > record["bleu_before"]


def test_rerank_prints_one_line_for_each_sentence(call, tmp_path):
    """A translation with a line end is refused as text, by its line of the input,
    and whole as JSON lines.
    """
    lists, output = tmp_path / "lists.jsonl", tmp_path / "output"
    records = [
        {"source": "a", "translations": [{"text": "x\u2028y", "score": -1.0}]},
        {
            "source": "b",
            "translations": [
                {"text": "x", "score": -1.0},
                {"text": "x\ny", "score": -2.0},
            ],
        },
    ]
    lists.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert (
        call("rerank", f"--input={lists}", f"--output={output}").error
        == f"{lists}, line 2 has a translation with a line end, and --format=text"
        " prints one line for each sentence: remove the line end, or give"
        " --format=jsonl"
    )
    assert not output.exists()
    found = [
        json.loads(line)
        for line in call("rerank", f"--input={lists}", "--format=jsonl").lines
    ]
    assert [each["translations"][-1]["text"] for each in found] == ["x\u2028y", "x\ny"]
    lists.write_text(json.dumps(records[0]) + "\n")
    assert call("rerank", f"--input={lists}").lines == ["x\u2028y"]


def test_rerank_by_a_language_model(call, lists):
    """A run serves as a language model by the source that is no source."""
    file, records = lists
    outcome = call(
        "rerank",
        f"--input={file}",
        f"--language_model={runs.random_run()}",
        "--weight=search=0",
    )
    model = Translator.load(runs.random_run())
    for line, record in zip(outcome.lines[:-1], records, strict=False):
        texts = [
            each["text"] for each in record["translations"] if each["text"].strip()
        ]
        means = [
            score.log_probability / score.tokens
            for score in model.score([Pair(".", text) for text in texts])
        ]
        assert line == texts[means.index(max(means))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weight=lm=1"], "--weight lm: there are scores search"),
        (["--weight=search=x"], "finite number, not 'x'"),
        (["--weight=search"], "needs a name and a value"),
        (["--scores=search=FILE"], "two scores have one name"),
        (["--scores=a=/nowhere"], "no file /nowhere"),
        (["--tune=/nowhere"], "no file /nowhere"),
        (["--reverse=nowhere"], "nowhere"),
    ],
)
def test_wrong_options_of_rerank(options, message, call, lists):
    """Each wrong value is one line that names it."""
    assert message in call("rerank", f"--input={lists[0]}", *options).error


@pytest.mark.parametrize("option", ["--input=", "--tune=", "--scores=mine="])
def test_rerank_does_not_write_what_it_reads(option, call, lists):
    """A file that is also the output is refused, and stays as it was."""
    file, _ = lists
    before = file.read_bytes()
    error = call(
        "rerank", f"--input={file}", f"{option}{file}", f"--output={file}"
    ).error
    assert f"{file} is the file that is read: name another to write" in error
    other = file.with_name("other")
    other.write_text("text\n")
    if option != "--input=":
        error = call(
            "rerank", f"--input={file}", f"{option}{other}", f"--output={other}"
        ).error
        assert f"{other} is the file that is read: name another to write" in error
    assert (file.read_bytes(), other.read_text()) == (before, "text\n")


def test_a_reverse_model_of_the_same_direction_is_refused(call, workdir, tmp_path):
    """Lists of translate say what they were translated from and into, and so does
    the run (here both en into de).
    """
    lists, back = tmp_path / "lists", runs.copy(runs.random_run(), tmp_path / "back")
    lists.write_bytes(
        call(
            "translate",
            workdir,
            "--n_best=2",
            "--format=jsonl",
            stdin=b"Open the file.\n",
        ).out
    )
    record = json.loads(lists.read_text())
    assert (record["source_language"], record["target_language"]) == ("en", "de")
    error = call("rerank", f"--input={lists}", f"--reverse={back}@20").error
    assert error.startswith(
        f"--reverse {back}@20 translates from en into de, and the lists are from en"
        " into de: give a"
    )
    config = json.loads((back / "config.json").read_text())
    config["data"] |= {"source_language": "de", "target_language": "en"}
    (back / "config.json").write_text(json.dumps(config))
    assert call("rerank", f"--input={lists}", f"--reverse={back}@20").code == 0


@pytest.mark.parametrize("name", ["reverse", "language_model"])
def test_translations_that_a_model_cannot_read_come_last(name, call, tmp_path):
    """A few that are too long for a model do not end the work on the others: they
    are counted, and have no score.
    """
    long, file = "word " * 300, tmp_path / "lists"
    lists = [("a", [long, "b", ""]), ("c", [long, long]), ("d", ["e"])]
    records = [
        {
            "source": source,
            "translations": [
                {"text": text, "score": -float(place)}
                for place, text in enumerate(texts)
            ],
        }
        for source, texts in lists
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    outcome = call(
        "rerank", f"--input={file}", f"--{name}={runs.random_run()}", "--format=jsonl"
    )
    assert outcome.code == 0
    assert (
        outcome.err
        == f"jaxformer: warning: 3 of 6 translations have no score {name} and come"
        f" last: {runs.random_run()} has too few positions for them or their"
        " sources\n"
    )
    found = [json.loads(line)["translations"] for line in outcome.lines]
    assert [[each["text"] for each in texts] for texts in found] == [
        ["b", long, ""],
        [long, long],
        ["e"],
    ]
    scores = [[each["scores"][name] for each in texts] for texts in found]
    assert [[score is None for score in row] for row in scores] == [
        [False, True, True],
        [True, True],
        [False],
    ]


# Shortlists


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """A run whose training text is a few hundred pairs."""
    run = runs.copy(runs.random_run(), tmp_path_factory.mktemp("listed") / "run")
    pairs = runs.pairs()[:200]
    (run / "train.tsv").write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    )
    config = json.loads((run / "config.json").read_text())
    config["data"]["train"] = f"tsv:{run / 'train.tsv'}"
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_shortlist(call, listed, lines):
    """It is learned from the training text, kept with the run, and used where it is
    asked for.
    """
    assert (
        "make one: jaxformer shortlist"
        in call("translate", f"--workdir={listed}", "--shortlist", stdin=b"a\n").error
    )
    outcome = call("shortlist", f"--workdir={listed}", "--first=20", "--best=5")
    assert outcome.code == 0
    record = json.loads(outcome.lines[0])
    translator = Translator.load(listed)
    found = Shortlist.load(listed / "shortlist.npz", translator.vocabularies.hash)
    assert record["vocabulary"] == 400
    assert 20 <= record["tokens_per_sentence"] < 200
    assert found.best.shape == (400, 5)
    assert len(found.first) <= 24
    vocabulary = translator.vocabularies.target
    counts = Counter(
        token for pair in runs.pairs()[:200] for token in vocabulary.encode(pair.target)
    )
    assert {token for token, _ in counts.most_common(10)} <= set(found.first.tolist())

    plain = call("translate", f"--workdir={listed}", stdin=encode(lines)).lines
    translator.shortlist = found
    assert call(
        "translate", f"--workdir={listed}", "--shortlist", stdin=encode(lines)
    ).lines == translator.translate(lines)
    assert plain != translator.translate(lines)


def test_evaluate_with_a_shortlist(call, listed, lines):
    """The result has an entry of its own, which says so."""
    call("shortlist", f"--workdir={listed}")
    for name in ("source", "reference"):
        (listed / name).write_bytes(encode(lines))
    files = [f"--{name}={listed / name}" for name in ("source", "reference")]
    assert (
        call(
            "evaluate", f"--workdir={listed}", "--shortlist", "--metrics=bleu", *files
        ).code
        == 0
    )
    assert [
        name.split()[-1] for name in json.loads((listed / "results.json").read_text())
    ] == ["shortlist=True"]


def test_a_shortlist_of_nothing_is_refused(call, listed):
    """Numbers below 1 are no list."""
    assert (
        "argument --best: must be at least 1, not 0"
        in call("shortlist", f"--workdir={listed}", "--best=0").error
    )
