"""An operation of a server: its route, and its part of the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxformer.serving.fields import answer, read_values
from jaxformer.serving.schema import Schema, describe, read, record

if TYPE_CHECKING:
    from jaxformer.serving.service import Service

Handler = Callable[["Service", dict[str, Any]], Awaitable[Any]]

JSON, FORM = "application/json", "application/x-www-form-urlencoded"


class Operation(NamedTuple):
    """What a path does.

    Attributes:
        methods: of HTTP, with spaces between them.
        path: of its URL.
        summary: of one line.
        handle: takes a service and the fields of a request, and returns the JSON of an
            answer, or a Response; None: the application has its own route.
        answer: shape of the JSON of an answer, or the media type of another.
        fields: schema of the fields; None: none are read, and no key is needed.
        status: of an answer that is no error.
    """

    methods: str
    path: str
    summary: str
    handle: Handler | None
    answer: Any
    fields: Schema | None = None
    status: int = 200

    def route(self, service: Service) -> Route:
        """Return the route of a service."""
        handle = self.handle
        assert handle is not None

        async def endpoint(request: Request) -> Response:
            given: dict[str, Any] = {}
            if self.fields is not None:
                given = read(self.fields, await read_values(request))
            found = await handle(service, given)
            return found if isinstance(found, Response) else answer(200, found)

        return Route(self.path, endpoint, methods=self.methods.split())

    def document(self, error: Any, types: Sequence[str] = (JSON,)) -> dict[str, Any]:
        """Return the operation of each method in OpenAPI.

        Args:
            error: shape of the JSON of an error.
            types: media types of a body.
        """
        content: dict[str, Any] = {}
        if isinstance(self.answer, str):
            content[self.answer] = {}
        else:
            content[JSON] = {"schema": describe(self.answer)}
        fault = {
            "description": "refused: the answer says why",
            "content": {JSON: {"schema": record(error)}},
        }
        done = {"description": "done", "content": content}
        found = {
            "summary": self.summary,
            "responses": {str(self.status): done, "4XX": fault, "5XX": fault},
        }
        return {
            method.lower(): found | self._request(method, types)
            for method in self.methods.split()
        }

    def _request(self, method: str, types: Sequence[str]) -> dict[str, Any]:
        if self.fields is None:
            return {}
        if method == "POST":
            content = {name: {"schema": self.fields} for name in types}
            return {"requestBody": {"required": True, "content": content}}
        required = self.fields["required"]
        parameters = [
            {"name": name, "in": "query", "required": name in required, "schema": own}
            for name, own in self.fields["properties"].items()
        ]
        return {"parameters": parameters}
