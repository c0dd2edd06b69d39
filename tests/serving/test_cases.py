"""Requests of other programs, as a table: ``cases/requests.jsonl``.

A case with a reason fails until the fault that the reason names is mended.
"""

import json
from pathlib import Path

import pytest
from serving.asgi import ask, run_ready
from serving.fake_service import FakeService

from jaxformer.serving.app import make_app

CASES = Path(__file__).with_name("cases")
ORIGIN = "https://example.org"


def read(name):
    cases = map(json.loads, (CASES / name).read_text("utf-8").splitlines())
    fails = pytest.mark.xfail(raises=AssertionError, strict=True)
    return [
        pytest.param(
            case, marks=[fails(reason=case["reason"])] if "reason" in case else []
        )
        for case in cases
    ]


def matches(found, expected):
    """Whether an answer has all that is expected: ``*`` is any rest of a text, and an
    expected null no field.
    """
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            matches(found.get(name), own) for name, own in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(matches, found, expected))
    if isinstance(expected, str) and expected.endswith("*"):
        return isinstance(found, str) and found.startswith(expected[:-1])
    return found == expected


@pytest.mark.parametrize("case", read("requests.jsonl"))
def test_requests_are_answered_as_the_other_servers_do(case):
    """LibreTranslate's and DeepL's clients ask for them."""
    pairs = ("en", "de"), ("de", "en"), ("en", "pt_BR")
    service = FakeService(*pairs, cors=[ORIGIN])
    app = make_app(service)
    asked = *case["request"].split(" "), case.get("body")
    headers = case.get("headers", {})
    answer = run_ready(service, lambda: ask(app, *asked, **headers))
    assert answer.status in case["status"]
    assert "answer" not in case or matches(answer.json, case["answer"])
