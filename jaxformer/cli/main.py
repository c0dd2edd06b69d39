"""The command ``jaxformer``: finds the command's file, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jaxformer import __version__, freed_memory
from jaxformer.cli import huge_pages
from jaxformer.errors import InputError

DONE, FAILED, INTERRUPTED = 0, 1, 130

COMMANDS = {
    "prepare": "fetch a published corpus, or clean and tokenise a corpus once",
    "train": "train a model, or go on with a run that was interrupted",
    "average": "average checkpoints of a run",
    "shortlist": "learn which target tokens each source token needs, for a quicker search",
    "translate": "translate text, one sentence a line",
    "evaluate": "translate a test set and score it by BLEU, chrF and others",
    "score": "give the log-probability and perplexity of translations",
    "rerank": "order translations by a weighted sum of scores: of the search, of other models, of files",
    "compare": "compare translations of several systems: scores, significance, and where they differ",
    "plot": "draw the learning curves of runs over each other",
    "attention": "draw what the model attends to in a sentence",
    "benchmark": "measure the speed of training on this machine's CPU, beside PyTorch's",
    "doctor": "check a run for what makes BLEU lower, higher or not comparable",
    "reproduce": "show a table of the paper beside our parameters, costs and runs",
    "info": "show what a run is made of and how far it is, or what memory a configuration needs",
}


COMPUTING = ("train", "shortlist", "translate", "evaluate", "score", "rerank", "benchmark")
"""The commands that may compute for long."""


def start(*before: str) -> int:
    """Run the command of this process's own arguments, behind those given here; see :func:`main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    arguments = [*before, *sys.argv[1:]]
    if arguments[:1] and arguments[0] in COMPUTING:
        huge_pages.use()
    code = main(arguments, alone=True)
    if code == INTERRUPTED and arguments[0] != "train":  # which has ended its threads itself
        # Threads of JAX may still compile or compute; an interpreter that ends in order takes their memory away.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def main(arguments: Sequence[str], *, alone: bool = False) -> int:
    """Run a command; return 0 when done, 1 when it failed, 130 when it was interrupted; wrong usage exits with 2.

    Args:
        arguments: of the command line, without the program's name.
        alone: whether the process does nothing else, so that its free memory is nobody's.
    """
    try:
        options = parse(list(arguments))
        _keep_compilations()
        if alone:
            freed_memory.manage()
        if signal.getsignal(signal.SIGINT) is _end:  # now there may be something to tidy up
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return _run_noted(options) if options.command in ("train", "prepare") else options.run(options)
    except (InputError, OSError, KeyboardInterrupt) as error:
        return report(error)


def _end(*_: object) -> None:
    """End at once: nothing is begun while libraries load, and some of them lose an exception that meets them then."""
    os._exit(INTERRUPTED)


class _Parser(argparse.ArgumentParser):
    """Names an option that it does not know before one that is missing, which the first was meant to be."""

    _given: Sequence[str] = ()

    # One signature in place of argparse's overloads.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Remember the arguments."""
        self._given = list(args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End with the usage and one line."""
        names = [argument.partition("=")[0] for argument in self._given if argument.startswith("--")]
        wrong = [name for name in names if name not in self._option_string_actions and not name.startswith("--config.")]
        if wrong and message.startswith("the following arguments are required"):
            message = f"unrecognized arguments: {' '.join(wrong)}; {message}"
        super().error(message)


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Describe the command line: every command by a line, and the arguments of one.

    Args:
        command: whose arguments are declared; only its libraries are loaded.
    """
    parser = _Parser(
        prog="jaxformer",
        description='The Transformer of "Attention Is All You Need" in JAX and Flax.',
        epilog="jaxformer COMMAND --help explains a command with an example.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jaxformer {__version__}")
    # A command refuses with its own usage; what stands before it, with the usage of all.
    parser.set_defaults(refuse=parser.error)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        described = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == command:
            module = importlib.import_module(f"jaxformer.cli.{name}")
            module.configure(described)
            described.set_defaults(run=module.run, refuse=described.error)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Load the libraries of the command and read its arguments; wrong usage exits with 2."""
    parser = make_parser(arguments[0] if arguments else None)
    options, rest = parser.parse_known_args(arguments)
    options.overrides = [argument for argument in rest if argument.startswith("--config.") and "=" in argument]
    configurable = options.command in ("train", "prepare", "info")
    wrong = [argument for argument in rest if not (configurable and argument in options.overrides)]
    if wrong:
        options.refuse(f"unrecognized arguments: {' '.join(wrong)}{_meant(wrong) if configurable else ''}")
    return options


def _run_noted(options: argparse.Namespace) -> int:
    """Run a command that the same command takes up again where it was interrupted."""
    from jaxformer.data import interruption

    try:
        with interruption.noted():
            return options.run(options)
    except KeyboardInterrupt:
        sys.stderr.write("jaxformer: interrupted; the same command goes on, or begins anew where nothing was saved\n")
        if interruption.is_busy():
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def _meant(wrong: Sequence[str]) -> str:
    """Write the first argument that seems to set a key of the configuration as it should be."""
    for index, argument in enumerate(wrong):
        found = re.fullmatch(r"--(?:config\.)?(\w+\.\w+)(?:=(.*))?", argument)
        if found:
            after = wrong[index + 1] if index + 1 < len(wrong) and not wrong[index + 1].startswith("-") else "VALUE"
            value = after if found[2] is None else found[2]
            return f"; did you mean {shlex.quote(f'--config.{found[1]}={value}')}?"
    return ""


def report(error: BaseException) -> int:
    """Say in one line what ended a command, and give the exit code; a fault of ours comes with its traceback."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):  # who read the output has enough, as `head` does
        return FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        reason = f"{where}{error.strerror or error}"
    elif isinstance(error, InputError):
        reason = str(error)
    else:
        traceback.print_exception(error)
        return FAILED
    sys.stderr.write(f"jaxformer: error: {' '.join(reason.split())}\n")
    return FAILED


def _keep_compilations() -> None:
    """Keep compiled programs between processes, so that a second start is quick; JAX's own variables go before."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(base / "jaxformer" / "xla"))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Of all programs, however small: a first state is drawn by many.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


if __name__ == "__main__":
    sys.exit(start())
