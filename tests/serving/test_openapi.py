"""The OpenAPI document is valid and has the routes of the server."""

from __future__ import annotations

import jsonschema
import pytest
from openapi_spec_validator import validate
from serving.asgi import ask, post, served
from serving.fake_service import FakeService

from jaxformer.serving.app import make_routes
from jaxformer.serving.openapi import make_document


@pytest.mark.parametrize("pairs", [(), (("en", "de"), ("de", "en"))])
def test_the_document_is_valid(pairs):
    """By the schema of OpenAPI 3.1, and the schemas in it by that of JSON Schema."""
    validate(make_document(FakeService(*pairs), "/mt"))


def test_the_document_has_each_route_and_method_and_no_other():
    """HEAD is that of each GET."""
    paths = make_document(FakeService())["paths"]
    documented = {
        (path, method.upper()) for path, own in paths.items() for method in own
    }
    served = {
        (route.path, method)
        for route in make_routes(FakeService(), page=False)
        for method in route.methods - {"HEAD"}
    }
    assert served == documented


def test_limits_and_languages_are_those_of_the_server():
    """So that a program that keeps to the document is not refused."""
    document = make_document(FakeService(("en", "de"), ("de", "pt_BR")), "/mt")
    assert document["servers"] == [{"url": "/mt"}]
    body = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields["source"]["enum"] == ["auto", "de", "en"]
    assert fields["target"]["enum"] == ["de", "pt-BR"]
    text, texts = fields["q"]["anyOf"]
    assert (text["maxLength"], texts["maxItems"]) == (5000, 50)
    query = document["paths"]["/v2/translate"]["get"]["parameters"]
    assert query[1]["schema"]["enum"] == ["DE", "PT-BR"]
    assert [own["name"] for own in query if own["required"]] == ["text", "target_lang"]
    assert document["paths"]["/ready"]["get"]["responses"].keys() >= {"200", "503"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/translate", {"q": "a", "source": "en", "target": "de"}),
        (
            "post",
            "/translate",
            {"q": ["a"], "source": "auto", "target": "de", "alternatives": 2},
        ),
        ("get", "/languages", None),
        ("post", "/v2/translate", {"text": "a", "target_lang": "DE"}),
        ("get", "/v2/languages", None),
        ("post", "/v1/translate", {"text": "a", "n_best": 2, "alignment": "soft"}),
        ("post", "/v1/translate", {"texts": ["a", "nothing"]}),
        ("post", "/v1/attention", {"text": "a b", "k": 2}),
        ("post", "/v1/alternatives", {"text": "a b", "prefix": "A"}),
        ("post", "/v1/score", {"pairs": [{"text": "a", "translation": "A"}]}),
        ("get", "/v1/models", None),
        ("get", "/ready", None),
    ],
)
def test_answers_are_what_the_document_says(method, path, body):
    """And what it says of a request is true of this one."""
    operation = make_document(FakeService())["paths"][path][method]
    if body:
        content = operation["requestBody"]["content"]["application/json"]
        jsonschema.validate(body, content["schema"])
    found = served(lambda app, _: ask(app, method.upper(), path, body))
    assert found.status == 200
    content = operation["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(found.json, content["schema"])


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/v1/translate"])
def test_errors_are_what_the_document_says(path):
    operation = make_document(FakeService())["paths"][path]["post"]
    content = operation["responses"]["4XX"]["content"]["application/json"]
    jsonschema.validate(post(path, {"n_best": 1e9}).json, content["schema"])
