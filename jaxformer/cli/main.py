"""The command ``jaxformer``: finds the command's file, runs it, and turns errors
into one line and an exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import hashlib
import importlib
import importlib.metadata
import itertools
import os
import platform
import shutil
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from jaxformer import __version__, bucket, signals
from jaxformer.errors import InputError, UsageError, did_you_mean, escape_controls
from jaxformer.files import check_writable, describe

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130

GROUPS = {
    "learn": {
        "prepare": "clean and tokenise a corpus once",
        "train": "train a model, or continue a run that was interrupted",
        "average": "average checkpoints of a run",
        "shortlist": "learn which target tokens each source token is likely to need",
    },
    "use": {
        "translate": "translate text, one sentence a line",
        "serve": "translate over HTTP, for programs and on a page",
        "generate": "continue texts by a language model",
        "predict": "label, tag or measure texts, answer, or fill in a masked word",
    },
    "judge": {
        "evaluate": "score a run on a test set: by BLEU and chrF, or by its objective",
        "score": "give the log-probability and perplexity of translations or texts",
        "rerank": "order translations by a weighted sum of scores",
        "compare": "compare systems: scores, significance, and where they differ",
        "doctor": "check a run for what makes BLEU lower, higher or not comparable",
    },
    "look": {
        "info": "show what a run is made of, or what memory a configuration needs",
        "plot": "draw the learning curves of runs over each other",
        "attention": "draw what the model attends to in a sentence",
        "reproduce": "show a table of the paper beside our parameters and scores",
    },
    "exchange": {
        "import": "make a run of a model of Hugging Face's transformers",
        "export": "write a run for transformers, CTranslate2, Argos Translate or JAX",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}


def start(*before: str) -> int:
    """Run the command of this process's own arguments, after those given here; see
    :func:`main`.
    """
    signals.end_while_loading()
    arguments = [*before, *sys.argv[1:]]
    code = main(arguments)
    if arguments[:1] in (["train"], ["prepare"]) and code != signals.INTERRUPTED:
        return code  # they have ended their threads
    # Threads may still compile, compute or train a vocabulary. An interpreter that ends
    # in order frees the memory that they use.
    return signals.end(code)


def main(arguments: Sequence[str]) -> int:
    """Run a command; return 0 when done, 1 when it failed, 2 when it was wrong usage,
    130 when it was interrupted.

    Args:
        arguments: of the command line, without the program's name.
    """
    try:
        options = parse(list(arguments))
        keep_programs()
        with signals.noted():
            try:
                _open_runs(options)
                return options.run(options) or DONE
            finally:
                # an interrupted library may raise anything, or nothing
                signals.check()
    except (Exception, KeyboardInterrupt) as error:
        code = report(error)
        if code == INTERRUPTED and {*arguments[:1]} & {"train", "prepare"}:
            sys.stderr.write(
                "jaxformer: interrupted; the same command continues, or starts again if"
                " nothing was saved\n"
            )
        if code == WRONG_USAGE:
            command = COMMANDS.keys() & arguments[:1]
            sys.stderr.write(" ".join(["see: jaxformer", *command, "--help\n"]))
        return code
    finally:
        bucket.close()


class _Help(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs, but not those with indented lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = functools.partial(*(textwrap.fill,), width=width, break_on_hyphens=False)
        parts = text.strip("\n").split("\n\n")
        return "\n\n".join(part if "\n " in part else wrap(part) for part in parts)


def list_rows(groups: Mapping[str, Mapping[str, str]]) -> str:
    """Format groups of names with a line each, in the width of the terminal."""
    form = functools.partial(_Help, max_help_position=30)
    parser = argparse.ArgumentParser(
        usage=argparse.SUPPRESS, add_help=False, formatter_class=form
    )
    for title, rows in groups.items():
        group = parser.add_argument_group(title)
        for name, text in rows.items():
            group.add_argument(name, metavar=name, help=text.replace("%", "%%"))
    return parser.format_help()


class _Parser(argparse.ArgumentParser):
    """Takes dashes within a flag for underscores, and names the flag or the command
    that is nearest to one that it does not know.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Let every option that takes a path refuse an empty one, which would be the
        current folder.
        """
        super().__init__(*args, **keywords)
        self.register("type", Path, _path)

    # One signature in place of argparse's overloads.
    def parse_known_args(self, args: Any, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read the arguments.

        Raises:
            UsageError: a flag or a command is not known, or one is missing.
        """
        words: list[str] = list(args)
        flags = {flag.replace("-", "_"): flag for flag in self._option_string_actions}
        own = words[:1] if self._subparsers else words
        for place, word in enumerate(itertools.takewhile("--".__ne__, own)):
            name, equals, value = word.partition("=")
            plain = name.replace("-", "_")
            if not name.startswith("--"):
                if self._subparsers and word not in (*COMMANDS, "-h"):
                    near = did_you_mean(word, COMMANDS)
                    self.error(f"there is no command {word}{near}")
            elif plain in flags:
                words[place] = f"{flags[plain]}{equals}{value}"
            elif "__config" in flags and plain.startswith("__config."):
                words[place] = f"--{plain[2:]}{equals}{value}"
            elif " " not in name:
                near = did_you_mean(plain[2:], [each[2:] for each in flags])
                near = near.replace("mean ", "mean --")
                if not near and "__config" in flags:
                    from jaxformer.runs.config import find_key

                    key = find_key(name[2:])
                    near = f"; did you mean --config.{key}=VALUE?" * bool(key)
                self.error(f"there is no flag {name}{near}")
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong.

        Raises:
            UsageError: always.
        """
        raise UsageError(message)


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError(
            "the path is empty: name a file or a folder, such as . for this one"
        )
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is in a bucket, and only the directory of a run can be: name a"
            " file or a folder of this machine"
        )
    return Path(text)


def text_file(text: str) -> Path | None:
    """Return the value of an option that names a file of text; None for ``-``, which is
    standard input or output.
    """
    return None if text == "-" else _path(text)


def run_directory(text: str) -> Path | bucket.DirectoryURL:
    """Return the value of an option that names the directory of a run."""
    return bucket.DirectoryURL(text) if "://" in text else _path(text)


def _open_runs(options: argparse.Namespace) -> None:
    """Replace the URLs of runs by the folders of their mirrors."""

    def opened(value: Any) -> Any:
        if isinstance(value, list):
            return [opened(each) for each in value]
        is_url = isinstance(value, bucket.DirectoryURL)
        return bucket.open_directory(value) if is_url else value

    for name, value in vars(options).items():
        setattr(options, name, opened(value))


def make_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Describe the command line: every command by a line, and the arguments of one.

    Args:
        command: whose arguments are declared; only its libraries are loaded.
    """
    parser = _Parser(
        prog="jaxformer",
        description='The Transformer of "Attention Is All You Need" in JAX and Flax.',
        usage="jaxformer COMMAND [OPTION ...]",
        epilog=f"{list_rows(GROUPS)}\njaxformer COMMAND --help explains a command with"
        " an example.",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"jaxformer {__version__}"
    )
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="COMMAND",
        prog="jaxformer",
        help=argparse.SUPPRESS,
    )
    for name, summary in COMMANDS.items():
        described = commands.add_parser(
            name,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=_Help,
            allow_abbrev=False,
        )
        if name == command:
            module = importlib.import_module(f"jaxformer.cli.{name}")
            described.epilog = module.EXAMPLE
            module.configure(described)
            described.set_defaults(run=module.run)
            form = argparse.HelpFormatter(described.prog)
            needed = [
                x for x in described._actions if x.required or not x.option_strings
            ]
            form.add_usage(None, needed, [], "")
            described.usage = f"{form.format_help().strip()} [OPTION ...]"
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Load the libraries of the command and read its arguments.

    Raises:
        UsageError: they are wrong.
    """
    parser = make_parser(arguments[0] if arguments else None)
    options, options.overrides = parser.parse_known_args(arguments)
    if options.overrides and not hasattr(options, "config"):
        given = " ".join(options.overrides)
        near = f"; did you mean --input={given}?" * hasattr(options, "input")
        parser.error(f"unrecognized arguments: {given}{near}")
    return options


def wrap(line: str, stream: TextIO, indent: int = 2) -> str:
    """Break a line between words where it is longer than the width of a terminal. A
    command ends with backslashes there, and can be copied.
    """
    if not stream.isatty():
        return line
    end = " \\\n" if line.startswith("next: ") else "\n"
    parts = textwrap.wrap(
        line,
        shutil.get_terminal_size().columns + 1 - len(end),
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=indent > 2,
    )
    return end.join(parts)


def _explain(error: BaseException) -> str | None:
    """Return the one line for an error that has a cure; None: it is a fault of ours."""
    text = str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: " * bool(error.filename) + describe(error)
    if isinstance(error, InputError):
        return text
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in text for word in _OUT_OF_MEMORY)
    ):
        return (
            "there is not enough memory: lower data.tokens_per_batch,"
            " data.vocabulary_size or the widths of model to train; --batch_size,"
            " --tokens_per_batch, --beam_size or --n_best to translate"
            f" ({text[:200]})"
        )
    # TensorStore and XLA raise errors of their own for it.
    if os.strerror(errno.EMFILE) in text:
        return describe(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
    asked = os.environ.get("JAX_PLATFORMS")
    # Without the device's plugin JAX ends with an empty AssertionError.
    if asked and (
        "initialize backend" in text or (isinstance(error, AssertionError) and not text)
    ):
        return (
            f"JAX_PLATFORMS={asked} asks for a device that JAX does not find here:"
            " unset JAX_PLATFORMS, set it to cpu, or install JAX for the device, such"
            " as jax[cuda12]"
        )
    return None


def report(error: BaseException) -> int:
    """Print in one line what ended a command, and return the exit code. A fault of ours
    is printed with its traceback.
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    # who read the output has enough, as `head` does
    if isinstance(error, BrokenPipeError):
        return FAILED
    reason = _explain(error)
    if reason is None:
        traceback.print_exception(error)
        return FAILED
    line = escape_controls(bucket.reword(" ".join(reason.split())))
    sys.stderr.write(f"{wrap(f'jaxformer: error: {line}', sys.stderr)}\n")
    return WRONG_USAGE if isinstance(error, UsageError) else FAILED


