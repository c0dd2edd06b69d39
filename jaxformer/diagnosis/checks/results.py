"""Checks of ``results.json``: test set, metric, checkpoint and search."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence

from jaxformer.data.language_codes import short_code
from jaxformer.diagnosis.checks.learning import best_curve
from jaxformer.diagnosis.checks.recipe import (
    is_given,
    is_paper_sized,
    name_width,
    write_differences,
)
from jaxformer.diagnosis.evidence import Evidence, UnseenError, find_curve
from jaxformer.diagnosis.findings import Finding, judge
from jaxformer.errors import InputError
from jaxformer.evaluation.known_sets import FILTERED_NEWSTEST2014, SENTENCES, find_known
from jaxformer.evaluation.metrics import score, tokenizing_bleu
from jaxformer.evaluation.tokenizers import USUAL, find_lack, list_tokenizers
from jaxformer.search.config import differing_settings

_AGAIN = "jaxformer evaluate --checkpoint=best"
_FAR_BELOW = 0.5  # of the score on the validation text
_SIGNATURE = {"nrefs": "1", "case": "mixed", "eff": "no", "tok": "13a", "smooth": "exp"}
# A record without these settings of the paper may be of any search.
_SEARCH = ("beam_size", "length_penalty", "alpha", "max_extra_length")


def check_signature(run: Evidence) -> Finding:
    """Compare sacreBLEU's signature with the usual one (Post 2018); of several, the
    nearest.
    """
    record, references = run.record, ()
    language = record.get("target_language") or run.config.data.target_language
    with contextlib.suppress(InputError, OSError):
        references = run.references
    tokenizers = list_tokenizers(language, references)
    signatures = {
        key.removesuffix("_signature"): value
        for key, value in record.items()
        if key.endswith("_signature") and isinstance(value, str)
    }
    others = {
        key: _unusual_parts(signatures[key], tokenizers)
        for key in signatures
        if re.fullmatch("bleu(:.+)?", key)
    }
    if not others:
        return judge(
            "look",
            f"no sacreBLEU score, but {', '.join(signatures) or 'no score at all'}",
            "bleu, with its signature (Post 2018)",
            "jaxformer evaluate --metrics=bleu,chrf",
        )
    key = min(others, key=lambda key: len(others[key]))
    usual = _SIGNATURE | {"tok": tokenizers[0]}
    note = ""
    if tokenizers[0] == USUAL:
        note = (
            "; the paper's Table 2 is compound_split_bleu, about 0.7 higher for big"
            " (fairseq issue 1113)"
        )
    elif USUAL not in tokenizers:
        note = f"; {USUAL} takes a clause without spaces for one word"
    return judge(
        "look" if others[key] else "ok",
        f"{signatures[key]}, BLEU {record.get(key)}",
        "|".join(f"{name}:{value}" for name, value in usual.items()) + note,
        f"{', '.join(others[key])} compares with no score of the usual signature:"
        " jaxformer evaluate --metrics=bleu",
    )


def _unusual_parts(signature: str, tokenizers: Sequence[str]) -> list[str]:
    """List the unusual parts of a signature. A tokenizer's version may follow it."""
    parts = dict(part.split(":", 1) for part in signature.split("|") if ":" in part)
    usual = _SIGNATURE | {"tok": rf"({'|'.join(tokenizers)})(-\d.*)?"}
    return [
        f"{name}:{parts.get(name)}"
        for name, pattern in usual.items()
        if not re.fullmatch(pattern, parts.get(name, ""))
    ]


def check_search(run: Evidence) -> Finding:
    """List the search settings that differ from the paper's."""
    settings, own = run.record.get("decoding", {}), {}
    whose, usual = "paper", "beam 4, ((5 + n) / 6)^0.6, at most 50 tokens more"
    expected = (
        "beam 4, alpha 0.6 of the GNMT penalty, source + 50 tokens (paper, section 6.1;"
        " Wu et al. 2016, equation 14)"
    )
    if is_given(run.config):
        changed = differing_settings(dataclasses.asdict(run.config.decoding))
        own = {name: value for name, (value, _) in changed.items()}
        whose, expected = "run", "the search of the model that was given"
    others = differing_settings(settings, **own)
    missing = [name for name in _SEARCH if name not in settings]
    if missing and not others:
        raise UnseenError(
            f"the result does not record {', '.join(missing)} of its search"
        )
    return judge(
        "wrong" if "sample" in others else "look" if others else "ok",
        write_differences(((name, *values) for name, values in others.items()), whose)
        or (f"that of the {whose}" if own else f"{usual} than the source"),
        expected,
        f"evaluate with the {whose}'s settings too, then jaxformer compare",
    )


