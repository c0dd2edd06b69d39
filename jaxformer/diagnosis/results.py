"""Checks of what results.json says: how was scored, on what, by which checkpoint and
with which search.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxformer.checkpoints.average import Average
from jaxformer.diagnosis.findings import Opinion, judge
from jaxformer.diagnosis.recipe import is_paper_sized, not_asked
from jaxformer.evaluation import metrics
from jaxformer.evaluation.known_sets import FILTERED_NEWSTEST2014, SENTENCES, find_known
from jaxformer.evaluation.outputs import ScoredSet
from jaxformer.runs.config import RunConfig
from jaxformer.runs.records import Curve
from jaxformer.search.config import differing_settings

Record = Mapping[str, Any]

_LAST_ALONE = "the last checkpoint alone, as in the paper's Table 3 (section 6.2)"
_AGAIN = "jaxformer evaluate --checkpoint=best"
_FAR_BELOW = 0.5  # of the score on the validation text
_SIGNATURE = {"nrefs": "1", "case": "mixed", "eff": "no", "tok": "13a", "smooth": "exp"}
# What the paper says of its search: a record without it may be of any.
_SEARCH = ("beam_size", "length_penalty", "alpha", "max_extra_length")
# The tokenizers of sacreBLEU for text whose words have no blanks between them; the
# first is the usual one.
_PIECES = ("flores200", "flores101", "spBLEU-1K", "char")
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), ("zh", *_PIECES)),
    **dict.fromkeys(("ja", "jpn"), ("ja-mecab", *_PIECES)),
    # it has blanks, between more than words
    **dict.fromkeys(("ko", "kor"), ("ko-mecab", "13a", *_PIECES)),
    **dict.fromkeys(
        ("th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo"),
        _PIECES,
    ),
}


def signature(config: RunConfig, record: Record) -> Opinion:
    """Hold sacreBLEU's signature against the one that papers report since Post 2018;
    of several, the nearest.
    """
    language = re.split(
        r"[-_]",
        str(record.get("target_language") or config.data.target_language).lower(),
    )[0]
    tokenizers = _TOKENIZERS.get(language, ("13a",))
    option = "bleu" if tokenizers[0] == "13a" else f"bleu:{tokenizers[0]}"
    signatures = {
        key.removesuffix("_signature"): value
        for key, value in record.items()
        if key.endswith("_signature") and isinstance(value, str)
    }
    others = {
        key: _differences(signatures[key], tokenizers)
        for key in signatures
        if re.fullmatch("bleu(:.+)?", key)
    }
    if not others:
        return judge(
            "look",
            f"no sacreBLEU score, but {', '.join(signatures) or 'no score at all'}",
            "bleu, with its signature (Post 2018)",
            f"jaxformer evaluate --metrics={option},chrf",
        )
    key = min(others, key=lambda key: len(others[key]))
    usual = "|".join(
        f"{name}:{value}"
        for name, value in {**_SIGNATURE, "tok": tokenizers[0]}.items()
    )
    note = (
        ""
        if "13a" in tokenizers
        else f"; 13a takes a clause without blanks for one word of {language}"
    )
    if option == "bleu":
        note = (
            "; the paper's Table 2 is compound_split_bleu, about 0.7 higher for big"
            " (fairseq issue 1113)"
        )
    return judge(
        "look" if others[key] else "ok",
        f"{signatures[key]}, BLEU {record.get(key)}",
        usual + note,
        f"{', '.join(others[key])} compares with no score of the usual signature:"
        f" jaxformer evaluate --metrics={option}",
    )


def _differences(found: str, tokenizers: Sequence[str]) -> list[str]:
    """List the parts of a signature that are unusual; behind the tokenizer's name
    its version may stand.
    """
    parts = dict(part.split(":", 1) for part in found.split("|") if ":" in part)
    others = [
        name
        for name, value in _SIGNATURE.items()
        if name != "tok" and parts.get(name) != value
    ]
    if not any(
        re.fullmatch(rf"{name}(-\d.*)?", parts.get("tok", "")) for name in tokenizers
    ):
        others.append("tok")
    return [f"{name}:{parts.get(name)}" for name in others]


def search(record: Record) -> Opinion:
    """List the settings of the search that are not the paper's."""
    if not isinstance(record.get("decoding"), dict):
        return Opinion("unseen", "the result does not say how it was searched")
    others = differing_settings(record["decoding"])
    missing = [name for name in _SEARCH if name not in record["decoding"]]
    if missing and not others:
        return Opinion(
            "unseen", f"the result does not say {', '.join(missing)} of its search"
        )
    words = ", ".join(
        f"{name}={value} (paper: {wanted})" for name, (value, wanted) in others.items()
    )
    return judge(
        "wrong" if "sample" in others else "look" if others else "ok",
        words or "beam 4, ((5 + n) / 6)^0.6, at most 50 tokens more than the source",
        "beam 4, alpha 0.6 of the GNMT penalty, source + 50 tokens (paper, section 6.1;"
        " Wu et al. 2016, equation 14)",
        "jaxformer evaluate with the paper's settings beside it, then jaxformer"
        " compare",
    )


