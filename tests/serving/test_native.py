"""The routes under ``/v1`` that translate, score and look into a model."""

import pytest
from serving.asgi import MODEL, post
from serving.fake_engine import FakeEngine

from jaxformer.serving import service
from jaxformer.serving.protocols import native


def test_a_text_is_translated_with_what_the_search_knows():
    answer = post("/v1/translate", {"text": "One two. Three."})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    shown = answer.json
    (done,) = shown["translations"]
    assert (done["text"], done["alternatives"], done["unmet"]) == (
        "ONE TWO. THREE.",
        [],
        [],
    )
    assert [each["source_span"] for each in done["sentences"]] == [[0, 8], [9, 15]]
    assert [each["source"] for each in done["sentences"]] == ["One two.", "Three."]
    ((hypothesis,), _) = (each["hypotheses"] for each in done["sentences"])
    assert hypothesis["tokens"] == ["ONE", "TWO."]
    assert "alignment" not in hypothesis
    assert shown["model"] == MODEL
    assert 0 <= shown["queue_seconds"] <= shown["seconds"]


def test_a_model_within_a_language_translates():
    """The protocols of others give such a text back."""
    for path, body, found in (
        ("/v1/translate", {"text": "a"}, '"text":"A"'),
        ("/translate", {"q": "a", "source": "en", "target": "en"}, '"a"'),
        ("/v2/translate", {"text": "a", "target_lang": "EN"}, '"text":"a"'),
    ):
        answer = post(path, body, FakeEngine(("en", "en")))
        assert answer.status == 200
        assert found in answer.body.decode()


def test_each_text_has_its_own_prefix_and_phrases():
    body = {
        "texts": ["a b", "c d"],
        "source": "en",
        "target": "de",
        "prefixes": ["", "X"],
        "required": [["impossible"], []],
    }
    first, second = post("/v1/translate", body).json["translations"]
    assert (first["text"], first["unmet"]) == ("A B", ["impossible"])
    assert (second["text"], second["unmet"]) == ("X D", [])


def test_links_of_words_come_on_request():
    hard, soft = (
        post("/v1/translate", {"text": "a b", "n_best": 2, "alignment": how}).json[
            "translations"
        ][0]["sentences"][0]["hypotheses"]
        for how in (True, "soft")
    )
    assert len(hard) == len(soft) == 2
    assert hard[0]["word_alignment"] == "0-0 1-1"
    assert "weights" not in hard[0]
    assert soft[0]["weights"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("path", ["translate", "translate/stream"])
def test_an_answer_has_not_too_many_weights(monkeypatch, path):
    """They grow with the square of a sentence that is translated in parts."""
    monkeypatch.setattr(native, "_MOST_WEIGHTS", 7)
    body = {"text": "a b", "n_best": 2, "alignment": True}
    assert b"too_many" not in post(f"/v1/{path}", body).body
    answer = post(f"/v1/{path}", {**body, "alignment": "soft"})
    assert b'"too_many_tokens"' in answer.body
    assert b'"given":8' in answer.body


@pytest.mark.parametrize("format", ["text", "html"])
def test_the_words_of_a_sentence_without_end_are_not_linked(monkeypatch, format):
    """All of it is translated; only a request for the links is refused."""
    monkeypatch.setattr(service, "MOST_ALIGNED", 503)
    text = " ".join(f"w{number}" for number in range(504))
    body = {"text": text, "format": format, "n_best": 2}
    (done,) = post("/v1/translate", body).json["translations"]
    assert done["text"] == text.upper()
    answer = post("/v1/translate", {**body, "alignment": True})
    assert (answer.status, answer.json["error"]["given"]) == (422, 504)


def test_too_many_sentences_are_refused_before_they_are_encoded(monkeypatch):
    monkeypatch.setattr(FakeEngine, "encode", None)
    body = {"texts": ["One.\n" * 20] * 2}
    answer = post("/v1/translate", body, queue=30)
    assert (answer.status, answer.json["error"]["given"]) == (413, 40)


def test_a_fault_tells_nothing_but_an_id():
    answer = post("/v1/translate", {"text": "poison"})
    error = answer.json["error"]
    assert (answer.status, error["code"]) == (500, "internal")
    assert "poison" not in answer.body.decode()
    assert answer.headers["x-request-id"] in error["message"]


def test_attention_is_of_the_translation_if_none_is_given():
    own = post("/v1/attention", {"text": "a b"}).json
    assert (own["translation"], own["target_tokens"]) == ("A B", ["A", "B"])
    assert own["cross"] == [[[[0.3333, 0.3333], [0.3333, 0.3333]]]]
    assert own["candidates"] == [[], []]
    given = {"text": "a b", "translation": "X", "k": 2}
    shown = post("/v1/attention", given).json
    assert (shown["target_tokens"], shown["read_tokens"]) == (["X"], ["<s>"])
    assert shown["candidates"] == [[{"token": "X", "probability": 0.5}] * 2]


def test_words_continue_a_prefix():
    shown = post("/v1/alternatives", {"text": "a b", "prefix": "A", "k": 1}).json
    assert shown["alternatives"] == [{"word": "B", "probability": 0.5, "text": "A B"}]


def test_pairs_are_scored():
    pairs = [{"text": "a", "translation": "A B"}, {"text": "b", "translation": "B"}]
    shown = post("/v1/score", {"pairs": pairs}).json
    assert [each["tokens"] for each in shown["scores"]] == [2, 1]
    assert shown["scores"][0]["log_probability"] == -1.5
    error = post("/v1/score", {"pairs": [{"text": "a"}]}).json["error"]
    assert (error["code"], error["field"]) == ("missing", "pairs[0].translation")
