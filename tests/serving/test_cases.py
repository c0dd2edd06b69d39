"""Texts and requests of other programs, as tables: ``cases/*.jsonl``.

A case with a reason fails until the fault that the reason names is mended.
"""

import json
from pathlib import Path

import pytest
from serving.asgi import ask, run_ready, translate
from serving.fake_engine import FakeEngine
from serving.fake_service import FakeService

from jaxformer.serving.app import make_app
from jaxformer.serving.texts import Query

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


@pytest.mark.parametrize("case", read("texts.jsonl"))
def test_what_is_kept_is_hidden_from_the_model(case):
    """All else is translated, into capitals."""
    expected, rest = "", case["text"]
    for part in case["kept"]:
        before, rest = rest.split(part, 1)
        expected += before.upper() + part
    engine, form = FakeEngine(), case.get("format", "text")
    (done,) = translate(Query(case["text"], format=form), engine=engine)
    assert done.text == expected + rest.upper()
    seen = " ".join(text for _, texts in engine.batches for text in texts)
    assert not [part for part in case.get("hidden", case["kept"]) if part in seen]


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
    service = FakeService(("en", "de"), ("de", "en"), ("en", "pt_BR"))
    app = make_app(service, origins=[ORIGIN])
    asked = *case["request"].split(" "), case.get("body")
    headers = case.get("headers", {})
    answer = run_ready(service, lambda: ask(app, *asked, **headers))
    assert answer.status in case["status"]
    assert "answer" not in case or matches(answer.json, case["answer"])
