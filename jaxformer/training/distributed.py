"""Several processes that train together: how they find each other, and how they end."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable

import jax

from jaxformer import signals
from jaxformer.errors import InputError, first_line

GRACE = 10.0
"""Seconds that a process which failed waits for the others to fail too, before it
takes its connections away.
"""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes that train together.

    Without values JAX asks the machine: Slurm, Open MPI, Kubernetes and Cloud TPU tell
    it.

    Attributes:
        coordinator: address and port of the first process, as every other reaches it.
        num_processes: how many processes there are.
        process_id: which of them this is, counted from 0.

    Raises:
        InputError: some values are there and some are missing, or one is out of range.
    """

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        given = dataclasses.asdict(self)
        missing = [f"--{name}" for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return
        if missing:
            raise InputError(
                "--coordinator, --num_processes and --process_id go together: give"
                f" {' and '.join(missing)} too"
            )
        coordinator, count, number = given.values()
        port = re.fullmatch(r".*[^:]:(\d{1,5})", coordinator)
        if port is None or not 0 < int(port[1]) < 65_536:
            raise InputError(
                "--coordinator must be HOST:PORT, such as 10.0.0.1:4321, not"
                f" {coordinator!r}"
            )
        if not 0 <= number < count:
            raise InputError(
                f"--process_id must be from 0 to {count - 1} with"
                f" --num_processes={count}, not {number}"
            )


def run_together(
    cluster: Cluster,
    seconds: float,
    work: Callable[[], int],
    report: Callable[[BaseException], int],
) -> int:
    """Work as one of several processes. Each calls this before it touches a device.

    After an error the process ends here, without the end of the interpreter: there JAX
    would wait minutes for the others, and these for what this process no longer sends.
    They end too, since its connections are gone.

    Args:
        cluster: the processes.
        seconds: how long to wait until all of them are there.
        work: what to do; gives the exit code, on all processes at about the same time.
        report: says what ended the work, and gives the exit code for it.

    Returns:
        The exit code, once the work of every process is done.
    """
    try:
        join(cluster, seconds)
    except BaseException as error:
        signals.end(report(error))
    try:
        code = work()
    except BaseException as error:
        code = report(_explain(error))
        # Where the same error ends all processes, none may go before the others have
        # told it: they would be aborted.
        goodbye = threading.Thread(target=jax.distributed.shutdown, daemon=True)
        goodbye.start()
        goodbye.join(GRACE)
        signals.end(code)
    jax.distributed.shutdown()
    return code


def join(cluster: Cluster, seconds: float) -> None:
    """Connect this process with the others; on CPU they exchange arrays by gloo, which
    is JAX's choice there.

    Raises:
        InputError: JAX finds no cluster, the first process cannot be reached or not all
            processes come in time. The connection may then still be tried in the
            background.
    """
    # The loop has its own answer to SIGTERM, and before the loop begins SIGTERM ends
    # the process.
    jax.config.update("jax_enable_preemption_service", False)
    explicit = cluster.coordinator is not None
    faults: list[Exception] = []

    def connect() -> None:
        try:
            jax.distributed.initialize(
                cluster.coordinator,
                cluster.num_processes,
                cluster.process_id,
                # A process that is told its place has all devices of its machine, even
                # where Slurm would count them.
                cluster_detection_method="deactivate" if explicit else None,
                initialization_timeout=int(seconds) + 60,
            )
        except Exception as error:
            faults.append(error)

    # When its own time is over JAX aborts the process with a trace of its C++ stack,
    # and until then hears no Ctrl-C.
    connection = threading.Thread(target=connect, name="connection", daemon=True)
    connection.start()
    connection.join(seconds)
    if connection.is_alive():
        processes = "processes of this cluster"
        if explicit:
            processes = f"{cluster.num_processes} processes at {cluster.coordinator}"
        raise InputError(
            f"not all {processes} answer within {seconds:g} s: look at what the other"
            " processes said and whether the port is open, or set --distributed_timeout"
        )
    for fault in faults:
        reason = first_line(fault)
        if explicit:
            raise InputError(
                f"cannot start process {cluster.process_id} of {cluster.num_processes}"
                f" at {cluster.coordinator}: {reason}"
            ) from fault
        raise InputError(
            "--distributed finds no Slurm, Open MPI, Kubernetes or Cloud TPU here"
            f" ({reason}): give --coordinator, --num_processes and --process_id instead"
        ) from fault


def _explain(error: BaseException) -> BaseException:
    """Word the loss of a connection; return other errors unchanged."""
    if isinstance(error, (ValueError, RuntimeError)) and "Gloo" in str(error):
        return InputError(
            f"another process of this run has ended ({first_line(error)}): see what it"
            " said; the same command continues from the last checkpoint"
        )
    return error
