"""All checks of a run, in the order in which text becomes a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.diagnosis import hypotheses, learning, recipe, results, text
from jaxformer.diagnosis.evidence import Evidence, Unseen
from jaxformer.diagnosis.findings import Finding, Opinion, join_sides, judge
from jaxformer.errors import InputError
from jaxformer.evaluation.outputs import ScoredSet
from jaxformer.runs.config import RunConfig


class Check(NamedTuple):
    """A check, and what of the evidence it is given.

    Attributes:
        name: as it is printed, and explained in docs/why-is-my-bleu-lower.md.
        ask: gives the opinion.
        of: the attributes of the evidence that it takes.
    """

    name: str
    ask: Callable[..., Opinion]
    of: tuple[str, ...]


def vocabulary(config: RunConfig, vocabularies: Vocabularies, trained: str) -> Opinion:
    """Return whether the vocabulary is the one that the best checkpoint was trained
    with.
    """
    sizes = vocabularies.source.size, vocabularies.target.size
    asked = (
        config.model.source_vocabulary_size or config.model.vocabulary_size,
        config.model.vocabulary_size,
    )
    return judge(
        "ok" if vocabularies.hash == trained and sizes == asked else "wrong",
        f"hash {vocabularies.hash[:12]}, {sizes[0]:,} and {sizes[1]:,} pieces",
        f"hash {trained[:12]} of the best checkpoint, {asked[0]:,} and {asked[1]:,}"
        " pieces of config.json",
        "put back vocabulary/ as the run was trained with: every token now means"
        " another",
    )


def _ask_sides(ask: Callable[..., Opinion], *texts: Sequence[Pair]) -> Opinion:
    """Ask a question of the sources of some texts, and of their targets: the model
    reads the one and learns both.
    """
    sources, targets = (
        ask(*([getattr(pair, side) for pair in text] for text in texts))
        for side in Pair._fields
    )
    return join_sides(sources, targets)


def _references(scored: ScoredSet) -> list[str]:
    return scored.references[0]


CHECKS = (
    Check("batch", recipe.batch, ("config",)),
    Check("tokens seen", recipe.tokens_seen, ("config", "curves")),
    Check("warm-up", recipe.warm_up, ("config",)),
    Check("peak rate", recipe.peak_rate, ("config",)),
    Check("regularization", recipe.regularization, ("config",)),
    Check("optimizer", recipe.optimizer, ("config",)),
    Check("architecture", recipe.architecture, ("config",)),
    Check("selection", recipe.selection, ("config", "chosen")),
    Check(
        "training form",
        lambda survey: _ask_sides(text.form, survey.sample),
        ("survey",),
    ),
    Check("training alignment", text.training_alignment, ("survey",)),
    Check(
        "training languages",
        lambda survey, c: text.languages(survey.sample, c.data),
        ("survey", "config"),
    ),
    Check(
        "training quotes",
        lambda survey, test: _ask_sides(text.quotes, survey.sample, test),
        ("survey", "test"),
    ),
    Check(
        "training case",
        lambda survey, test: _ask_sides(text.case, survey.sample, test),
        ("survey", "test"),
    ),
    Check("untranslated", text.untranslated, ("survey",)),
    Check("dropped", text.dropped, ("counts",)),
    Check("test form", lambda test: _ask_sides(text.form, test), ("test",)),
    Check("test alignment", text.alignment, ("test",)),
    Check(
        "test languages",
        lambda test, config: text.languages(test, config.data),
        ("test", "config"),
    ),
    Check("test blanks", text.blanks, ("test",)),
    Check("leak", text.leak, ("survey", "test")),
    Check("vocabulary", vocabulary, ("config", "vocabularies", "trained_vocabulary")),
    Check("unknown", text.unknown, ("vocabularies", "test")),
    Check("vocabulary fit", text.fit, ("vocabularies", "survey", "test")),
    Check("finished", learning.finished, ("config", "curves", "saved")),
    Check("diverged", learning.diverged, ("curves", "gaps")),
    Check("stalled", learning.stalled, ("config", "curves", "gaps")),
    Check("skipped", learning.skipped, ("curves",)),
    Check("still falling", learning.falling, ("curves",)),
    Check("overfitted", learning.overfitted, ("curves",)),
    Check("averaging", results.averaging, ("config", "records", "record", "averages")),
    Check(
        "checkpoint",
        results.checkpoint,
        ("config", "record", "curves", "saved", "averages"),
    ),
    Check("test set", results.test_set, ("config", "record")),
    Check("signature", results.signature, ("config", "record")),
    Check("search", results.search, ("record",)),
    Check("recount", results.recount, ("record", "hypotheses", "scored")),
    Check("beside validation", results.beside_validation, ("record", "curves")),
    Check("output order", hypotheses.order, ("hypotheses", "scored")),
    Check("output form", text.form, ("hypotheses",)),
    Check(
        "output quotes",
        lambda lines, scored: text.quotes(lines, _references(scored)),
        ("hypotheses", "scored"),
    ),
    Check(
        "output case",
        lambda lines, scored: text.case(lines, _references(scored)),
        ("hypotheses", "scored"),
    ),
    Check("length", hypotheses.length, ("hypotheses", "scored")),
    Check("cut", hypotheses.cut, ("record",)),
    Check("empty", hypotheses.empty, ("hypotheses",)),
    Check("copies", hypotheses.copies, ("hypotheses", "scored")),
    Check("loops", hypotheses.loops, ("hypotheses",)),
    Check("output unknown", hypotheses.unknown, ("hypotheses",)),
    Check("variety", hypotheses.variety, ("hypotheses", "scored")),
)

READABLE = "readable"
"""The check of what is there and cannot be read."""


def examine(evidence: Evidence) -> list[Finding]:
    """Make every check whose evidence is there, and say of the others why it is not."""
    broken = list(
        dict.fromkeys(
            part.reason for part in vars(evidence).values() if _is_broken(part)
        )
    )
    readable = judge(
        "wrong" if broken else "ok",
        "; ".join(broken) or "all that is there",
        "files as they were written, with as many lines on both sides",
        "mend or restore them, or evaluate again where text was changed on purpose",
    )
    return [Finding(READABLE, *readable), *(_make(check, evidence) for check in CHECKS)]


def _make(check: Check, evidence: Evidence) -> Finding:
    given = [getattr(evidence, name) for name in check.of]
    missing = next((part for part in given if isinstance(part, Unseen)), None)
    if missing is not None:
        return Finding(check.name, *Opinion("unseen", missing.reason))
    try:
        return Finding(check.name, *check.ask(*given))
    except InputError as error:  # an optional package is missing, or a language unknown
        return Finding(check.name, *Opinion("unseen", str(error)))


def _is_broken(part: object) -> bool:
    return isinstance(part, Unseen) and part.broken
