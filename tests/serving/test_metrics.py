"""The numbers and the log of a server: complete, bounded, and without secrets."""

import io
import json

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from serving.asgi import ask, served

from jaxformer.serving.access import Keys, make_key
from jaxformer.serving.batcher import Batch
from jaxformer.serving.call import Call
from jaxformer.serving.errors import ServingError
from jaxformer.serving.log import RequestLog
from jaxformer.serving.metrics import Metrics

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


def families(metrics):
    """Return the families of all numbers, by name, as Prometheus reads them."""
    body, kind = metrics.render()
    assert kind.startswith("text/plain")
    return {
        found.name: found
        for found in parser.text_string_to_metric_families(body.decode())
    }


@pytest.fixture
def metrics():
    """Some of each number."""
    made = Metrics(waiting=lambda: 5, in_flight=lambda: 2)
    made.finished(Call(route="/translate", status=200, seconds=0.2))
    made.finished(Call(route="/translate", status=503, code="queue"))
    made.finished(Call(route="/slow", status=499, seconds=3))
    made.batch(Batch("plain", [5, 10, 15], [0.1, 0.2, 7], 0.3))
    made.padded("plain", 30, 45)
    made.batch(Batch("call", [0], [0.0], 0.3))
    made.translated(
        "en", "de", sentences=3, characters=40, source_tokens=12, target_tokens=15
    )
    made.compiled("warmup", 18)
    made.serve([("en", "de", "2800")])
    return made


def test_all_numbers_have_their_names_types_and_labels(metrics):
    """As the documentation lists them, and those of the process."""
    found = families(metrics)
    for line in NAMES.strip().splitlines():
        name, kind, *labels = line.split()
        family = found.pop(f"jaxformer_{name}")
        assert (family.type, bool(family.documentation)) == (kind, True), name
        for sample in family.samples:
            assert set(labels) == set(sample.labels) - {"le"}, name
    assert not [
        name
        for name in found
        if name.startswith("jaxformer") and not name.endswith("_created")
    ]
    assert {"process_resident_memory_bytes", "python_info"} <= set(found)


def test_openmetrics_are_written_on_request(metrics):
    """As Prometheus asks for them."""
    _, kind = metrics.render("application/openmetrics-text; version=x")
    assert kind.startswith("text/plain")
    body, kind = metrics.render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    found = list(openmetrics_parser.text_string_to_metric_families(body.decode()))
    assert {"jaxformer_requests", "jaxformer_batch_sentences"} <= {
        f.name for f in found
    }


def test_no_text_key_or_address_is_in_logs_or_metrics():
    """In any part of a request, and with any error of the server."""
    key, line = make_key("ann")
    stream = io.StringIO()
    body = {"text": f"{TEXT} poison", "q": TEXT, "target_lang": TEXT}

    async def work(app, _):
        for path in ("v1/translate", "translate", "v2/translate", TEXT):
            for own in ({}, {"authorization": f"Bearer {key}"}):
                where = f"/{path}?source={TEXT}&api_key={key}"
                await ask(app, "POST", where, body, **own)
                await ask(app, "GET", where, **own)
        del body["q"], body["target_lang"]
        await ask(app, "POST", "/v1/translate", body, **own)
        return (await ask(app, "GET", "/metrics")).body.decode()

    keys = Keys(dict([line.split(":")]))
    counted = served(work, keys=keys, log=RequestLog(stream))
    logged = stream.getvalue()
    assert len(logged.splitlines()) == 18
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
            shown = await ask(app, "GET", "/metrics")
            counts.append(shown.body.count(b"\njaxformer"))
        return counts

    _, before, after = served(work)
    assert after == before


def line_of(call, **options):
    stream = io.StringIO()
    RequestLog(stream, clock=lambda: 1.5, **options)(call)
    assert stream.getvalue().endswith("\n")
    return json.loads(stream.getvalue())


def test_a_request_is_one_line_of_json():
    """With what an operator needs."""
    call = Call(id="a1", method="POST", route="/translate", status=200, seconds=0.12345)
    call.note(sentences=3, characters=40, queue_seconds=0.01, kind="plain", text=TEXT)
    assert line_of(call) == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "id": "a1",
        "method": "POST",
        "route": "/translate",
        "status": 200,
        "seconds": 0.1235,
        "queue_seconds": 0.01,
        "sentences": 3,
        "characters": 40,
        "kind": "plain",
    }


def test_an_address_is_logged_on_request():
    """For operators who may."""
    call = Call(id="a", address="192.0.2.7")
    assert "address" not in line_of(call)
    assert line_of(call, addresses=True)["address"] == "192.0.2.7"


def test_a_fault_is_logged_by_its_places():
    """The class and the functions, not the message."""
    call = Call(id="a")
    try:
        try:
            raise KeyError(TEXT)
        except KeyError as error:
            raise ServingError(500, "internal", "the server failed") from error
    except ServingError as error:
        call.refused(error)
    line = line_of(call)
    assert (line["code"], line["fault"]) == ("internal", "KeyError")
    assert line["trace"][-1].startswith("test_metrics.py:")
    assert "secret" not in json.dumps(line)
    call.refused(ServingError(503, "queue", "full"))
    assert line_of(call)["code"] == "queue"


def test_a_full_disk_stops_no_request():
    """Its line is lost."""

    class Full(io.StringIO):
        def write(self, text):
            raise OSError(28, "No space left on device")

    RequestLog(Full())(Call())
    closed = io.StringIO()
    closed.close()
    RequestLog(closed)(Call())