_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "bad_alloc")

CACHE_BYTES = 2**29
"""Most bytes of compiled programs that are kept; at a start the least recently used
beyond them are removed.
"""


def keep_programs() -> None:
    """Let JAX keep compiled programs in the user's cache folder, and a CPU run each in
    the thread that calls it, so that searches run side by side; JAX's own variables
    take precedence.

    Nothing is kept where the user has no home, or one that cannot be written.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        # RuntimeError: no HOME, and a user whom the system does not know
        with contextlib.suppress(RuntimeError, OSError, InputError):
            home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            folder = Path(home) / "jaxformer" / "xla"
            own = folder / name_machine()
            own.mkdir(parents=True, exist_ok=True)
            check_writable(own)
            jax.config.update("jax_compilation_cache_dir", str(own))
            # another process may remove a program meanwhile
            prune_programs(folder, CACHE_BYTES)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Of all programs, however small: a first state is drawn by many.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if "JAX_CPU_ENABLE_ASYNC_DISPATCH" not in os.environ:
        jax.config.update("jax_cpu_enable_async_dispatch", False)


def name_machine() -> str:
    """Return a name of jaxlib's version and the CPU: a program compiled for another CPU
    may crash.
    """
    words = [platform.system(), platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        starts = ("model name", "flags", "Features", "CPU part")
        words += sorted({x for x in text.splitlines() if x.startswith(starts)})
    digest = hashlib.sha256(repr(words).encode()).hexdigest()
    return f"{importlib.metadata.version('jaxlib')}-{digest[:12]}"


def prune_programs(folder: Path, most: int) -> None:
    """Remove the least recently used programs of a folder and its folders until the
    rest has at most so many bytes.
    """
    found = []
    for path in folder.rglob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            status = path.stat()
            found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    for _, size, path in sorted(found, reverse=True):
        most -= size
        if most < 0:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(start())
