"""The arguments that several commands share, and the models that they name."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxformer import bucket
from jaxformer.cli.main import run_directory, text_file
from jaxformer.cli.output import announce_compilations, phase, say
from jaxformer.errors import InputError, UsageError
from jaxformer.runs import config as configuration
from jaxformer.search.config import SAMPLING, DecodingConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from jaxformer.translation.translator import Translator


def number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from ``least`` to
    ``most``.
    """

    def parse(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,}, not {value}")
        return value

    parse.__name__ = "whole number"  # argparse shows it for text that is not a number
    return parse


def numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Return the type of an option that is several numbers, each of a ``kind``."""

    def parse(text: str) -> list[Any]:
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be numbers separated by commas, such as 2,1, not {text!r}"
            ) from None

    return parse


def named(form: str) -> Callable[[str], tuple[str, str]]:
    """Return the type of an option that is a name and a value, such as ``NAME=FILE``,
    which is its ``form``.
    """

    def parse(text: str) -> tuple[str, str]:
        name, _, value = text.partition("=")
        if not (name and value):
            raise argparse.ArgumentTypeError(f"must be {form}, not {text!r}")
        return name, value

    return parse


def add_options(
    parser: argparse._ActionsContainer,
    *rows: tuple[Any, ...],
    repeated: bool = False,
) -> None:
    """Declare options of a parser or a group.

    Args:
        parser: that gets them.
        *rows: name, type, metavar and help text of each option, and its default if it
            has one.
        repeated: whether each may be given several times; its value is a list.
    """
    more = {"action": "append", "default": []} if repeated else {}
    for name, kind, metavar, meaning, *default in rows:
        if default:
            more, meaning = {"default": default[0]}, f"{meaning} (default {default[0]})"
        parser.add_argument(
            f"--{name}", type=kind, metavar=metavar, help=meaning, **more
        )


def add_flags(parser: argparse._ActionsContainer, **flags: str) -> None:
    """Declare options without a value, by their names and help texts."""
    for name, meaning in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)


def add_workdir(
    parser: argparse.ArgumentParser, described: str = "directory of a trained run"
) -> None:
    """Declare the directory of a run."""
    parser.add_argument(
        "--workdir", required=True, type=run_directory, metavar="DIR", help=described
    )


def add_output(parser: argparse.ArgumentParser, *forms: str) -> None:
    """Declare where to write, and in which form, ``forms`` besides the usual ones."""
    where = "where to write (default: standard output)"
    add_options(parser, ("output", text_file, "FILE", where))
    parser.add_argument(
        "--format",
        choices=("text", "jsonl", *forms),
        default="text",
        help="default: text",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Declare a run and a checkpoint."""
    add_workdir(parser)
    add_which(parser)


def add_which(parser: argparse.ArgumentParser) -> None:
    """Declare the checkpoint of a run."""
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, average (the newest) or average/NAME",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declare a run, a checkpoint, and the languages that it translates."""
    add_checkpoint(parser)
    add_languages(parser)


def add_languages(parser: argparse.ArgumentParser) -> None:
    """Declare the languages of the text."""
    parser.add_argument(
        "--to",
        "--target_language",
        dest="target_language",
        metavar="CODE",
        help="what to translate into, for a run of several languages",
    )
    parser.add_argument(
        "--from",
        dest="source_language",
        metavar="CODE",
        help="what to translate from, for an imported model whose input names it",
    )


def add_ensemble(parser: argparse.ArgumentParser) -> None:
    """Declare the models that predict together with that of :func:`add_model`."""
    together = (
        "a run of the same vocabulary that predicts each token together with the first,"
        " and which checkpoint (default: its best); may be repeated"
    )
    weight = "weight of each model, that of --workdir first (default: all equal)"
    row = ("ensemble", str, "DIR[@WHICH]", together)
    add_options(parser, row, repeated=True)
    add_options(parser, ("ensemble_weights", numbers(float), "W,W", weight))


_OF_SOURCES = {
    *("coverage_penalty", "min_length_ratio", "max_target_length"),
    *("max_length_ratio", "max_extra_length", "tokens_per_batch"),
}
"""Keys of the section ``decoding`` that a text which is continued does not have."""


def add_decoding(parser: argparse.ArgumentParser, *, source: bool = True) -> None:
    """Declare a flag for each key of the section ``decoding`` that has a help text; the
    defaults are those of the run.

    Args:
        parser: of a command.
        source: whether the model has one; without, keys of sources are left out.
    """
    words = {} if source else {"translation": "continuation", "sentences": "prompts"}
    add_keys(parser, DecodingConfig, () if source else _OF_SOURCES, words)


