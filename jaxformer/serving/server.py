"""The HTTP server around the application: its socket, its limits, its signals."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import uvicorn

from jaxformer import signals
from jaxformer.errors import InputError, first_line
from jaxformer.files import describe
from jaxformer.serving.access import Keys
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig, Site
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.guard import allowed_hosts
from jaxformer.serving.log import RequestLog
from jaxformer.serving.service import Service
from jaxformer.translation.text.glossary import load_glossaries

_KEEP_ALIVE = 5  # seconds
_MOST_HEAD = 65_536  # bytes of the head of a request, with its query


def serve(
    load: Callable[[], list[TranslationEngine]],
    config: ServingConfig,
    site: Site,
    *,
    show: Callable[[str], object],
    say: Callable[[str], object],
) -> None:
    """Serve until a signal ends the process.

    Args:
        load: reads the runs.
        config: of the limits.
        site: of the server.
        show: writes a line for programs: where the server listens, that it is ready.
        say: writes a line for the operator.

    Raises:
        InputError: the port is taken, a run or the keys cannot be read, or two runs
            translate the same pair.
    """
    begun = time.monotonic()
    keys = Keys.load(site.keys) if site.keys else None
    glossaries = load_glossaries(site.glossary)
    hosts = allowed_hosts(site.host, site.allowed_host)
    with contextlib.closing(bind(site.host, site.port)) as bound:
        service = Service(load(), config, glossaries=glossaries)
        app = make_app(
            service,
            page=not site.no_page,
            root_path=site.root_path,
            keys=keys,
            hosts=hosts,
            origins=site.cors,
            log=RequestLog(sys.stderr, addresses=site.log_addresses)
            if site.log == "json"
            else None,
        )
        url = name_url(bound, site.root_path)
        if keys is None and not allowed_hosts(site.host):
            say(f"anybody who reaches {url} may use it: see --keys")

        def announce() -> None:
            seconds = time.monotonic() - begun
            programs = f"{service.done} programs in {seconds:.0f} s"
            show(f"ready {url} {service.describe()}, {programs}")
            notify("READY=1")

        show(f"listening {url}")
        say(f"compiling {service.programs} programs, ready when some of them are done")
        server = Server(app, service, site.trusted_proxy, announce=announce, say=say)
        server.run_on(bound)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket of an address; port 0 is any that is free.

    Raises:
        InputError: there is no such address, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Only one process may listen: another fails before it loads a run.
        return socket.create_server(
            (host, port), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
    except (OSError, UnicodeError) as error:
        reason = describe(error) if isinstance(error, OSError) else first_line(error)
        raise InputError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --port"
            " (0: any) or --host"
        ) from None


def name_url(bound: socket.socket, root_path: str = "") -> str:
    """Return the URL of a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}"


class Server(uvicorn.Server):
    """Answers until a signal, which ends it in order; a second SIGINT ends it at
    once.
    """

    def __init__(
        self,
        app: Any,
        service: Service,
        proxies: Sequence[str] = (),
        *,
        announce: Callable[[], None],
        say: Callable[[str], object],
    ) -> None:
        """Take an application and its service.

        Args:
            app: an ASGI application.
            service: that it answers from.
            proxies: addresses whose ``X-Forwarded-For`` is believed.
            announce: called once the service is ready.
            say: writes a line for the operator.
        """
        config = service.config
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                h11_max_incomplete_event_size=_MOST_HEAD,
                limit_concurrency=config.connections + 1,  # with the one that asks
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                log_level="critical",  # its errors may show texts
                access_log=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=list(proxies),
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                timeout_graceful_shutdown=max(1, round(config.grace)),
            )
        )
        self._service = service
        self._announce: Callable[[], None] | None = announce
        self._say = say
        self._is_warm = False

    def run_on(self, bound: socket.socket) -> None:
        """Answer on a socket until a signal ends the server.

        Raises:
            BaseException: what ended the service before.
        """
        with signals.handled(self._handle):
            self.run(sockets=[bound])
        if self._service.error is not None:
            raise self._service.error

    def capture_signals(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Leave the handlers as they are, see :meth:`run_on`."""
        return contextlib.nullcontext()

    async def on_tick(self, counter: int) -> bool:
        """Announce that the service is ready; end when its time has come."""
        service = self._service
        if self._announce is not None and service.is_ready.is_set():
            _freeze_heap()
            self._announce()
            self._announce = None
        if not self._is_warm and service.done == service.programs:
            _freeze_heap()
            with contextlib.suppress(OSError):  # the terminal may be closed
                self._say(f"all {service.done} programs are compiled")
            self._is_warm = True
        if service.error is not None:
            self.should_exit = True
        return await super().on_tick(counter)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._service.state = "draining"
            self.should_exit = True
            notify("STOPPING=1")
        elif number == signal.SIGINT:
            signals.end()


def _freeze_heap() -> None:
    """Exclude all present objects from garbage collections.

    Compiling creates so many objects that a full collection pauses all requests for
    about a second.
    """
    gc.collect()
    gc.freeze()


def notify(state: str) -> None:
    """Tell systemd a state, such as ``READY=1``, if it has started the process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address)
    except OSError as error:
        sys.stderr.write(f"jaxformer: warning: $NOTIFY_SOCKET: {describe(error)}\n")
