"""The OpenAPI 3.1 document of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jaxformer
from jaxformer.serving import deepl, libretranslate, native
from jaxformer.serving.operations import FORM, JSON, Operation
from jaxformer.serving.schema import record

if TYPE_CHECKING:
    from jaxformer.serving.service import Service

_STATUS = record({"status": str, "done?": int, "of?": int})
# Those of no protocol, which the application answers.
_OWN = (
    Operation("GET", "/health", "Say that the process lives", None, _STATUS),
    Operation("GET", "/ready", "Say whether translation is possible", None, _STATUS),
    Operation("GET", "/metrics", "Numbers for Prometheus", None, "text/plain"),
    Operation("GET", "/openapi.json", "Show this document", None, dict),
)


def make_document(service: Service, root_path: str = "") -> dict[str, Any]:
    """Return the document of a server.

    Args:
        service: for its languages and limits.
        root_path: path of its root behind a proxy.
    """
    paths = {own.path: own.document(native.ERROR) for own in _OWN}
    for protocol, types in (
        (libretranslate, (JSON, FORM)),
        (deepl, (JSON, FORM)),
        (native, (JSON,)),
    ):
        for own in protocol.operations(service):
            paths[own.path] = own.document(protocol.ERROR, types)
    ready = paths["/ready"]["get"]["responses"]
    ready["503"] = ready["200"]  # warming up or draining
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jaxformer",
            "description": "Translation by a Transformer, in three protocols: that of"
            " LibreTranslate, that of DeepL (`/v2`), and one with all that the search"
            " knows (`/v1`).",
            "version": jaxformer.__version__,
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
    }
