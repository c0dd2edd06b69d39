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

TAKEN = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_beams"),
    *("early_stopping", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("suppress_tokens", "renormalize_logits", "forced_bos_token_id"),
    *("forced_eos_token_id", "eos_token_id", "decoder_start_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "epsilon_cutoff"),
}
"""Settings that decide the search of a run."""

WITHOUT_EFFECT = {
    *("use_mtp", "use_cache", "cache_implementation", "cache_config", "max_cache_len"),
    *("remove_invalid_values", "token_healing", "is_assistant", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold"),
    *("prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit"),
    *("assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
    *("speculation_type", "compile_config", "disable_compile", "low_memory"),
    *("continuous_batching_config", "prefill_chunk_size", "transformers_version"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
    *("return_dict_in_generate", "pad_token_id", "bos_token_id"),
    *("return_legacy_cache", "trust_remote_code"),
}
"""Settings that change no translation, or are those of other kinds of models."""

TRUNCATIONS = {
    "typical_p": (1.0, "no such truncation"),
    "eta_cutoff": (0.0, "no such truncation"),
    "top_h": (None, "no such truncation"),
}
"""The same, of settings that only sampling reads."""

KNOWN = TAKEN | {*NOT_TAKEN, *TRUNCATIONS}
"""Settings that can change a translation."""


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
    if _flag(search, "do_sample") and not sampled:
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
    unknown = [name for name in search if name not in KNOWN | WITHOUT_EFFECT]
    found |= {name: "unknown" for name in unknown if name[0] != "_"}
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
    given = search.get(name)
    sequences = check(name, [] if given is None else given, "list of lists")
    name = "suppress_tokens"
    given = search.get(name)
    single = [] if given is None else given
    single = [[id_] for id_ in single] if isinstance(single, list) else single
    sequences = [*sequences, *check(name, single, "list")]
    # Padding is never generated, and transformers leaves out the end.
    needless = [vocabularies.target.pad_id], [vocabularies.target.eos_id]
    return tuple(tuple(ids) for ids in sequences if ids not in needless)


def read_decoding(
    search: Mapping[str, Any], positions: int, frame: Frame
) -> DecodingConfig:
    """Return the search that transformers would do.

    Args:
        search: the content of ``generation_config.json``.
        positions: of the model.
        frame: of the run.

    Raises:
        InputError: a setting has another type or is out of range, or there is no room
            for a translation.
    """
    least, most = _read_lengths(search, positions, frame)
    forced = search.get("forced_eos_token_id")
    ngram = _whole(search, "no_repeat_ngram_size", 0)
    return DecodingConfig(
        beam_size=read_beam_size(search),
        alpha=_real(search, "length_penalty", 1.0),
        length_penalty="average",
        min_length=least,
        max_target_length=most,
        max_extra_length=_EXTRA,
        no_repeat_ngram=0 if ngram == 1 and frame.start == frame.end else ngram,
        end_at_limit=frame.end in (forced if isinstance(forced, list) else [forced]),
        early_stopping=_early_stopping(search),
        rank_unfinished=True,
        renormalize=_flag(search, "renormalize_logits"),
        **_read_sampling(search),
    )


def read_beam_size(search: Mapping[str, Any]) -> int:
    """Return the beam of a search; 1 where it names none.

    Args:
        search: the content of ``generation_config.json``.

    Raises:
        InputError: it is no whole number, or above 100.
    """
    beams = _whole(search, "num_beams", 1)
    if beams > _MOST_BEAMS:
        raise InputError(
            f"num_beams must be at most {_MOST_BEAMS}, not {beams}: correct {FILE}; a"
            " search may have more, by --beam_size"
        )
    return beams


def _read_lengths(
    search: Mapping[str, Any], positions: int, frame: Frame
) -> tuple[int, int]:
    """Return the least and the most tokens of a translation.

    A length counts all generated tokens there as here, and ``min_length`` and
    ``max_length`` also the first input, ``min_new_tokens`` not the end. The counts of
    new tokens take precedence.
    """
    longest = _whole(search, "max_length", positions + 1) - 1
    most = min(_whole(search, "max_new_tokens", longest), positions)
    if most <= len(frame.target_before):
        raise InputError(
            f"max_length or max_new_tokens leaves {most} tokens for a translation:"
            f" correct {FILE}"
        )
    shortest = _whole(search, "min_length", 0) - 1
    least = _whole(search, "min_new_tokens", shortest) + 1
    return min(max(1, least), most), most


def _read_sampling(search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a search that draws, none of one that does not."""
    if not _is_sampled(search):
        return {}
    return {
        "sample": True,
        "temperature": _real(search, "temperature", 1.0),
        "top_k": _whole(search, "top_k", 50),
        "top_p": _real(search, "top_p", 1.0),
        "min_p": _real(search, "min_p", 0.0),
        "epsilon": _real(search, "epsilon_cutoff", 0.0),
    }


def _whole(search: Mapping[str, Any], name: str, default: int) -> int:
    return _number(search, name, default, "a whole number", (int,))


def _real(search: Mapping[str, Any], name: str, default: float) -> float:
    return float(_number(search, name, default, "a number", (int, float)))


def _flag(search: Mapping[str, Any], name: str) -> bool:
    return _number(search, name, False, "true or false", (bool,))


def _number(
    search: Mapping[str, Any], name: str, default: Any, kind: str, kinds: tuple
) -> Any:
    value = search.get(name)
    value = default if value is None else value
    if type(value) not in kinds:
        raise InputError(f"{name} must be {kind}, not {value!r}: correct {FILE}")
    return value


def _is_sampled(search: Mapping[str, Any]) -> bool:
    return _flag(search, "do_sample") and search.get("num_beams") in (None, 1)


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