def check_averaging(run: Evidence) -> Finding:
    """Check whether an average of checkpoints was scored on the same text."""
    config, record, averages = run.config, run.record, run.averages
    expected = (
        "the last 5 checkpoints averaged for base, 20 for big (paper, section 6.1)"
    )
    checkpoints = {
        str(other.get("checkpoint"))
        for other in run.results.values()
        if other.get("dataset") == record.get("dataset")
    }
    used = sorted(name for name in checkpoints if "average" in name)
    if used:
        also = "" if record.get("checkpoint") in used else "also "
        return Finding("ok", f"{also}scored with {', '.join(used)}", expected)
    if config.data.test == config.data.valid:
        return Finding(
            "ok",
            "nothing averaged, and the test set is the one that validates",
            "only the last checkpoint, as in the paper's Table 3 (section 6.2)",
        )
    keep, decay = config.training.keep_latest, config.training.ema_decay
    if decay is not None:
        return Finding(
            "ok", f"a moving average of the parameters, decay {decay}", expected
        )
    cure = "jaxformer average --last=5, then jaxformer evaluate --checkpoint=average"
    if keep < 5 and not averages:
        cure = (
            f"training.keep_latest={keep} keeps too few:"
            f" --config.training.keep_latest=5; then {cure}"
        )
    if not is_paper_sized(config):
        expected += (
            f"{name_width(config)}, but +1.5 for three of width 128 (measured on the"
            " bundled corpus)"
        )
    there = ", ".join(average.name for average in averages)
    return judge(
        "look" if averages or is_paper_sized(config) else "ok",
        f"no result of an average on {record.get('dataset')};"
        f" {f'averages/ has {there}' if averages else 'there is no average'}",
        expected,
        cure,
    )


def check_checkpoint(run: Evidence) -> Finding:
    """Check that the scored checkpoint is near the best, and still exists."""
    step, (key, sign) = run.record.get("checkpoint"), best_curve(run.config)
    points, saved = dict(run.curves.get(key, ())), run.saved
    names = {f"average/{average.name}" for average in run.averages}
    if isinstance(step, str) and " + " not in step and step not in names:
        return judge(
            "look",
            f"{step}, which is gone: there is"
            f" {', '.join(sorted(names)) or 'no average'}",
            "the scored parameters exist",
            _AGAIN,
        )
    if not isinstance(step, int) or not points:
        raise UnseenError(
            f"checkpoint {step}, and {len(points)} evaluations with {key}"
        )
    near = 0.02 if sign < 0 else 0.5
    best = max(points, key=lambda at: sign * points[at])
    close = step in points and sign * (points[best] - points[step]) <= near
    last = f" (the last is {saved[-1]:,})" if saved else ""
    gone = "" if step in saved else f", which is gone{last}"
    value = f"{points[step]:.2f}" if step in points else "never measured"
    return judge(
        "ok" if close and not gone else "look",
        f"checkpoint {step:,}{gone}, {key} {value}",
        f"the best by data.valid, step {best:,} with {points[best]:.2f}, or an average;"
        " never chosen by the test set",
        _AGAIN,
    )


def check_test_set(run: Evidence) -> Finding:
    """Compare the number of sentences with that of a published test set."""
    name, count = str(run.record.get("dataset")), run.record.get("sentences")
    title, data = find_known(name), run.config.data
    found = f"{count} sentences of {name}"
    if title is None or title not in SENTENCES:
        return Finding("ok", found, "no published test set")
    expected = f"{title} has {SENTENCES[title]:,}"
    languages = [short_code(code) for code in data.languages]
    if title == "newstest2014" and languages == ["en", "de"]:
        expected += f", filtered {FILTERED_NEWSTEST2014:,} (mtdata issue 3)"
        if count == FILTERED_NEWSTEST2014:
            cure = (
                "scores of the two sets do not compare: --dataset=sacrebleu:wmt14/full"
            )
            return judge("look", found, expected, cure)
    return judge(
        "ok" if count == SENTENCES[title] else "wrong",
        found,
        expected,
        "lines are missing or too many: take the published set (sacrebleu:wmt14/full,"
        " sacrebleu:wmt13)",
    )


def check_recount(run: Evidence) -> Finding:
    """Score the file of translations again."""
    if "bleu" not in run.record:
        raise UnseenError("the result has no bleu")
    signature = str(run.record.get("bleu_signature", ""))
    found = re.search(r"tok:([^|]+?)(-\d[^|]*-[^|]+)?(\||$)", signature)
    tokenizer = found[1] if found else USUAL
    if lack := find_lack(tokenizer):
        raise UnseenError(lack)
    bleu = tokenizing_bleu(tokenizer)
    value = score(bleu, run.hypotheses, run.references).value
    return judge(
        "ok" if abs(value - run.record["bleu"]) < 0.011 else "wrong",
        f"BLEU {value:.2f} of {run.record.get('hypotheses')}, {run.record['bleu']} in"
        " results.json",
        "the same",
        "the file or the record was changed: jaxformer evaluate again",
    )


def check_beside_validation(run: Evidence) -> Finding:
    """Compare the score with the best one on the validation text."""
    best = max(value for _, value in find_curve(run, "valid/bleu"))
    bleu = run.record.get("bleu")
    if bleu is None:
        raise UnseenError("the result has no bleu")
    return judge(
        "look" if bleu < _FAR_BELOW * best else "ok",
        f"BLEU {bleu} of {run.record.get('dataset')}, {best:.2f} of data.valid",
        f"at least {_FAR_BELOW:.0%} of it",
        "read some lines of source, translation and reference: the text may be of"
        " another kind, and references may belong to other lines or have another form",
    )
