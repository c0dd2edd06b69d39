"""The OpenAPI document is valid and has the routes of the server."""

from __future__ import annotations

import pytest
from openapi_spec_validator import validate
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
    document = make_document(FakeService(("en", "de"), ("de", "pt_BR")))
    body = document["paths"]["/translate"]["post"]["requestBody"]["content"]
    fields = body["application/json"]["schema"]["properties"]
    assert fields["source"]["enum"] == ["auto", "de", "en"]
    assert fields["target"]["enum"] == ["de", "pt-BR"]
    text, texts = fields["q"]["anyOf"]
    assert (text["maxLength"], texts["maxItems"]) == (5000, 50)
    query = document["paths"]["/v2/translate"]["get"]["parameters"]
    assert query[1]["schema"]["enum"] == ["DE", "PT-BR"]
