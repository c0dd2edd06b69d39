"""Checks of the text that a run was trained and tested on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jaxformer.data.cleaning import Counts, is_empty, is_identical, summary
from jaxformer.data.config import DataConfig
from jaxformer.data.languages import check_language, is_foreign
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.diagnosis import lines
from jaxformer.diagnosis.alignment import FEWEST, count_blocks, find_misfits, lengths
from jaxformer.diagnosis.findings import Opinion, grade, judge, worst
from jaxformer.diagnosis.survey import Survey

# letters that tell a language; sentences looked at; fewest of them
_TELLING, _SENTENCES, _FEWEST = 40, 200, 20
_SHIFTED = 0.01  # of the text; less of a large corpus is noise that training bears
_FEW_WORDS = 5  # shorter sentences come again by themselves
_LOWERCASED = 0.01  # of the letters are capitals
_CASE_EXPECTED = "about the same: BLEU is cased (signature case:mixed)"
_QUOTES_SOURCE = (
    "Moses' normalisation turns „ “ into plain quotes, which the references keep"
)


def form(texts: Sequence[str]) -> Opinion:
    """Look for text that a tokenizer went over: BLEU tokenises by itself, and models
    learn what they are given.
    """
    spaced, escaped, joined = (
        lines.spaced(texts),
        lines.escaped(texts),
        lines.joined(texts),
    )
    verdict = worst(
        grade(spaced, 0.02, 0.3), grade(escaped, 0.002, 0.05), grade(joined, 0.0, 0.01)
    )
    return judge(
        verdict,
        f"of {len(texts):,} lines {spaced:.1%} with a space before , or .,"
        f" {escaped:.1%} with &quot; and the like, {joined:.1%} with @-@, @@ or ▁",
        "none: raw text, which sacreBLEU tokenises itself (Post 2018)",
        "take the raw files, or detokenise and unescape them (sacremoses detokenize),"
        " the same on all sides",
    )


def quotes(texts: Sequence[str], test: Sequence[str]) -> Opinion:
    """Compare the quotation marks of a text with those of the same side of the test
    text.
    """
    style, other = lines.quotes(texts), lines.quotes(test)
    if style is None or other is None:
        return Opinion("ok", "too few quotation marks to matter", _QUOTES_SOURCE)
    return judge(
        "look" if style != other else "ok",
        f"{style}, and {other} in the test text",
        f"the same; {_QUOTES_SOURCE}",
        "do not normalise the punctuation of the training text, or normalise as the"
        " test text is written",
    )


def case(texts: Sequence[str], test: Sequence[str]) -> Opinion:
    """Compare the share of capitals of a text with that of the same side of the test
    text.
    """
    share, other = lines.capitals(texts), lines.capitals(test)
    if share is None or other is None:
        return Opinion("ok", "too few letters have a case to tell", _CASE_EXPECTED)
    fewer, more = sorted((share, other))
    differ = more > 0.01 and fewer < 0.25 * more
    cure = "train and test on text as it is written: the one with more is in capitals"
    if fewer < _LOWERCASED:
        cure = (
            "train on text as it is written; lowercased output loses most of BLEU"
            if share < other
            else (
                "the test text was lowercased: take it as it was published, or"
                " lowercase the training text too"
            )
        )
    return judge(
        "wrong" if differ else "ok",
        f"{share:.1%} of the letters are capitals, {other:.1%} in the test text",
        _CASE_EXPECTED,
        cure,
    )


def alignment(pairs: Sequence[Pair]) -> Opinion:
    """Look for lines of a test set that do not belong to each other."""
    return _alignment(lengths(pairs))


def training_alignment(survey: Survey) -> Opinion:
    """Look for lines of the training text that do not belong to each other."""
    return _alignment(survey.characters)


def _alignment(characters: np.ndarray) -> Opinion:
    if len(characters) < FEWEST:
        return Opinion("unseen", f"{len(characters)} pairs tell too little")
    misfits = find_misfits(characters)
    shifted = [misfit for misfit in misfits if misfit.shift]
    found = f"{len(characters):,} pairs, whose lengths go together"
    if misfits:
        line, shift = (shifted or misfits)[0]
        what = (
            f"the targets {shift:+d} lines further belong there"
            if shift
            else "lengths do not agree"
        )
        found = (
            f"from about line {line:,} on {what};"
            f" {len(misfits) / count_blocks(len(characters)):.1%} of the text"
        )
    return judge(
        (
            grade(len(shifted) / count_blocks(len(characters)), 0.0, _SHIFTED)
            if shifted
            else "look"
            if misfits
            else "ok"
        ),
        found,
        "line i of one side translates line i of the other",
        "a line was lost or added on one side before that place: filter both sides"
        " together, never one",
    )


def blanks(pairs: Sequence[Pair]) -> Opinion:
    """Count the test pairs with an empty side."""
    count = sum(map(is_empty, pairs))
    return judge(
        grade(count / max(len(pairs), 1), 0.0, 0.01),
        f"{count} of {len(pairs):,} pairs have an empty side",
        "none",
        "an empty line is often a lost one: compare with the published files",
    )


def languages(pairs: Sequence[Pair], data: DataConfig) -> Opinion:
    """Return whether each side is in its own language, or both are exchanged.

    Raises:
        InputError: as :func:`jaxformer.data.languages.check_language`.
    """
    if data.language_tags:
        return Opinion(
            "unseen", "data.language_tags: the pairs are of several directions"
        )
    source, target = (
        check_language(getattr(data, key), f"data.{key}")
        for key in ("source_language", "target_language")
    )
    telling = [
        pair
        for pair in pairs
        if min(sum(map(str.isalpha, text)) for text in pair) >= _TELLING
    ]
    if len(telling) < _FEWEST:
        return Opinion(
            "unseen", f"{len(telling)} pairs are long enough to tell a language"
        )
    chosen = telling[:: max(len(telling) // _SENTENCES, 1)]
    left = lines.share(
        [pair.source for pair in chosen], lambda text: is_foreign(text, source)
    )
    right = lines.share(
        [pair.target for pair in chosen], lambda text: is_foreign(text, target)
    )
    exchanged = lines.share(
        [pair.source for pair in chosen], lambda text: not is_foreign(text, target)
    )
    swapped = min(left, right, exchanged) > 0.5
    found = (
        f"of {len(chosen)} pairs {left:.0%} of the sources are not {source},"
        f" {right:.0%} of the targets not {target}"
    )
    return judge(
        worst(grade(left, 0.1, 0.5), grade(right, 0.1, 0.5)),
        "source and target are exchanged" if swapped else found,
        f"sources in {source}, targets in {target}",
        (
            "exchange the files of the data set's name, or data.source_language and"
            " data.target_language"
            if swapped
            else "--config.data.detect_languages=True leaves such pairs out of training"
        ),
    )


def leak(survey: Survey, test: Sequence[Pair]) -> Opinion:
    """Look for test sentences in the training text."""
    asked = [pair for pair in test if len(pair.source.split()) >= _FEW_WORDS] or list(
        test
    )
    pairs, sources = (
        sum(held(pair) for pair in asked) / len(asked)
        for held in (
            lambda pair: pair in survey.pairs,
            lambda pair: pair.source in survey.sources,
        )
    )
    return judge(
        worst(grade(pairs, 0.005, 0.05), grade(sources, 0.01, 0.2)),
        f"{sources:.1%} of the test sources (of {_FEW_WORDS} words and more) are"
        f" training sources, {pairs:.1%} with their target; {_extent(survey)}",
        "none: what was learned by heart makes BLEU higher than it should be",
        "leave the test sentences out of data.train, or test on other text",
    )


def untranslated(survey: Survey) -> Opinion:
    """Count the training pairs whose target is their source."""
    asked = [pair for pair in survey.sample if len(pair.source.split()) >= 3]
    if not asked:
        return Opinion("unseen", "no pair has three words with blanks between them")
    copies = lines.share(asked, is_identical)  # type: ignore[arg-type]
    return judge(
        grade(copies, 0.01, 0.1),
        f"{copies:.1%} of {len(asked):,} sampled pairs of three words and more",
        "hardly any: models learn to copy from them (Khayrallah and Koehn 2018)",
        "--config.data.drop_identical=True",
    )


def dropped(counts: Counts) -> Opinion:
    """Say how much of the training text the filters and the longest length leave
    out.
    """
    return judge(
        grade(1 - counts.kept / max(counts.read, 1), 0.05, 0.5),
        f"{summary(counts)}, of {counts.read:,} pairs",
        "less than 5 %",
        "raise data.max_length (too many tokens) or data.max_length_ratio, or mend the"
        " text",
    )


def unknown(vocabularies: Vocabularies, test: Sequence[Pair]) -> Opinion:
    """Say how much of the test text the vocabulary does not know."""
    shares = [
        _unknown(vocabulary, [getattr(pair, side) for pair in test])
        for side, vocabulary in (
            ("source", vocabularies.source),
            ("target", vocabularies.target),
        )
    ]
    return judge(
        grade(max(shares), 0.001, 0.05),
        f"{shares[0]:.2%} of the source tokens and {shares[1]:.2%} of the target tokens"
        " are unknown",
        "at most 0.1 %",
        "a vocabulary of this text, --config.data.byte_fallback=True, or text in its"
        " usual script and Unicode form",
    )


def fit(vocabularies: Vocabularies, survey: Survey, test: Sequence[Pair]) -> Opinion:
    """Return whether the vocabulary cuts the test text into smaller pieces than the
    training text.
    """
    sides: tuple[tuple[Vocabulary, Callable[[Pair], str]], ...] = (
        (vocabularies.source, lambda pair: pair.source),
        (vocabularies.target, lambda pair: pair.target),
    )
    ratios = [
        _tokens_per_letter(vocabulary, list(map(side, test)))
        / _tokens_per_letter(vocabulary, list(map(side, survey.sample)))
        for vocabulary, side in sides
    ]
    return judge(
        grade(max(ratios), 1.3, 2.0),
        f"{ratios[0]:.2f} times the tokens a character in the source, {ratios[1]:.2f}"
        " in the target",
        "about 1: the test text is like the training text",
        "the training text or the vocabulary is of another kind than the test: train on"
        " text like it",
    )


def _unknown(vocabulary: Vocabulary, texts: Sequence[str]) -> float:
    tokens = np.concatenate(
        [np.asarray(ids, np.int64) for ids in vocabulary.encode_batch(texts)]
        or [np.zeros(0)]
    )
    return float(np.mean(tokens == vocabulary.unk_id)) if tokens.size else 0.0


def _tokens_per_letter(vocabulary: Vocabulary, texts: Sequence[str]) -> float:
    letters = sum(map(len, texts))
    return max(sum(map(len, vocabulary.encode_batch(texts))), 1) / max(letters, 1)


def _extent(survey: Survey) -> str:
    return f"{'all' if survey.whole else 'the first'} {survey.read:,} pairs were read"
