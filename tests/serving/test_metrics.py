"""The numbers and the log of a server: complete, bounded, and without secrets."""

import json
import logging

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from serving.asgi import ask, served
from serving.fake_engine import FakeEngine

from jaxformer.serving.access import make_key

TEXT = "very-secret"
NAMES = """
requests counter route status
request_duration_seconds histogram route
queue_sentences gauge
queue_duration_seconds histogram
requests_in_flight gauge
batch_sentences histogram kind
batch_padding_ratio histogram kind
batch_duration_seconds histogram kind
sentences counter source target
source_tokens counter source target
target_tokens counter source target
characters counter source target
rejected counter reason
cancelled counter
compilations counter when
model_info gauge source target checkpoint version
"""


async def count(app, accept=""):
    return await ask(app, "GET", "/metrics", accept=accept)


def test_all_numbers_have_their_names_types_and_labels():
    """As the documentation lists them, and those of the process."""

    async def work(app, _):
        await ask(app, "POST", "/v1/translate", {"text": "One two. Three."})
        await ask(app, "POST", "/v1/translate", {"texts": ["a"] * 60})
        await ask(app, "POST", "/v1/score", {"pairs": [dict.fromkeys(PAIR, "a")]})
        return await count(app), await count(
            app, "application/openmetrics-text; version=x"
        )

    answer, other = served(work)
    for each in (answer, other):
        assert each.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    found = {own.name: own for own in parser.text_string_to_metric_families(text)}
    for line in NAMES.strip().splitlines():
        name, kind, *labels = line.split()
        family = found.pop(f"jaxformer_{name}")
        assert (family.type, bool(family.documentation)) == (kind, True), name
        for sample in family.samples:
            assert set(labels) == set(sample.labels) - {"le"}, name
    rest = [name for name in found if name.startswith("jaxformer")]
    assert all(name.endswith("_created") for name in rest)
    assert {"process_resident_memory_bytes", "python_info"} <= set(found)
    for line in (
        'jaxformer_sentences_total{source="en",target="de"} 2.0',
        'jaxformer_source_tokens_total{source="en",target="de"} 3.0',
        'jaxformer_target_tokens_total{source="en",target="de"} 3.0',
        'jaxformer_characters_total{source="en",target="de"} 15.0',
        'jaxformer_batch_sentences_count{kind="plain"} 1.0',
        'jaxformer_batch_sentences_count{kind="call"} 1.0',
        f'jaxformer_batch_padding_ratio_sum{{kind="plain"}} {1 - 3 / 64}',
        'jaxformer_requests_total{route="/v1/translate",status="200"} 1.0',
        'jaxformer_rejected_total{reason="size"} 1.0',
        'jaxformer_compilations_total{when="warmup"} 4.0',
        'jaxformer_compilations_total{when="ready"} 0.0',
        "jaxformer_requests_in_flight 1.0",  # this one
        "jaxformer_queue_sentences 0.0",
    ):
        assert line in text.splitlines()


PAIR = ("text", "translation")


def test_openmetrics_are_written_on_request():
    """As Prometheus asks for them."""
    kind = "application/openmetrics-text; version=1.0.0"
    answer = served(lambda app, _: count(app, kind))
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    text = answer.body.decode()
    found = {x.name for x in openmetrics_parser.text_string_to_metric_families(text)}
    assert {"jaxformer_requests", "jaxformer_batch_sentences"} <= found


@pytest.fixture
def log():
    """Return the lines of the log, as they come."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(json.loads(record.getMessage()))
    logger = logging.getLogger("jaxformer.serving")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_no_text_key_or_address_is_in_logs_or_metrics(log):
    """In any part of a request, and with any error of the server."""
    key, line = make_key("ann")
    body = {"text": f"{TEXT} poison", "q": TEXT, "target_lang": TEXT}

    async def work(app, _):
        for path in ("v1/translate", "translate", "v2/translate", TEXT):
            for own in ({}, {"authorization": f"Bearer {key}"}):
                where = f"/{path}?source={TEXT}&api_key={key}"
                await ask(app, "POST", where, body, **own)
                await ask(app, "GET", where, **own)
        del body["q"], body["target_lang"]
        await ask(app, "POST", "/v1/translate", body, **own)
        return (await count(app)).body.decode()

    counted = served(work, keys=dict([line.split(":")]), log="json")
    logged = json.dumps(log)
    assert len(log) == 18
    for secret in ("secret", key, line[-64:], "127.0.0.1"):
        assert secret not in logged
        assert secret not in counted
    assert '"other"' in logged
    assert '"RuntimeError"' in logged


def test_labels_stay_few_whatever_clients_ask():
    """Another path, method or parameter makes no other series."""

    async def work(app, _):
        counts = []
        for start in (0, 100, 200):
            for number in range(start, start + 20):
                await ask(app, f"M{number}", f"/v1/translate?a={number}")
                await ask(app, "GET", f"/{number}")
            counts.append((await count(app)).body.count(b"\njaxformer"))
        return counts

    _, before, after = served(work)
    assert after == before


def test_a_request_is_one_line_of_json(log):
    """With what an operator needs: of a fault its class and places, not its words; an
    address on request.
    """

    async def work(app, _):
        for text in ("One. Two.", "fail", "x" * 6000):
            body = {"text": text}
            await ask(app, "POST", "/v1/translate", body, x_request_id=text[:4])

    engine = FakeEngine()
    served(work, engine, log="json", log_addresses=True)
    good, fault, long = log
    assert good.pop("time").endswith("+00:00")
    assert good.pop("seconds") >= good.pop("queue_seconds")
    assert good == {
        "id": "One.",
        "method": "POST",
        "route": "/v1/translate",
        "status": 200,
        "sentences": 2,
        "characters": 9,
        "address": "127.0.0.1",
    }
    assert (fault["status"], fault["fault"]) == (500, "FloatingPointError")
    assert fault["trace"][-1].startswith("fake_engine.py:")
    assert "secret" not in json.dumps(fault)
    assert (long["status"], long["code"]) == (400, "text_too_long")
