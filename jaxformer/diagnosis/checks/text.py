"""Checks of training text, test text, vocabulary, and the form of translations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from jaxformer.data.cleaning import is_empty, is_identical, summary
from jaxformer.data.language_identification import check_language, is_foreign
from jaxformer.data.records import Pair
from jaxformer.diagnosis import lines
from jaxformer.diagnosis.alignment import FEWEST, count_blocks, find_misfits, lengths
from jaxformer.diagnosis.checks.recipe import is_given
from jaxformer.diagnosis.evidence import Evidence, UnseenError
from jaxformer.diagnosis.findings import Finding, grade, join_sides, judge, worst
from jaxformer.errors import InputError

# Letters that tell a language, sentences to look at, and the fewest that tell.
_TELLING, _SENTENCES, _FEWEST = 40, 200, 20
_SHIFTED = 0.01  # of the text; training bears less
_FEW_WORDS = 5  # shorter sentences recur by chance
_LOWERCASED = 0.01  # of the letters are capitals
_CASE_EXPECTED = "about the same: BLEU is cased (signature case:mixed)"
_QUOTES_SOURCE = (
    "Moses' normalisation turns „ “ into plain quotes, which the references keep"
)


def on_training(judge_texts: Callable[..., Finding]) -> Callable[[Evidence], Finding]:
    """Judge both sides of the training text next to those of the test text."""
    return lambda run: _judge_sides(judge_texts, run.survey.sample, run.test)


def on_output(judge_texts: Callable[..., Finding]) -> Callable[[Evidence], Finding]:
    """Judge the translations next to their references."""
    return lambda run: judge_texts(run.hypotheses, run.references)


def check_training_form(run: Evidence) -> Finding:
    """Check that the training text is not tokenised."""
    return _judge_sides(judge_form, run.survey.sample)


def check_test_form(run: Evidence) -> Finding:
    """Check that the test text is not tokenised."""
    return _judge_sides(judge_form, run.test)


def check_output_form(run: Evidence) -> Finding:
    """Check that the translations are not tokenised."""
    return judge_form(run.hypotheses)


def _judge_sides(
    judge_texts: Callable[..., Finding], *texts: Sequence[Pair]
) -> Finding:
    """Judge the sources of texts, and their targets."""
    sides = [[[pair[side] for pair in text] for text in texts] for side in (0, 1)]
    return join_sides(*(judge_texts(*side) for side in sides))


def judge_form(texts: Sequence[str]) -> Finding:
    """Look for traces of a tokenizer: BLEU tokenises raw text itself."""
    spaced, escaped, joined = (
        lines.share(texts, form.search)
        for form in (lines.SPACED, lines.ESCAPED, lines.JOINED)
    )
    return judge(
        worst(
            grade(spaced, 0.02, 0.3),
            grade(escaped, 0.002, 0.05),
            grade(joined, 0.0, 0.01),
        ),
        f"of {len(texts):,} lines {spaced:.1%} with a space before , or .,"
        f" {escaped:.1%} with &quot; and the like, {joined:.1%} with @-@, @@ or ▁",
        "none: raw text, which sacreBLEU tokenises itself (Post 2018)",
        "take the raw files, or detokenise and unescape them (sacremoses detokenize),"
        " the same on all sides",
    )


def judge_quotes(texts: Sequence[str], test: Sequence[str]) -> Finding:
    """Compare the quotation marks of a text with those of the test text."""
    style, other = lines.quotes(texts), lines.quotes(test)
    if style is None or other is None:
        return Finding("ok", "too few quotation marks to matter", _QUOTES_SOURCE)
    return judge(
        "look" if style != other else "ok",
        f"{style}, and {other} in the test text",
        f"the same; {_QUOTES_SOURCE}",
        "do not normalise the punctuation of the training text, or normalise it as the"
        " test text is",
    )


def judge_case(texts: Sequence[str], test: Sequence[str]) -> Finding:
    """Compare the share of capitals of a text with that of the test text."""
    share, other = lines.capitals(texts), lines.capitals(test)
    if share is None or other is None:
        return Finding("ok", "too few letters have a case to tell", _CASE_EXPECTED)
    fewer, more = sorted((share, other))
    cure = "train on text as it is written; lowercased output loses most of BLEU"
    if fewer >= _LOWERCASED:
        cure = (
            "train and test on text as it is written: the one with more is in capitals"
        )
    elif other < share:
        cure = (
            "the test text was lowercased: take the published text, or lowercase the"
            " training text too"
        )
    return judge(
        "wrong" if more > 0.01 and fewer < 0.25 * more else "ok",
        f"{share:.1%} of the letters are capitals, {other:.1%} in the test text",
        _CASE_EXPECTED,
        cure,
    )


def check_test_alignment(run: Evidence) -> Finding:
    """Check that the lines of the test set belong together."""
    return _judge_alignment(lengths(run.test))


def check_training_alignment(run: Evidence) -> Finding:
    """Check that the lines of the training text belong together."""
    return _judge_alignment(run.survey.characters)


def _judge_alignment(characters: NDArray[np.int32]) -> Finding:
    if len(characters) < FEWEST:
        raise UnseenError(f"{len(characters)} pairs are too few")
    misfits, blocks = find_misfits(characters), count_blocks(len(characters))
    shifted = [misfit for misfit in misfits if misfit.shift]
    found = f"{len(characters):,} pairs with lengths that agree"
    for line, shift in (shifted or misfits)[:1]:
        what = f"the targets {shift:+d} lines further belong there"
        found = (
            f"from about line {line:,} on {what if shift else 'lengths do not agree'};"
            f" {len(misfits) / blocks:.1%} of the text"
        )
    verdict = grade(len(shifted) / blocks, 0.0, _SHIFTED)
    return judge(
        "look" if misfits and not shifted else verdict,
        found,
        "line i of one side translates line i of the other",
        "a line was lost or added on one side before that line: filter both sides"
        " together",
    )


def check_test_blanks(run: Evidence) -> Finding:
    """Count the test pairs with an empty side."""
    count = sum(map(is_empty, run.test))
    return judge(
        grade(count / max(len(run.test), 1), 0.0, 0.01),
        f"{count} of {len(run.test):,} pairs have an empty side",
        "none",
        "an empty line is often a lost one: compare with the published files",
    )


def check_training_languages(run: Evidence) -> Finding:
    """Check that both sides of the training text are in their languages."""
    return _judge_languages(run, run.survey.sample)


def check_test_languages(run: Evidence) -> Finding:
    """Check that both sides of the test text are in their languages."""
    return _judge_languages(run, run.test)


def _judge_languages(run: Evidence, pairs: Sequence[Pair]) -> Finding:
    """Check the language of each side.

    Raises:
        UnseenError: a language is unknown, or too few pairs tell theirs.
    """
    data = run.config.data
    if data.language_tags:
        raise UnseenError("data.language_tags: the pairs are of several directions")
    try:
        source = check_language(data.source_language, "data.source_language")
        target = check_language(data.target_language, "data.target_language")
    except InputError as error:
        cure = ": set data.detect_languages=False"  # the doctor checks in any case
        raise UnseenError(str(error).replace(cure, "")) from None
    telling = [
        pair
        for pair in pairs
        if min(sum(map(str.isalpha, text)) for text in pair) >= _TELLING
    ]
    if len(telling) < _FEWEST:
        raise UnseenError(f"{len(telling)} pairs are long enough to tell a language")
    chosen = telling[:: max(len(telling) // _SENTENCES, 1)]
    left = lines.share(chosen, lambda pair: is_foreign(pair.source, source))
    right = lines.share(chosen, lambda pair: is_foreign(pair.target, target))
    exchanged = lines.share(chosen, lambda pair: not is_foreign(pair.source, target))
    verdict = worst(grade(left, 0.1, 0.5), grade(right, 0.1, 0.5))
    expected = f"sources in {source}, targets in {target}"
    if min(left, right, exchanged) > 0.5:
        return judge(
            verdict,
            "source and target are exchanged",
            expected,
            "exchange the files of the data set's name, or data.source_language and"
            " data.target_language",
        )
    return judge(
        verdict,
        f"of {len(chosen)} pairs {left:.0%} of the sources are not {source},"
        f" {right:.0%} of the targets not {target}",
        expected,
        "--config.data.detect_languages=True leaves such pairs out of training",
    )


def check_leak(run: Evidence) -> Finding:
    """Look for test sentences in the training text."""
    survey, test = run.survey, run.test
    asked = [pair for pair in test if len(pair.source.split()) >= _FEW_WORDS] or test
    pairs = sum(pair in survey.pairs for pair in asked) / len(asked)
    sources = sum(pair.source in survey.sources for pair in asked) / len(asked)
    return judge(
        worst(grade(pairs, 0.005, 0.05), grade(sources, 0.01, 0.2)),
        f"{sources:.1%} of the test sources (of {_FEW_WORDS} words and more) are"
        f" training sources, {pairs:.1%} with their target;"
        f" {'all' if survey.whole else 'the first'} {len(survey.characters):,} pairs"
        " were read",
        "none: memorised sentences make BLEU too high",
        "leave the test sentences out of data.train, or test on other text",
    )


def check_untranslated(run: Evidence) -> Finding:
    """Count the training pairs whose target is their source."""
    asked = [pair for pair in run.survey.sample if len(pair.source.split()) >= 3]
    if not asked:
        raise UnseenError("no pair has three words with blanks between them")
    copies = sum(map(is_identical, asked)) / len(asked)
    return judge(
        grade(copies, 0.01, 0.1),
        f"{copies:.1%} of {len(asked):,} sampled pairs of three words and more",
        "hardly any: models learn to copy from them (Khayrallah and Koehn 2018)",
        "--config.data.drop_identical=True",
    )


def check_dropped(run: Evidence) -> Finding:
    """Measure how much of the training text the filters drop."""
    counts = run.counts
    return judge(
        grade(1 - counts.kept / max(counts.read, 1), 0.05, 0.5),
        f"{summary(counts)}, of {counts.read:,} pairs",
        "less than 5 %",
        "raise data.max_length (too many tokens) or data.max_length_ratio, or mend the"
        " text",
    )


def check_vocabulary(run: Evidence) -> Finding:
    """Check that the vocabulary is that of the best checkpoint."""
    sides, model, trained = run.vocabularies, run.config.model, run.trained_vocabulary
    sizes = sides.source.size, sides.target.size
    asked = model.text_vocabulary_size, model.vocabulary_size
    fits = sizes == asked
    if sides.template is not None:  # of an imported model, which may have more rows
        fits = all(own <= rows for own, rows in zip(sizes, asked, strict=True))
    return judge(
        "ok" if sides.hash == trained and fits else "wrong",
        f"hash {sides.hash[:12]}, {sizes[0]:,} and {sizes[1]:,} pieces",
        f"hash {trained[:12]} of the best checkpoint, {asked[0]:,} and {asked[1]:,}"
        " pieces of config.json",
        "restore vocabulary/ as the run was trained with: the ids mean other tokens",
    )


def check_unknown(run: Evidence) -> Finding:
    """Measure how much of the test text is unknown to the vocabulary."""
    new = "a vocabulary of this text, --config.data.byte_fallback=True, or "
    new = "" if is_given(run.config) else new
    (source, _), (target, _) = _measure_sides(run, run.test)
    return judge(
        grade(max(source, target), 0.001, 0.05),
        f"{source:.2%} of the source tokens and {target:.2%} of the target tokens are"
        " unknown",
        "at most 0.1 %",
        new + "text in its usual script and Unicode form",
    )


def check_vocabulary_fit(run: Evidence) -> Finding:
    """Compare the tokens a character of test and training text."""
    test, train = _measure_sides(run, run.test), _measure_sides(run, run.survey.sample)
    source, target = (
        own / other for (_, own), (_, other) in zip(test, train, strict=True)
    )
    return judge(
        grade(max(source, target), 1.3, 2.0),
        f"{source:.2f} times the tokens a character in the source, {target:.2f}"
        " in the target",
        "about 1: the test text is like the training text",
        "training text or vocabulary differ in kind from the test text: train on text"
        " like it",
    )


def _measure_sides(run: Evidence, pairs: Sequence[Pair]) -> list[tuple[float, float]]:
    """Return the share of unknown tokens of each side, and its tokens a character."""
    found = []
    for side, vocabulary in enumerate(
        (run.vocabularies.source, run.vocabularies.target)
    ):
        texts = [pair[side] for pair in pairs]
        ids = [token for ids in vocabulary.encode_batch(texts) for token in ids]
        tokens, letters = max(len(ids), 1), max(sum(map(len, texts)), 1)
        found.append((ids.count(vocabulary.unk_id) / tokens, tokens / letters))
    return found