def add_keys(
    parser: argparse._ActionsContainer,
    section: type[DataclassInstance],
    omitted: Collection[str] = (),
    words: Mapping[str, str] | None = None,
) -> None:
    """Declare a flag for each key of a section that has a help text.

    Args:
        parser: of a command.
        section: a dataclass of keys.
        omitted: names of keys without a flag.
        words: of the help texts, and what replaces them.
    """
    if section is DecodingConfig:
        parser = parser.add_argument_group(
            "search", "The run's own settings take precedence over these defaults."
        )
    for field in _flags(section):
        if field.name in omitted:
            continue
        text = field.metadata["help"]
        for word, other in (words or {}).items():
            text = text.replace(word, other)
        if field.type == "bool":
            kind: dict[str, Any] = {"action": "store_const", "const": True}
        else:
            if field.default not in ("", None, ()) and "default" not in text:
                text += f" (default: {field.default})"
            types = {"int": int, "float": float}
            kind = {"type": types.get(str(field.type).split(" ")[0], str)}
            kind["metavar"] = field.metadata["flag"]
            kind["action"] = "append" if field.default == () else "store"
        parser.add_argument(f"--{field.name}", help=text, **kind)


def add_search(parser: argparse.ArgumentParser) -> None:
    """Declare how translations are searched."""
    add_decoding(parser)
    add_flags(
        parser,
        split_long="cut lines that are longer than in training, also where the run"
        " refuses them",
        shortlist="only tokens that jaxformer shortlist found likely for each sentence",
    )


def _flags(section: type[DataclassInstance]) -> list[dataclasses.Field[Any]]:
    fields = dataclasses.fields(section)
    return [field for field in fields if field.metadata.get("help")]


def asked_keys(
    options: argparse.Namespace, section: type[DataclassInstance]
) -> dict[str, Any]:
    """Return the keys of a section that the command line sets."""
    given = vars(options)
    asked = {field.name: given.get(field.name) for field in _flags(section)}
    return {name: value for name, value in asked.items() if value is not None}


