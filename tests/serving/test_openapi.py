"""The OpenAPI document is valid, and true of requests and answers."""

from __future__ import annotations

import warnings

import jsonschema
import pytest
from openapi_spec_validator import validate
from serving.asgi import ask, get, served

JSON = "application/json"


@pytest.fixture(scope="module")
def document():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # two operations of one name
        return get("/openapi.json", root_path="/mt").json


def test_the_document_is_valid(document):
    """By the schema of OpenAPI 3.1, and the schemas in it by that of JSON Schema."""
    validate(document)
    assert document["servers"] == [{"url": "/mt"}]


def schema_of(document, content):
    return {**content[JSON]["schema"], "components": document["components"]}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/translate", {"q": "a", "source": "en", "target": "de"}),
        (
            "post",
            "/translate",
            {"q": ["a"], "source": "en", "target": "de", "alternatives": 2},
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
def test_answers_are_what_the_document_says(document, method, path, body):
    """And what it says of a request is true of this one."""
    operation = document["paths"][path][method]
    if body:
        content = operation["requestBody"]["content"]
        jsonschema.validate(body, schema_of(document, content))
    found = served(lambda app, _: ask(app, method.upper(), path, body))
    assert found.status == 200
    content = operation["responses"]["200"]["content"]
    jsonschema.validate(found.json, schema_of(document, content))


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/v1/translate"])
def test_errors_are_what_the_document_says(document, path):
    operation = document["paths"][path]["post"]
    schema = schema_of(document, operation["responses"]["4XX"]["content"])
    found = served(lambda app, _: ask(app, "POST", path, {"n_best": 1e9}))
    jsonschema.validate(found.json, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"no": "error"}, schema)
