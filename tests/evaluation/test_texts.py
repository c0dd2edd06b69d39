"""Scores of runs of one stack, against sums over single tokens, and by the commands."""

import dataclasses
import functools
import json
import math

import jax
import numpy as np
import pytest
from kinds import LINES, shared_run

import runs
from jaxformer.data.corpus import load_evaluation
from jaxformer.data.examples import encode_examples
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.evaluation import texts
from jaxformer.evaluation.perplexity import perplexity
from jaxformer.evaluation.predictor import Predictor
from jaxformer.evaluation.text_scores import perplexity_in_windows, score_texts
from jaxformer.runs import config as configuration
from jaxformer.translation import models
from jaxformer.translation.translator import Translator


@pytest.fixture(autouse=True)
def _one_device(monkeypatch):
    """Programs for eight devices compile longer."""
    monkeypatch.setattr(models, "mesh_of_devices", lambda: None)


@pytest.fixture
def language_model():
    translator = Translator.load(shared_run("text"), objective="causal")
    data = configuration.load(shared_run("text") / "config.json").data
    return translator, data


@functools.partial(jax.jit, static_argnums=0)
def log_probabilities(model, params, row):
    return jax.nn.log_softmax(model.apply({"params": params}, row[None])[0])


def row_scores(translator, tokens):
    row = np.full(64, translator.model.config.pad_id, np.int32)
    row[: len(tokens)] = tokens  # one shape: what follows cannot be seen
    found = log_probabilities(translator.model, translator.params, row)
    return np.asarray(found)[np.arange(len(tokens)), tokens].tolist()


@pytest.mark.parametrize("stride", [None, 5, 1])
def test_each_token_counts_once(language_model, stride):
    """The sum is that of a loop over windows of one stream, whose first token follows
    nothing.
    """
    translator, data = language_model
    data = dataclasses.replace(data, window=11)
    pairs = [Pair(line, line) for line in LINES[:3]]
    stream = encode_examples(pairs, translator.vocabularies, data).pairs
    tokens, step, total, end = stream.target.tokens.tolist(), stride or 11, 0.0, 0
    for start in range(0, len(tokens), step):
        own = row_scores(translator, tokens[start : start + 11])
        total += sum(own[end - start :])
        end = start + len(own)
        if end == len(tokens):
            break
    found = perplexity_in_windows(translator, pairs, data, stride)
    assert found["log_probability"] == pytest.approx(total, rel=1e-4)
    assert (found["window"], found["stride"]) == (11, step)
    assert found["tokens"] == len(tokens)
    size = sum(len(line.encode()) for line in LINES[:3])
    words = sum(len(line.split()) + 1 for line in LINES[:3])  # and its end
    assert (found["bytes"], found["words"], found["texts"]) == (size, words, 3)
    nats = -found["log_probability"]
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, abs=1e-5)
    each = found["nll"], math.log(found["word_perplexity"])
    assert each == pytest.approx((nats / len(tokens), nats / words), abs=1e-5)


def test_texts_of_their_own(language_model):
    """Without data.window no text sees another: the perplexity is that of the scores of
    the single texts.
    """
    translator, data = language_model
    lines = [line for line in LINES[:30] if len(line) < 60]
    data = dataclasses.replace(data, max_length=128)
    scores = score_texts(translator, lines)
    encoded = translator.codec.encode_targets(lines)
    for score, tokens in zip(scores, encoded, strict=True):
        assert score.tokens == len(tokens)
        expected = sum(row_scores(translator, tokens))
        assert score.log_probability == pytest.approx(expected, rel=1e-4)
    pairs = [Pair(line, line) for line in lines]
    found = perplexity_in_windows(translator, pairs, data)
    total = sum(score.log_probability for score in scores)
    assert found["log_probability"] == pytest.approx(total, rel=1e-5)
    summary = perplexity(scores, lines).to_record()
    assert found["words"] == summary["words"]
    each = found["word_perplexity"], summary["word_perplexity"]
    assert each[0] == pytest.approx(each[1], rel=1e-4)
    with pytest.raises(InputError, match="a stride of 129 tokens would leave some out"):
        perplexity_in_windows(translator, pairs, data, 129)