def asked_search(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keys of the section ``decoding`` that the command line sets."""
    long = {"long_sources": "split"} if vars(options).get("split_long") else {}
    return asked_keys(options, DecodingConfig) | long


@contextlib.contextmanager
def wrong_usage(section: str = "-") -> Iterator[None]:
    """Raise an error as one of the command line, with flags for keys of a section.

    Raises:
        UsageError: a value of the command line is refused.
    """
    try:
        yield
    except InputError as error:
        raise UsageError(str(error).replace(f"{section}.", "--")) from None


def read_search(options: argparse.Namespace) -> DecodingConfig:
    """Read how a run searches, and :func:`choose_search` before it is restored."""
    config = configuration.load(options.workdir / "config.json")
    return choose_search(options, config.decoding)


def choose_search(
    options: argparse.Namespace, decoding: DecodingConfig
) -> DecodingConfig:
    """Override the settings of a run by those of the command line.

    Raises:
        UsageError: a value is out of range, or is for sampling and nothing is sampled.
    """
    asked = asked_search(options)
    with wrong_usage("decoding"):
        chosen = dataclasses.replace(decoding, **asked)
    drawn = "is for drawing at random: add --sample, or leave it out"
    needless = dict.fromkeys(map(str, SAMPLING), drawn)
    if chosen.sample:
        needless = {"beam_size": "is for a search: leave it out, or --sample"}
    if chosen.length_penalty == "none":
        needless["alpha"] = "has no effect with length_penalty=none: leave it out"
    for name, reason in needless.items():
        if name in asked:
            raise UsageError(f"--{name} {reason}")
    most = vars(options).get("n_best", 1)
    if most > chosen.beam_size and not chosen.sample:
        raise UsageError(
            f"--n_best must be at most the beam of {chosen.beam_size}, not {most}:"
            " widen --beam_size, or add --sample"
        )
    return chosen


def check_text(options: argparse.Namespace) -> None:
    """Check that a data set is named, or files of both sides, or neither.

    Raises:
        UsageError: only one side is, or both ways are taken.
    """
    if (options.source is None) != (not options.reference):
        raise UsageError(
            "--source and --reference go together: give both, or a --dataset"
        )
    if options.source is not None and options.dataset is not None:
        raise UsageError("give either --dataset, or --source and --reference")


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Declare the metrics to score by."""
    from jaxformer.evaluation.choice import DEFAULT_METRICS, METRICS

    parser.add_argument(
        "--metrics",
        type=lambda names: names.split(","),
        metavar="NAMES",
        help=f"of {', '.join(METRICS)}, bleu:TOKENIZER, with commas between them"
        f" (default {','.join(DEFAULT_METRICS)}; evaluate of a run with"
        " evaluation.best_metric=f1: f1 as well)",
    )


@phase("restoring the model")
def load_translator(
    options: argparse.Namespace,
    target_language: str | None,
    source_language: str | None = None,
    objective: str = "translation",
) -> Translator:
    """Load what :func:`add_model` and :func:`add_ensemble` name, and the shortlist and
    settings of :func:`add_search`.

    Args:
        options: of the command line.
        target_language: what to translate into; None: that of the run.
        source_language: what the text is in; None: as ``--from`` says, which then must
            be a language that the run's input names.
        objective: that the run must have been trained for.

    Raises:
        InputError: a run, checkpoint, language or shortlist is missing, or they do not
            fit together.
    """
    from jaxformer.translation.translator import Translator

    decoding = read_search(options)
    announce_compilations()
    weights = options.ensemble_weights
    if weights is not None and not options.ensemble:
        raise UsageError(
            "--ensemble_weights weighs the models of an ensemble: add --ensemble, or"
            " leave it out"
        )
    languages = target_language, source_language or options.source_language
    given = vars(options)
    small = given.get("precision") in ("bfloat16", "int8")
    # An alignment takes the weights as they were saved.
    only = small and not (given.get("alignment") or options.ensemble)
    translator = Translator.load(
        options.workdir,
        options.checkpoint,
        *languages,
        precision=given["precision"] if only else None,
        objective=objective,
    )
    if source_language is None:
        check_source_language(options, translator)
    if any(languages):
        from jaxformer.data.language_codes import describe_choices

        for note in describe_choices(languages[::-1], translator.languages):
            say(note)
    others = [load_named("--ensemble", name, *languages) for name in options.ensemble]
    if others:
        translator = Translator.ensemble([translator, *others], weights)
    if given.get("shortlist"):
        from jaxformer.translation.shortlist import Shortlist

        translator.shortlist = Shortlist.find(
            options.workdir,
            translator.vocabularies,
            translator.languages,
            tagged=bool(translator.codec.frame.source_before),
        )
    translator.decoding = decoding
    return translator


def check_source_language(options: argparse.Namespace, translator: Translator) -> None:
    """Check that ``--from`` changes something.

    Raises:
        InputError: it is given, and no token of the run depends on it.
    """
    template, asked = translator.vocabularies.template, options.source_language
    if asked is not None and (template is None or not template.has_source):
        raise InputError(
            f"--from={asked} is for an imported model whose input names its language,"
            f" and that of {options.workdir} does not: leave it out"
        )


def load_named(
    option: str,
    name: str,
    target_language: str | None = None,
    source_language: str | None = None,
) -> Translator:
    """Load the run that ``DIR`` or ``DIR@CHECKPOINT`` names; an existing directory
    takes precedence.

    Args:
        option: that names it, for an error.
        name: of the run.
        target_language: what to translate into; None: that of the run.
        source_language: what to translate from; None: that of the run.

    Raises:
        InputError: there is no such run or checkpoint.
    """
    from jaxformer.translation.translator import Translator

    return Translator.load(*find_named(option, name), target_language, source_language)


def find_named(option: str, name: str) -> tuple[Path, str]:
    """Return the directory of a run and the checkpoint that :func:`load_named` loads.

    Raises:
        InputError: there is no such run.
    """
    directory, _, checkpoint = name.rpartition("@")
    if Path(name).is_dir() or not directory:
        directory, checkpoint = name, "best"
    run = bucket.open_directory(directory)
    if not directory or not (run / "config.json").exists():
        raise InputError(
            f"{run / 'config.json'} does not exist; {option} must name the directory of"
            " a run"
        )
    return run, checkpoint


def refuse_flags(
    options: argparse.Namespace, objective: str, flags: Iterable[str]
) -> None:
    """Refuse flags of translations, for a run of another objective.

    Raises:
        UsageError: one is given.
    """
    for name in flags:
        if vars(options)[name]:
            flag = {"source_language": "from", "target_language": "to"}.get(name, name)
            raise UsageError(
                f"--{flag} is for translations, and {options.workdir} has"
                f" training.objective={objective}: leave it out"
            )
