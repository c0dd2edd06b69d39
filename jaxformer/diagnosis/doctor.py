"""All checks of a run, in the order in which text becomes a score."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jaxformer.diagnosis.checks import hypotheses, learning, recipe, results, text
from jaxformer.diagnosis.evidence import Evidence
from jaxformer.diagnosis.findings import Finding, judge
from jaxformer.errors import InputError

READABLE = "readable"
"""The check of files that cannot be read."""

CHECKS: Mapping[str, Callable[[Evidence], Finding]] = {
    "batch": recipe.on_trained(recipe.check_batch),
    "warm-up": recipe.on_trained(recipe.check_warm_up),
    "peak rate": recipe.on_trained(recipe.check_peak_rate),
    "regularization": recipe.on_trained(recipe.check_regularization),
    "optimizer": recipe.on_trained(recipe.check_optimizer),
    "architecture": recipe.check_architecture,
    "selection": recipe.on_trained(recipe.check_selection),
    "training form": text.check_training_form,
    "training alignment": text.check_training_alignment,
    "training languages": text.check_training_languages,
    "training quotes": text.on_training(text.judge_quotes),
    "training case": text.on_training(text.judge_case),
    "untranslated": text.check_untranslated,
    "dropped": text.check_dropped,
    "test form": text.check_test_form,
    "test alignment": text.check_test_alignment,
    "test languages": text.check_test_languages,
    "test blanks": text.check_test_blanks,
    "leak": text.check_leak,
    "vocabulary": text.check_vocabulary,
    "unknown": text.check_unknown,
    "vocabulary fit": text.check_vocabulary_fit,
    "finished": learning.check_finished,
    "diverged": learning.check_diverged,
    "stalled": learning.check_stalled,
    "skipped": learning.check_skipped,
    "still falling": learning.check_still_falling,
    "overfitted": learning.check_overfitted,
    "averaging": recipe.on_trained(results.check_averaging),
    "checkpoint": results.check_checkpoint,
    "test set": results.check_test_set,
    "signature": results.check_signature,
    "search": results.check_search,
    "recount": results.check_recount,
    "beside validation": results.check_beside_validation,
    "output order": hypotheses.check_order,
    "output form": text.check_output_form,
    "output quotes": text.on_output(text.judge_quotes),
    "output case": text.on_output(text.judge_case),
    "length": hypotheses.check_length,
    "cut": hypotheses.check_cut,
    "empty": hypotheses.check_empty,
    "copies": hypotheses.check_copies,
    "loops": hypotheses.check_loops,
    "variety": hypotheses.check_variety,
}
"""Checks by name; docs/why-is-my-bleu-lower.md explains each."""


def examine(run: Evidence) -> dict[str, Finding]:
    """Make every check; a check without evidence is ``unseen`` with the reason."""
    faults = run.list_faults()
    readable = judge(
        "wrong" if faults else "ok",
        "; ".join(faults) or "all files",
        "files as they were written, with as many lines on both sides",
        "restore the files, or evaluate again where text was changed on purpose",
    )
    findings = {READABLE: readable}
    for name, check in CHECKS.items():
        try:
            findings[name] = check(run)
        except (InputError, OSError) as error:  # or an optional package is missing
            findings[name] = Finding("unseen", str(error))
    return findings