def test_masks_do_not_depend_on_batches():
    """The same words are masked in batches of any size, and the rate holds."""
    predictor = Predictor.load(shared_run("masked"))
    pairs, _ = load_evaluation(predictor.config.data.test, predictor.config.data)
    found = texts.score_encoder(predictor, pairs)[0]
    config = predictor.config
    small = dataclasses.replace(config.decoding, batch_size=4)
    predictor.config = dataclasses.replace(config, decoding=small)
    again = texts.score_encoder(predictor, pairs)[0]
    assert again.pop("mask_unit") == found.pop("mask_unit") == "piece"
    assert again == pytest.approx(found, rel=1e-4)
    given = pairs, predictor.vocabularies, config.data
    real = encode_examples(*given).pairs.target_lengths - 2
    chosen = np.round(np.float32(0.15) * real.astype(np.float32))
    assert found["words"] == np.maximum(1, chosen).sum()
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-4)


def test_words_with_blanks_of_their_own(tmp_path):
    """No-break and other blanks are part of a word, in data and in predictions."""
    predictor = Predictor.load(shared_run("tagged"))
    file = tmp_path / "tags"
    file.write_text("New York\tB-X\nBig\u2003Ben\tO\n\n10\xa0000 O\n", "utf-8")
    pairs, _ = load_evaluation(f"conll:{file}", predictor.config.data)
    assert texts.score_encoder(predictor, pairs)[0]["words"] == 3
    found = predictor.predict(["10\xa0000  \tkm "])[0]
    assert found["words"] == ["10\xa0000", "km"]


def test_a_text_without_tokens_is_no_number():
    """It has no part in correlations and errors, the record counts it, and its
    prediction is an empty line.
    """
    predictor = Predictor.load(shared_run("scored"))
    pairs, _ = load_evaluation(predictor.config.data.test, predictor.config.data)
    pairs = pairs[:5]
    expected, lines = texts.score_encoder(predictor, pairs)
    empty = Pair("\x01", "4.5")
    assert predictor.predict([empty.source]) == [{"value": None}]
    found, more = texts.score_encoder(predictor, [*pairs, empty])
    assert found.pop("without_tokens") == 1
    assert expected.pop("without_tokens") == 0
    assert found == expected | {"sentences": 6}
    assert more == [*lines, ""]
    with pytest.raises(InputError, match="none of the texts has a token"):
        texts.score_encoder(predictor, [empty])


SCORES = {
    "text": {"perplexity", "word_perplexity", "bits_per_byte", "window", "stride"},
    "masked": {"loss", "perplexity", "accuracy", "words", "mask_unit"},
    "documents": {"loss", "accuracy", "next_accuracy", "next_loss", "pairs"},
    "labelled": {"accuracy", "macro_f1", "matthews"},
    "scored": {"pearson", "spearman", "mean_squared_error"},
    "tagged": {"accuracy", "precision", "recall", "f1", "words"},
    "spans": {"exact_match", "f1", "without_answer"},
}


@pytest.mark.parametrize("kind", SCORES)
def test_evaluate(kind):
    """The record goes to results.json, and the predictions next to it."""
    directory = shared_run(kind)
    outcome = runs.call("evaluate", f"--workdir={directory}")
    assert outcome.code == 0, outcome
    printed = json.loads(outcome.out)
    assert SCORES[kind] <= printed.keys()
    (stored,) = json.loads((directory / "results.json").read_bytes()).values()
    assert printed.items() <= stored.items()
    if kind in ("text", "masked", "documents"):
        assert "hypotheses" not in stored
        return
    lines = (directory / stored["hypotheses"]).read_text().split("\n")[:-1]
    assert len(lines) == stored["sentences"]
    if kind == "labelled":
        config = configuration.load(directory / "config.json").data
        pairs, _ = load_evaluation(config.test, config)
        right = sum(one == pair.target for one, pair in zip(lines, pairs, strict=True))
        assert stored["accuracy"] == pytest.approx(right / len(pairs), abs=1e-6)


