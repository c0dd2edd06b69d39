"""The HTTP server around the application: its socket, its limits, its signals."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from jaxformer import signals
from jaxformer.errors import InputError, first_line
from jaxformer.files import describe
from jaxformer.serving.app import make_app
from jaxformer.serving.config import ServingConfig
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.middleware import allowed_hosts
from jaxformer.serving.service import Service
from jaxformer.serving.telemetry import LOG
from jaxformer.translation.text.glossary import load_glossaries

_MOST_HEAD = 65_536  # bytes of the head of a request, with its query


def serve(
    load: Callable[[], list[TranslationEngine]],
    config: ServingConfig,
    *,
    show: Callable[[str], object],
    say: Callable[[str], object],
) -> None:
    """Serve until a signal ends the process in order; a second SIGINT ends it at once.

    Args:
        load: reads the runs.
        config: of the server.
        show: writes a line for programs: where the server listens, that it is ready.
        say: writes a line for the operator.

    Raises:
        InputError: the port is taken, a run or the keys cannot be read, or two runs
            translate the same pair.
        BaseException: what else ended the service.
    """
    begun = time.monotonic()
    glossaries = load_glossaries(config.glossary)
    LOG.addHandler(logging.StreamHandler(sys.stderr))
    LOG.setLevel(logging.INFO)
    LOG.propagate = logging.raiseExceptions = False  # a full disk stops no request
    with contextlib.closing(bind(config.host, config.port)) as bound:
        url = name_url(bound, config.root_path)

        def tell(step: str) -> None:
            done, of = service.programs
            if step in ("ready", "warm"):
                # Compiling creates so many objects that a full collection pauses all
                # requests for about a second.
                gc.collect()
                gc.freeze()
            if step == "failed":
                server.should_exit = True
            elif step == "loaded":
                show(f"listening {url}")
                if config.keys is None and not allowed_hosts(config.host):
                    say(f"anybody who reaches {url} may use it: see --keys")
                say(f"compiling {of} programs, ready after the first")
            elif step == "ready":
                pairs = ", ".join(
                    f"{'-'.join(pair)} checkpoint {engine.checkpoint}"
                    for pair, engine in service.engines.items()
                )
                seconds = time.monotonic() - begun
                show(f"ready {url} {pairs}, {done} programs in {seconds:.0f} s")
                notify("READY=1")
            else:
                with contextlib.suppress(OSError):  # the terminal may be closed
                    say(f"all {done} programs are compiled")

        def end(number: int, frame: FrameType | None) -> None:
            if not server.should_exit:
                service.drain()
                server.should_exit = True
                notify("STOPPING=1")
            elif number == signal.SIGINT:
                signals.end()

        service = Service(load, config, glossaries, tell)
        server = make_server(service)
        with signals.handled(end):
            server.run(sockets=[bound])
    if service.error is not None:
        raise service.error


def bind(host: str, port: int) -> socket.socket:
    """Return a socket of an address; port 0 is any that is free.

    Raises:
        InputError: there is no such address, or the port is taken.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Only one process may listen: another fails before it loads a run.
        found = socket.create_server(
            (host, port), family=family, dualstack_ipv6=family == socket.AF_INET6
        )
        # Head and body of an answer are two writes: the second would wait 40 ms.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found
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


def make_server(service: Service) -> uvicorn.Server:
    """Build the server of a service; handlers of signals stay as they are."""
    config = service.config
    server: Any = uvicorn.Server(
        uvicorn.Config(
            make_app(service),
            http="h11",  # httptools has no limit of a head
            h11_max_incomplete_event_size=_MOST_HEAD,
            limit_concurrency=config.connections + 1,  # with the one that asks
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="critical",  # its errors may show texts
            access_log=False,
            forwarded_allow_ips=list(config.trusted_proxy),
            server_header=False,
            timeout_graceful_shutdown=max(1, round(config.grace)),
        )
    )
    server.capture_signals = contextlib.nullcontext
    return server


def notify(state: str) -> None:
    """Tell systemd a state, such as ``READY=1``, if it has started the process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError):
        if address:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(state.encode(), address)