def averaging(
    config: RunConfig,
    records: Mapping[str, Record],
    record: Record,
    averages: Sequence[Average],
) -> Opinion:
    """Return whether an average of checkpoints was scored on the text of the result
    that is looked at.
    """
    alike = [
        other
        for other in records.values()
        if other.get("dataset") == record.get("dataset")
    ]
    used = sorted(
        {
            str(r.get("checkpoint"))
            for r in alike
            if "average" in str(r.get("checkpoint"))
        }
    )
    keep, decay = config.training.keep_latest, config.training.ema_decay
    expected = (
        "the last 5 checkpoints averaged for base, 20 for big (paper, section 6.1)"
    )
    if used:
        also = "" if record.get("checkpoint") in used else "also "
        return Opinion("ok", f"{also}scored with {', '.join(used)}", expected)
    if config.data.test == config.data.valid:
        return Opinion(
            "ok",
            "nothing averaged, and the test set is the one that validates",
            _LAST_ALONE,
        )
    if decay is not None:
        return Opinion(
            "ok", f"a moving average of the parameters, decay {decay}", expected
        )
    there = (
        f"averages/ has {', '.join(a.name for a in averages)}"
        if averages
        else "there is no average"
    )
    cure = "jaxformer average --last=5, then jaxformer evaluate --checkpoint=average"
    if keep < 5 and not averages:
        cure = (
            f"training.keep_latest={keep} keeps too few:"
            f" --config.training.keep_latest=5; then {cure}"
        )
    if not is_paper_sized(config):
        expected += (
            f"{not_asked(config)}, but +1.5 for three of width 128 (measured on the"
            " bundled corpus)"
        )
    return judge(
        "look" if averages or is_paper_sized(config) else "ok",
        f"no result of an average on {record.get('dataset')}; {there}",
        expected,
        cure,
    )


def checkpoint(
    config: RunConfig,
    record: Record,
    curves: Mapping[str, Curve],
    saved: Sequence[int],
    averages: Sequence[Average],
) -> Opinion:
    """Return whether the checkpoint that was scored is about the best of those
    evaluated, and still there.
    """
    step, metric = record.get("checkpoint"), config.evaluation.best_metric
    key = "valid/nll" if metric == "loss" else f"valid/{metric}"
    points = dict(curves.get(key, ()))
    names = {f"average/{average.name}" for average in averages}
    if isinstance(step, str) and " + " not in step and step not in names:
        there = ", ".join(sorted(names)) or "no average"
        return judge(
            "look",
            f"{step}, which is gone: there is {there}",
            "what was scored is there",
            _AGAIN,
        )
    if not isinstance(step, int) or not points:
        return Opinion(
            "unseen", f"checkpoint {step}, and {len(points)} evaluations with {key}"
        )
    sign, near = (-1.0, 0.02) if metric == "loss" else (1.0, 0.5)
    best = max(points, key=lambda at: sign * points[at])
    behind = sign * (points[best] - points[step]) if step in points else None
    gone = step not in saved
    return judge(
        "ok" if behind is not None and behind <= near and not gone else "look",
        f"checkpoint {step:,}"
        + (
            f", which is gone (the last is {saved[-1]:,})"
            if gone and saved
            else ", which is gone"
            if gone
            else ""
        )
        + f", {key} "
        + ("never measured" if behind is None else f"{points[step]:.2f}"),
        f"the best by data.valid, step {best:,} with {points[best]:.2f}, or an average;"
        " never chosen by the test set",
        _AGAIN,
    )


def test_set(config: RunConfig, record: Record) -> Opinion:
    """Hold the number of sentences of a published test set against its own."""
    name, count = str(record.get("dataset")), record.get("sentences")
    title = find_known(name)
    if title is None or title not in SENTENCES:
        return Opinion(
            "ok", f"{count} sentences of {name}", "no test set whose size is known here"
        )
    expected = SENTENCES[title]
    languages = config.data.source_language, config.data.target_language
    has_filtered = title == "newstest2014" and languages == ("en", "de")
    filtered = has_filtered and count == FILTERED_NEWSTEST2014
    return judge(
        "ok" if count == expected else "look" if filtered else "wrong",
        f"{count} sentences of {name}",
        f"{title} has {expected:,}"
        + (
            f", filtered {FILTERED_NEWSTEST2014:,} (mtdata issue 3)"
            if has_filtered
            else ""
        ),
        (
            "scores of the two sets do not compare: --dataset=sacrebleu:wmt14/full"
            if filtered
            else (
                "lines are missing or too many: take the set as it was published"
                " (sacrebleu:wmt14/full, sacrebleu:wmt13)"
            )
        ),
    )


def recount(record: Record, hypotheses: Sequence[str], scored: ScoredSet) -> Opinion:
    """Score the file of translations once more."""
    if "bleu" not in record:
        return Opinion("unseen", "the result has no bleu")
    value = metrics.score(metrics.BLEU, hypotheses, *scored.references).value
    return judge(
        "ok" if abs(value - record["bleu"]) < 0.011 else "wrong",
        f"BLEU {value:.2f} of {record.get('hypotheses')}, {record['bleu']} in"
        " results.json",
        "the same",
        "the file or the record was changed: jaxformer evaluate again",
    )


def beside_validation(record: Record, curves: Mapping[str, Curve]) -> Opinion:
    """Hold the score against the best that the run had on its validation text."""
    points = curves.get("valid/bleu", ())
    if "bleu" not in record or not points:
        return Opinion(
            "unseen",
            "the result has no bleu" if points else "metrics.jsonl has no valid/bleu",
        )
    best = max(value for _, value in points)
    return judge(
        "look" if record["bleu"] < _FAR_BELOW * best else "ok",
        f"BLEU {record['bleu']} of {record.get('dataset')}, {best:.2f} of data.valid",
        f"at least {_FAR_BELOW:.0%} of it",
        "read some lines of source, translation and reference side by side: text of"
        " another kind scores so low, and so do references that belong to other lines"
        " or are written in another form",
    )