def test_predict(tmp_path):
    """The command prints what the class predicts; it names the line that is wrong."""
    directory = f"--workdir={shared_run('masked')}"
    given = b"Ein <mask> Hund.\n<mask>\n"
    outcome = runs.call("predict", directory, "--top=2", stdin=given)
    assert (outcome.code, outcome.err) == (0, "")
    predictor = Predictor.load(shared_run("masked"))
    expected = predictor.predict(given.decode().splitlines(), top=2)
    assert [json.loads(line) for line in outcome.lines] == expected
    file = tmp_path / "texts"
    file.write_text("<mask>\nnothing\n")
    outcome = runs.call("predict", directory, f"--input={file}")
    assert outcome.error == f"{file}, line 2 has no <mask>: give each text one"
    long = f"{' '.join(LINES)}\n".encode()
    outcome = runs.call("predict", f"--workdir={shared_run('labelled')}", stdin=long)
    assert outcome.err == (
        "jaxformer: warning: 1 texts were cut to data.max_length=24 tokens, as in"
        " training\n"
    )


def test_score_texts(tmp_path):
    """A line of output for each text; a source is refused."""
    file = tmp_path / "texts"
    file.write_text("\n".join([*LINES[:3], ""]) + "\n")
    directory, target = f"--workdir={shared_run('text')}", f"--target={file}"
    outcome = runs.call("score", directory, target)
    scores = score_texts(
        Translator.load(shared_run("text"), objective="causal"), [*LINES[:3], ""]
    )
    lines = [f"{score.log_probability:.6f}\t{score.tokens}" for score in scores]
    assert (outcome.code, outcome.lines) == (0, lines)
    long = tmp_path / "long"
    long.write_text(f"{LINES[0]}\n{'word ' * 5000}\n{LINES[1]}\n")
    outcome = runs.call("score", directory, f"--target={long}")
    assert outcome.lines == [lines[0], "\t", lines[1]]
    assert "1 of 3 pairs are too long" in outcome.err
    error = runs.call("score", directory, f"--target={long}", "--strict").error
    assert error.startswith(f"{long}, line 2 has")
    error = runs.call("score", directory, target, f"--source={file}").error
    assert error.startswith("--source is for translations")
    error = runs.call("score", f"--workdir={runs.random_run()}", target).error
    assert error.startswith("score without a source needs one language model")


def test_options_of_other_runs():
    directory = f"--workdir={shared_run('labelled')}"
    error = runs.call("evaluate", directory, "--beam_size=2").error
    assert error.startswith("--beam_size is for translations")
    error = runs.call("evaluate", directory, "--stride=2").error
    assert error.startswith("a stride is for the windows of a language model")
    error = runs.call("evaluate", f"--workdir={runs.random_run()}", "--stride=2").error
    assert error == "--stride is for a language model, and this run translates"


def test_a_question_is_left_open_where_none_scores_higher():
    """And only if the data have questions without an answer."""
    found = [
        {"score": 1.0, "no_answer": 2.0, "answer": "a"},
        {"score": 2.0, "no_answer": 1.0, "answer": "b"},
    ]
    lacking, asked = Pair("?\ta", texts.NO_ANSWER), Pair("?\tb", "0 1")
    predictor = Predictor.load(shared_run("spans"))
    scores, answers = texts._answers(predictor, found, [lacking, asked])
    assert answers == ["", "b"]
    assert scores == {"exact_match": 1.0, "f1": 1.0, "without_answer": 1}
    assert texts._answers(predictor, found, [asked, asked])[1] == ["a", "b"]
