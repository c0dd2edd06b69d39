#!/usr/bin/env python3
"""Kill a run again and again, and show that it ends as if nothing had happened.

    python scripts/chaos.py --config=configs/reverse.py --workdir=runs/chaos --kills=20
    --config.training.steps=2000 python scripts/chaos.py --config=configs/quickstart.py
    --workdir=runs/chaos --signal=TERM --seed=7

The configuration is trained straight through in ``DIR/straight``, and once more in
``DIR/killed-SIGNAL-SEED``, where the process gets a signal at random moments and is
started again by the same command each time. The moments are spread over the run, and
each is aimed at one of the phases in which a process can be met:

- ``starting``: it imports, reads the text or restores a checkpoint;
- ``compiling``: the first step is to come; what was compiled before is thrown away
  first, so that it takes its time;
- ``training``: between steps;
- ``evaluating``: seen where ``training.evaluate_every`` is a multiple of
  ``training.log_every``;
- ``saving``: a half-written checkpoint lies there.

In the end parameters, their average, optimizer, random key, the loop's counters with
the position in the data, and the best checkpoint must be the same bit for bit, and the
records line for line, but for metrics of the machine. With equal parameters and losses
the batches were the same, in the same order. The exit code is 1 where something
differs, where a process ended otherwise than its signal lets it end, and where the run
was over before the last kill.

The straight run is kept: the same command with another ``--seed`` or ``--signal`` only
looks whether it is finished.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import random
import shutil
import signal
import statistics
import sys
import time
from pathlib import Path

import jax
from chaos_runs import (
    POLL,
    Command,
    Watch,
    compare,
    count_unfinished,
    list_names,
)

from jaxformer.cli import config_file
from jaxformer.cli.main import DONE, INTERRUPTED
from jaxformer.errors import InputError
from jaxformer.runs import config as configuration
from jaxformer.runs.training import TrainingConfig

PHASES = ("starting", "compiling", "training", "evaluating", "saving")
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}


@dataclasses.dataclass(frozen=True)
class Kill:
    """A signal to send: seconds after a run that has come to a step entered a phase,
    or when the phase ends before.
    """

    signal: signal.Signals
    phase: str
    step: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Hit:
    """What a signal met, and what came of it."""

    phase: str
    step: int
    code: int
    leftovers: int
    known: bool


def plan(
    options: argparse.Namespace, config: TrainingConfig, durations: dict[str, float]
) -> list[Kill]:
    """Draw the kills: every phase equally often, rather early in it, and spread over
    the run but its end.
    """
    chance = random.Random(options.seed)
    phases = [phase for phase in PHASES if phase in durations]
    aims = [phases[index % len(phases)] for index in range(options.kills)]
    chance.shuffle(aims)
    last = max(0.0, min(0.9 * config.steps, config.steps - 2.0 * config.evaluate_every))
    moments = sorted(chance.uniform(0.0, last) for _ in aims)
    names = [
        options.signal if options.signal != "ANY" else chance.choice(list(SIGNALS))
        for _ in aims
    ]
    return [
        Kill(SIGNALS[name], aim, int(moment), durations[aim] * chance.random() ** 2)
        for name, aim, moment in zip(names, aims, moments, strict=True)
    ]


def strike(command: Command, kill: Kill) -> Hit | None:
    """Start a process and send it the signal; None where it had finished before."""
    if kill.phase == "compiling":
        shutil.rmtree(command.compiled, ignore_errors=True)
    with command.start() as watch:
        if not wait_until(watch, kill):
            watch.process.wait()
            if watch.process.returncode == DONE:
                return None
            return Hit(
                watch.phase(), watch.step, watch.process.returncode, 0, known=False
            )
        phase, step = watch.phase(), watch.step
        watch.process.send_signal(kill.signal)
        watch.process.wait()
    checkpoints = command.run / "checkpoints"
    # Nobody listens while Python imports, and after the last step there is nothing to
    # stop: there a signal is fatal.
    stoppable = phase != "starting" and str(command.config.steps) not in list_names(
        checkpoints
    )
    code = watch.process.returncode
    return Hit(
        phase,
        step,
        code,
        count_unfinished(checkpoints),
        known=is_known(code, kill.signal, stoppable),
    )


def is_known(code: int, number: signal.Signals, stoppable: bool) -> bool:
    """Return whether a process may end with an exit code after a signal."""
    if number == signal.SIGKILL:
        return code == -number
    return code == INTERRUPTED or (not stoppable and code in (-number, DONE))


def wait_until(watch: Watch, kill: Kill) -> bool:
    """Wait for the moment of a kill; say whether the process is still there."""
    # these come again with every process, and lead no further
    anywhere = kill.phase in ("starting", "compiling")
    while watch.is_alive() and not (
        watch.phase() == kill.phase and (anywhere or watch.step >= kill.step)
    ):
        time.sleep(POLL)
    # It may be over sooner than in the straight run: then the end of the phase is the
    # moment.
    end = time.monotonic() + kill.seconds
    while watch.is_alive() and time.monotonic() < end and watch.phase() == kill.phase:
        time.sleep(min(POLL, max(0.0, end - time.monotonic())))
    return watch.is_alive()


def train_straight(command: Command) -> dict[str, float]:
    """Train without any kill, and give the seconds that each phase usually lasts."""
    file = command.run.with_name("straight.phases.json")
    stretches = command.finish()
    if not file.exists():
        usual = {phase: statistics.median(each) for phase, each in stretches.items()}
        file.write_text(json.dumps(usual))
    return json.loads(file.read_text())


def train_killed(command: Command, kills: list[Kill]) -> tuple[list[Hit], list[str]]:
    """Train with kills; give what they hit, and what is wrong with that."""
    hits, faults = [], []
    for number, kill in enumerate(kills, 1):
        hit = strike(command, kill)
        if hit is None:
            faults.append(
                f"the run was over before kill {number} of {len(kills)}: take more"
                " steps, or fewer kills"
            )
            break
        left = f", {hit.leftovers} unfinished left" if hit.leftovers else ""
        print(
            f"kill {number:3}  {kill.signal.name:8} aimed at {kill.phase:11} hit"
            f" {hit.phase:11} at step {hit.step:6}  exit code {hit.code}{left}",
            flush=True,
        )
        hits.append(hit)
        if not hit.known:
            faults.append(
                f"kill {number} ended with exit code {hit.code};"
                f" {command.said}.{number} says why"
            )
            shutil.copy(command.said, f"{command.said}.{number}")
    command.finish()
    return hits, faults


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="configuration; --config.KEY=VALUE changes it",
    )
    parser.add_argument(
        "--workdir",
        required=True,
        type=Path,
        metavar="DIR",
        help="where both runs are made",
    )
    parser.add_argument("--kills", type=int, default=20, help="how many (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments (default: 0)"
    )
    parser.add_argument(
        "--signal",
        choices=[*SIGNALS, "ANY"],
        default="KILL",
        help="ANY: drawn each time",
    )
    options, overrides = parser.parse_known_args()
    # A shell that starts this in the background lets children ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return chaos(options, overrides)
    except InputError as error:
        print(f"chaos: error: {error}", file=sys.stderr)
        return 1


def chaos(options: argparse.Namespace, overrides: list[str]) -> int:
    """Train twice and compare; give the exit code.

    Raises:
        InputError: the configuration is wrong, the killed run is there already, or a
            run fails without being killed.
    """
    config = configuration.parse(config_file.read(options.config, overrides)).training
    killed = options.workdir / f"killed-{options.signal}-{options.seed}"
    if killed.exists():
        raise InputError(
            f"{killed} is there already: choose another --seed, or remove it"
        )
    options.workdir.mkdir(parents=True, exist_ok=True)
    arguments = [f"--config={options.config}", *overrides]
    straight = Command(arguments, options.workdir / "straight", config)
    durations = train_straight(straight)
    lasting = ", ".join(
        f"{phase} {durations[phase]:.2f} s" for phase in PHASES if phase in durations
    )
    print(
        f"straight: {straight.run} is finished at step {config.steps}; {lasting}",
        flush=True,
    )
    hits, faults = train_killed(
        Command(arguments, killed, config), plan(options, config, durations)
    )
    counts = collections.Counter(hit.phase for hit in hits)
    print(f"hit: {', '.join(f'{phase} {counts[phase]}' for phase in PHASES)}; ", end="")
    print(
        f"{sum(hit.leftovers > 0 for hit in hits)} of {len(hits)} left an unfinished"
        " checkpoint"
    )
    # The devices are the runs'.
    jax.config.update("jax_platforms", "cpu")
    faults += [
        f"differs from {straight.run}: {difference}"
        for difference in compare(killed, straight.run)
    ]
    for fault in faults:
        print(fault)
    if not faults:
        print(f"{killed} ended as {straight.run} did, bit for bit and line for line")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
