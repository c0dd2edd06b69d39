"""The search that ``generation_config.json`` describes, as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxformer.data.frame import Frame
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.search.config import DecodingConfig

FILE = "generation_config.json"

# transformers has no such limit, and a search needs memory for it.
_EXTRA = 128

# Published models have up to 12, and each takes memory in every search.
_MOST_BEAMS = 100

EARLY_STOPPING = {False: "length", True: "full", "never": "never"}
"""Our names of the values of ``early_stopping``."""

NOT_TAKEN = {
    "num_beam_groups": (1, "its groups are scored with their penalty"),
    "diversity_penalty": (0.0, "its groups are scored with their penalty"),
    "penalty_alpha": (None, "contrastive search"),
    "dola_layers": (None, "contrasts layers"),
    "guidance_scale": (None, "computes each step twice"),
    "repetition_penalty": (1.0, "takes logits or counts the first input"),
    "encoder_repetition_penalty": (1.0, "depends on the source"),
    "encoder_no_repeat_ngram_size": (0, "depends on the source"),
    "exponential_decay_length_penalty": (None, "changes the probability of the end"),
    "begin_suppress_tokens": (None, "bans at one position"),
    "forced_decoder_ids": (None, "forces at some positions"),
    "sequence_bias": (None, "changes the probability of phrases"),
    "constraints": (None, "see --require"),
    "force_words_ids": (None, "see --require"),
    "stop_strings": (None, "ends at a text"),
    "max_time": (None, "ends after a time"),
    "num_return_sequences": (1, "see --n_best"),
    "watermarking_config": (None, "marks the text"),
}
"""Settings that jaxformer does not take: the value that changes nothing, and why."""

TRUNCATIONS = {
    "typical_p": (1.0, "no such truncation"),
    "eta_cutoff": (0.0, "no such truncation"),
    "top_h": (None, "no such truncation"),
}
"""The same, of settings that only sampling reads."""


def list_ignored(
    search: Mapping[str, Any], frame: Frame, vocabulary: Vocabulary
) -> list[str]:
    """Return the settings that are not taken, each with the reason.

    Args:
        search: the content of ``generation_config.json``.
        frame: of the run.
        vocabulary: of the target.
    """
    sampled = _is_sampled(search)
    rules = NOT_TAKEN | (TRUNCATIONS if sampled else {})
    found = {
        name: why
        for name, (neutral, why) in rules.items()
        if search.get(name) not in (None, neutral)
    }
    if search.get("do_sample") and not sampled:
        found["do_sample"] = "a beam is searched, not drawn"
    if search.get("no_repeat_ngram_size") == 1 and frame.start == frame.end:
        found["no_repeat_ngram_size"] = "would forbid the end, the first input"
    forced = "forced_bos_token_id"
    first = frame.target_before and (
        *frame.target_before,
        *vocabulary.languages.values(),
    )
    if search.get(forced) not in (None, *first):
        found[forced] = "is no language, or not forced in this family"
    end = (frame.end, [frame.end])
    for name in ("forced_eos_token_id", "eos_token_id"):
        if search.get(name) not in (None, *end):
            found[name] = f"a translation ends with {frame.end}"
    if frame.end in (search.get("suppress_tokens") or []):
        found["suppress_tokens"] = f"a translation ends with {frame.end}"
    return [f"{name}={search.get(name)!r} ({why})" for name, why in found.items()]


def read_banned(
    search: Mapping[str, Any], vocabularies: Vocabularies, size: int
) -> tuple[tuple[int, ...], ...]:
    """Return the sequences of ``bad_words_ids`` and ``suppress_tokens``.

    Args:
        search: the content of ``generation_config.json``.
        vocabularies: of the run.
        size: of the model's output.

    Raises:
        InputError: they are no lists of tokens.
    """

    def check(name: str, given: Any, kind: str) -> list[list[int]]:
        if not isinstance(given, list) or not all(
            isinstance(ids, list)
            and ids
            and all(type(id_) is int and 0 <= id_ < size for id_ in ids)
            for ids in given
        ):
            raise InputError(
                f"{name} must be a {kind} of token ids below {size}, not"
                f" {search[name]!r}: correct {FILE}"
            )
        return given

    name = "bad_words_ids"
    sequences = check(name, search.get(name) or [], "list of lists")
    name = "suppress_tokens"
    single = search.get(name) or []
    single = [[id_] for id_ in single] if isinstance(single, list) else single
    sequences = [*sequences, *check(name, single, "list")]
    # Padding is never generated, and transformers leaves out the end.
    needless = [vocabularies.target.pad_id], [vocabularies.target.eos_id]
    return tuple(tuple(ids) for ids in sequences if ids not in needless)


def read_decoding(
    search: Mapping[str, Any], positions: int, frame: Frame
) -> DecodingConfig:
    """Return the search that transformers would do.

    A length counts all generated tokens there as here, and ``min_length`` and
    ``max_length`` also the first input, ``min_new_tokens`` not the end. The counts of
    new tokens take precedence.

    Args:
        search: the content of ``generation_config.json``.
        positions: of the model.
        frame: of the run.

    Raises:
        InputError: a setting has another type or is out of range, or there is no room
            for a translation.
    """

    def number(name: str, default: Any, kinds: Any = int) -> Any:
        value = search.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, kinds):
            kind = "a whole number" if kinds is int else "a number"
            raise InputError(f"{name} must be {kind}, not {value!r}: correct {FILE}")
        return value

    def real(name: str, default: float) -> float:
        return float(number(name, default, (int, float)))

    most = number("max_new_tokens", number("max_length", positions + 1) - 1)
    most = min(most, positions)
    if most <= len(frame.target_before):
        raise InputError(
            f"max_length or max_new_tokens leaves {most} tokens for a translation:"
            f" correct {FILE}"
        )
    beams = number("num_beams", 1)
    if beams > _MOST_BEAMS:
        raise InputError(
            f"num_beams must be at most {_MOST_BEAMS}, not {beams}: correct {FILE}; a"
            " translation may have more, by --beam_size"
        )
    least = number("min_new_tokens", number("min_length", 0) - 1) + 1
    forced = search.get("forced_eos_token_id")
    ngram = number("no_repeat_ngram_size", 0)
    sampling = {}
    if _is_sampled(search):
        sampling = {
            "sample": True,
            "temperature": real("temperature", 1.0),
            "top_k": number("top_k", 50),
            "top_p": real("top_p", 1.0),
            "min_p": real("min_p", 0.0),
            "epsilon": real("epsilon_cutoff", 0.0),
        }
    return DecodingConfig(
        beam_size=beams,
        alpha=real("length_penalty", 1.0),
        length_penalty="average",
        min_length=min(max(1, least), most),
        max_target_length=most,
        max_extra_length=_EXTRA,
        no_repeat_ngram=0 if ngram == 1 and frame.start == frame.end else ngram,
        end_at_limit=frame.end in (forced if isinstance(forced, list) else [forced]),
        early_stopping=_early_stopping(search),
        rank_unfinished=True,
        renormalize=search.get("renormalize_logits") is True,
        **sampling,
    )


def _is_sampled(search: Mapping[str, Any]) -> bool:
    return bool(search.get("do_sample")) and search.get("num_beams") in (None, 1)


def _early_stopping(search: Mapping[str, Any]) -> Any:
    """Return our name of ``early_stopping``.

    Raises:
        InputError: it has another value.
    """
    given = search.get("early_stopping") or False
    if given not in (False, True, "never"):
        raise InputError(
            f'early_stopping must be true, false or "never", not {given!r}: correct'
            f" {FILE}"
        )
    return EARLY_STOPPING[given]
