"""Predictions of encoder-only models, against the model row by row."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from kinds import LINES, drawn_run, shared_data, shared_run

from jaxformer.data.examples import encode_examples, join_texts
from jaxformer.data.frame import ENCODER
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import MASK, Vocabularies, Vocabulary
from jaxformer.data.windows import Window, question_windows
from jaxformer.errors import InputError
from jaxformer.evaluation.encoder_logits import softmax
from jaxformer.evaluation.predictor import Predictor
from jaxformer.translation import models
from jaxformer.translation.encoder_rows import best_span, with_mask


@pytest.fixture(autouse=True)
def _one_device(monkeypatch):
    """Programs for eight devices compile longer."""
    monkeypatch.setattr(models, "mesh_of_devices", lambda: None)


@functools.cache
def load(kind):
    return Predictor.load(shared_run(kind))


@functools.partial(jax.jit, static_argnums=(0, 1))
def outputs(model, method, params, tokens):
    def run(module):
        return getattr(module, method)(module(tokens))

    return model.apply({"params": params}, method=run)


def alone(predictor, tokens, method):
    """The output of a head for one row without padding."""
    row = np.array([tokens], np.int32)
    return np.asarray(outputs(predictor.model, method, predictor.params, row))[0]


def test_labels():
    """A text has the same prediction among others and alone, as a row in its frame. A
    blank one has none; a long one is cut, and counted.
    """
    predictor = load("labelled")
    texts = [*LINES[:5], "  ", "a\tb", " ".join(LINES)]
    cut = []
    found = predictor.predict(texts, notice=cut.append)
    assert predictor.predict(texts) == found
    assert found[5] == {"label": None, "probabilities": None}
    pairs = [Pair(text, "0") for text in texts if text.strip()]
    given = pairs, predictor.vocabularies, predictor.config.data
    examples = encode_examples(*given)
    assert cut == [examples.cut]
    rows = [found[index] for index in (*range(5), 6, 7)]
    for each, tokens in zip(rows, examples.pairs.source, strict=True):
        shares = softmax(alone(predictor, tokens, "classify"))
        own = [*each["probabilities"].values()]
        np.testing.assert_allclose(own, shares, atol=2e-5)
        assert each["label"] == str(shares.argmax())
        assert [*each["probabilities"]] == ["0", "1", "2"]
    with pytest.raises(InputError, match="text 2 has 3 texts, separated by tabs"):
        predictor.predict(["a", "a\tb\tc"])


def test_numbers():
    predictor = load("scored")
    (found, nothing) = predictor.predict([LINES[0], ""])
    assert nothing == {"value": None}
    pair = Pair(LINES[0], "0")
    given = [pair], predictor.vocabularies, predictor.config.data
    (tokens,) = encode_examples(*given).pairs.source
    (expected,) = alone(predictor, tokens, "classify")
    assert found["value"] == pytest.approx(float(expected), abs=1e-4)


def test_tags():
    """Every word has one tag, that of its first piece, also in texts that are longer
    than a row. Words of no piece keep their place.
    """
    predictor = load("tagged")
    texts = ["Ein Hund \x01 läuft .", "", " ".join(LINES[:4])]
    found = predictor.predict(texts)
    for text, each in zip(texts, found, strict=True):
        assert each["words"] == text.split()
        assert len(each["tags"]) == len(each["words"])
    labels = predictor.vocabularies.target
    pair = Pair(texts[0], " ".join(["O"] * 5))
    given = [pair], predictor.vocabularies, predictor.config.data
    encoded = encode_examples(*given).pairs
    (tokens,), (targets,) = encoded.source, encoded.target
    logits = alone(predictor, tokens, "tag")[targets != labels.pad_id]
    assert found[0]["tags"] == labels.pieces(logits.argmax(-1))
    for entity in found[2]["entities"]:
        words = found[2]["words"][entity["start"] : entity["end"]]
        assert entity["text"] == " ".join(words)
        assert found[2]["tags"][entity["start"]] == f"B-{entity['label']}"


def test_best_span():
    """It is the best of all that a loop finds: in the text, forwards, of 30 tokens at
    most, and neither begins nor ends at a token without a character.
    """
    rng = np.random.default_rng(0)
    places = [(3 * i, 3 * i + (i % 5 > 0)) for i in range(50)]
    window = Window([0] * 60, 7, 0, places, [i % 3 > 0 for i in range(50)])
    for _ in range(20):
        logits = rng.normal(size=(2, 60)).astype(np.float32)
        logits[:, :7] = logits[:, 57:] = 9  # the question, and what ends the row
        candidates = [
            (float(logits[0, 7 + i]) + float(logits[1, 7 + j]), 3 * i, 3 * j + 1)
            for i in range(50)
            for j in range(i, min(i + 30, 50))
            if i % 3 and i % 5 and j % 5
        ]
        assert best_span(logits, window) == pytest.approx(max(candidates))
    nothing = Window([0] * 9, 7, 0, [(2, 2)], [True])
    assert best_span(np.zeros((2, 9)), nothing) is None


def test_answers():
    """The answer is cut from the text as it is written, and is the best of all
    windows.
    """
    predictor = load("spans")
    context = "  ".join(LINES[:4])
    found, short, blank = predictor.predict(
        [f"Which?\t{context}", f"Which?\t{LINES[0]}", "Which?\t "]
    )
    assert found["answer"] == context[found["start"] : found["end"]]
    assert short["answer"] in LINES[0]
    assert blank == dict.fromkeys(("answer", "start", "end", "score", "no_answer"))
    windows = question_windows(
        *(predictor.vocabularies.source.encode("Which?"), context),
        *(predictor.vocabularies.source, predictor.frame),
        *(predictor.longest, predictor.config.data.stride),
    )
    assert len(windows) > 1
    scores = [alone(predictor, window.tokens, "find_span") for window in windows]
    none = min(float(each[0].sum()) for each in scores)
    assert found["no_answer"] == pytest.approx(none, abs=1e-4)
    spans = map(best_span, [each.T for each in scores], windows)
    best = max(filter(None, spans))
    assert (found["score"], found["start"], found["end"]) == pytest.approx(
        best, abs=1e-4
    )
    with pytest.raises(InputError, match="text 1 is no question and text"):
        predictor.predict(["Which?"])


def test_masked_words():
    """Words for a mask are no special pieces, and have the probabilities of the model.
    A blank before the mask says nothing.
    """
    predictor = load("masked")
    texts = [f"Ein {MASK} Hund.", f"Ein{MASK} Hund.", MASK]
    found = predictor.predict(texts, top=250)
    assert found[0] == found[1] != found[2]
    vocabulary = predictor.vocabularies.source
    tokens, place = with_mask(texts[0], vocabulary, predictor.frame)
    shares = softmax(alone(predictor, tokens, "words")[place])
    special = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.mask_id}
    special |= {vocabulary.bos_id, vocabulary.eos_id}
    own = [share for _, share in found[0]["candidates"]]
    rest = np.sort(np.delete(shares, [*special]))[::-1]
    np.testing.assert_allclose(own, rest, atol=2e-5)
    assert len(predictor.predict(texts[:1])[0]["candidates"]) == 5
    with pytest.raises(InputError, match="text 2 has no <mask>: give each text on"):
        predictor.predict([MASK, "nothing"])
    with pytest.raises(InputError, match="text 1 has 2 <mask>"):
        predictor.predict([MASK + MASK])
    with pytest.raises(InputError, match=r"tokens and the run takes 24 \(data.max_le"):
        predictor.predict([" ".join(LINES) + MASK])


def test_the_next_text(tmp_path):
    """Two texts have the probability that the second follows, next to texts with a
    mask; a model whose second head was not trained has none.
    """
    predictor = load("documents")
    two = f"{LINES[0]}\t{LINES[1]}"
    found = predictor.predict([MASK, two, "\t", f"a\t{MASK}"], top=1)
    assert [*map(list, found)] == [["candidates"], ["next"], ["next"], ["candidates"]]
    assert found[2] == {"next": None}
    source = predictor.vocabularies.source
    texts = source.encode_batch([LINES[0], LINES[1]])
    tokens, _ = join_texts(*texts, predictor.frame, 24)
    share = softmax(alone(predictor, tokens, "next"))[0]
    assert found[1]["next"] == pytest.approx(share, abs=2e-5)
    with pytest.raises(InputError, match=r"2 has no <mask>: .*two texts and a tab"):
        predictor.predict([MASK, "nothing"])
    with pytest.raises(InputError, match="text 2 has 3 texts, separated by tabs"):
        predictor.predict([MASK, "a\tb\tc"])
    with pytest.raises(InputError, match=r"has no <mask>: give each text one$"):
        load("masked").predict([two])


@pytest.mark.parametrize("model", ["bpe", "bytes"])
def test_tokens_beside_a_mask(model):
    """A mask in place of a word of one piece leaves all other tokens as they are."""
    vocabulary = Vocabulary.train(LINES, 400, model=model, mask=True)
    frame = ENCODER.fill(Vocabularies(vocabulary, vocabulary, ENCODER), ("", ""))
    compared = 0
    for line in LINES:
        words = line.split(" ")
        for place, word in enumerate(words):
            core = word.rstrip(".,")
            pieces = vocabulary.encode(f" {core}" if place else core)
            if not core or len(pieces) != 1:
                continue
            whole = vocabulary.encode(line)
            own = vocabulary.encode("".join(f"{each} " for each in words[:place])[:-1])
            if whole[: len(own) + 1] != [*own, *pieces]:
                continue  # the line is segmented otherwise there
            masked = [*words[:place], MASK + word[len(core) :], *words[place + 1 :]]
            tokens, at = with_mask(" ".join(masked), vocabulary, frame)
            assert tokens[at] == vocabulary.mask_id
            tokens[at] = pieces[0]
            assert tokens[1:-1] == whole
            compared += 1
    assert compared > 50


def test_parts_that_were_never_trained(tmp_path):
    """A head that was newly drawn predicts nothing before a step changed it."""
    record = {"drawn": ["pooler", "classifier"]}
    first = tmp_path / "first"
    drawn_run("labelled", shared_data()["labelled"], first, step=0, record=record)
    fault = "pooler, classifier of checkpoint 0 of .* was newly drawn and never trained"
    with pytest.raises(InputError, match=fault):
        Predictor.load(first)
    frozen = {"frozen": "classifier/*"}
    second = tmp_path / "second"
    given = {"record": record, "training": frozen}
    drawn_run("labelled", shared_data()["labelled"], second, **given)
    with pytest.raises(InputError, match=r"classifier of checkpoint 1 of .* was newly"):
        Predictor.load(second)
    third = drawn_run(
        "labelled", shared_data()["labelled"], tmp_path / "third", record=record
    )
    assert Predictor.load(third).checkpoint == 1


@pytest.mark.parametrize("kind", ["masked", "documents", "labelled", "tagged", "spans"])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_precisions(kind, precision):
    """Heads are computed in every precision: the logits are near those of float32."""
    predictor = load(kind)
    other = Predictor.load(predictor.directory, precision=precision)
    rows = [[2, *range(5, 15), 3], [2, 8, 9, 3]]
    places = [2, 1] if kind in ("masked", "documents") else None
    for given in (places, None) if kind == "documents" else (places,):
        found, small = (dict(each.outputs(rows, given)) for each in (predictor, other))
        for row in range(2):
            own = np.where(found[row] < -1e29, 0, found[row])
            near = np.where(small[row] < -1e29, 0, small[row])
            assert 0 < np.abs(own - near).max() < 0.3 * np.abs(own).max()


def test_all_devices_predict(monkeypatch):
    """Each has a share of the rows, which have the same logits."""
    predictor = load("labelled")
    monkeypatch.undo()
    shared = Predictor.load(predictor.directory)
    assert shared.mesh is not None
    assert shared.mesh.size == len(jax.local_devices()) > 1
    found = (dict(each.outputs([[2, 5, 3]] * 5)) for each in (predictor, shared))
    for one, other in zip(*(each.values() for each in found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_models_that_predict_no_labels():
    config = load("labelled").config
    changes = {"num_decoder_layers": 1, "head": "none", "tied_embeddings": "none"}
    model = dataclasses.replace(config.model, **changes)
    with pytest.raises(InputError, match="this run has a decoder, and predict is for"):
        Predictor(_Config(model), {}, load("labelled").vocabularies)


class _Config:
    def __init__(self, model):
        self.model = model
