"""Random models for a search, and slow searches over plain lists in float64."""

import functools
import itertools
import math
from collections import Counter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.search.beam import beam_search
from jaxformer.search.constraints import Constraints
from jaxformer.search.rules import SearchRules
from jaxformer.search.scoring import coverage_penalty
from jaxformer.search.single import greedy_search, sample_search

PAD, EOS, BOS = 0, 1, 2
IDS = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}
# Shapes that all tests share, as each shape compiles its own program.
SENTENCES, STATES, VOCABULARY, LENGTH = 4, 4099, 7, 7
WORDS = range(3, VOCABULARY)
NONE = {"min_length": 0, "banned": (), "phrases": (), "ngram": 10**9, "penalty": 1.0}
NONE |= {"required": (), "prefixes": ()}


class Hypothesis(NamedTuple):
    tokens: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool


def random_tables(seed, ends=0.0, sentences=SENTENCES, vocabulary=VOCABULARY):
    """Draw a table of logits for each sentence, with a row for each history."""
    random = np.random.default_rng(seed)
    tables = random.normal(scale=1.5, size=(sentences, STATES, vocabulary))
    tables[:, :, EOS] += ends
    return tables.astype(np.float32)


def random_attention(seed, sentences=SENTENCES):
    """Draw weights that sum to 1 and often nearly omit a position."""
    random = np.random.default_rng(seed)
    return random.dirichlet(np.full(4, 0.5), (sentences, STATES)).astype(np.float32)


def next_state(state, token, vocabulary):
    """Number the histories; different histories have different states."""
    return (state * vocabulary + token) % STATES


# The searches


def step(tokens, cache):
    """Read tables of sentences from the cache, and states of rows; count the calls."""
    sentences, _, vocabulary = cache["tables"].shape
    state = next_state(cache["state"], tokens, vocabulary)
    rows = jnp.arange(len(tokens)) // (len(tokens) // sentences)
    grown = cache | {"state": state, "calls": cache["calls"] + 1}
    if "attention" in cache:
        grown["coverage"] = cache["coverage"] + cache["attention"][rows, state]
    return cache["tables"][rows, state], grown


def lost(cache):
    return coverage_penalty(cache["coverage"])


def prepare(tables, limits, alpha, *, attention=None, **options):
    """Return the rules and the first cache of a search."""
    rows = len(limits) * options.get("beam_size", 1)
    cache = {"tables": tables, "state": jnp.zeros(rows, jnp.int32)}
    cache["calls"] = jnp.zeros((), jnp.int32)
    given = {"length": LENGTH, "max_lengths": limits, "alpha": alpha, **IDS}
    if attention is not None:
        cache |= {"attention": attention, "coverage": jnp.zeros((rows, 4))}
        given["coverage"] = lost
    return SearchRules(**given | options), cache


STATIC = ("kind", "length", "beam_size", "n_best", "penalty", "groups", "halvings")
STATIC += ("early_stopping", "rank_unfinished", "renormalize", "end_at_limit")


@functools.partial(jax.jit, static_argnames=STATIC)
def compiled(*arrays, kind="beam", keys=None, halvings=0, **options):
    rules, cache = prepare(*arrays, **options)
    if kind == "sample":
        return sample_search(step, cache, rules, keys)
    search = greedy_search if kind == "greedy" else beam_search
    return search(step, cache, rules, halvings=halvings)


class Batch(NamedTuple):
    """Sentences and what is searched for; without rules and attention, a plain
    search.
    """

    tables: np.ndarray
    limits: tuple[int, ...] = (LENGTH,) * SENTENCES
    alpha: float = 0.6
    penalty: str = "gnmt"
    rules: list[dict] | None = None
    attention: np.ndarray | None = None
    beta: float = 0.0

    def options(self, kind="beam"):
        """Return arrays and options for :func:`prepare`."""
        options = {"penalty": self.penalty}
        if self.rules:
            beam = kind == "beam"
            options["constraints"] = constraints(self.rules, self.tables, beam=beam)
        if self.attention is not None:
            options |= {"attention": self.attention, "beta": np.float32(self.beta)}
        limits = np.array(self.limits, np.int32)
        return (self.tables, limits, np.float32(self.alpha)), options

    def search(self, kind="beam", diversity=0.0, **more):
        """Run the compiled search."""
        arrays, options = self.options(kind)
        options["diversity"] = np.float32(diversity)
        return jax.device_get(compiled(*arrays, kind=kind, **options, **more))

    def sentence(self, index) -> "Sentence":
        """Return one sentence for the slow searches."""
        return Sentence(
            self.tables[index].astype(np.float64),
            min(self.limits[index], LENGTH),
            float(np.float32(self.alpha)),
            self.penalty,
            self.rules[index] if self.rules else NONE,
            None if self.attention is None else self.attention[index],
            float(np.float32(self.beta)),
        )


def constraints(rules, tables, *, beam):
    """Write the rules of sentences as arrays; they differ in minimum, required phrases
    and prefixes.
    """

    def fill(shape, phrases, *, left=False):
        filled = np.full(shape, -1, np.int32)
        for row, phrase in zip(filled, phrases, strict=False):
            row[len(row) - len(phrase) if left else 0 :][: len(phrase)] = phrase
        return filled

    first, tokens = rules[0], np.arange(tables.shape[2])
    required = [fill((3, 3), rule["required"]) for rule in rules]
    prefixes = [list(rule["prefixes"] or [()]) for rule in rules]
    prefixes = [fill((3, 4), (each + each[-1:] * 3)[:3]) for each in prefixes]
    return Constraints(
        min_lengths=np.array([rule["min_length"] for rule in rules], np.int32),
        banned_tokens=np.isin(tokens, first["banned"]),
        banned_phrases=fill((4, 3), first["phrases"], left=True),
        no_repeat_ngram=np.int32(first["ngram"]),
        repetition_penalty=np.float32(first["penalty"]),
        required=np.stack(required) if beam else None,
        prefixes=np.stack(prefixes),
    )


# The slow searches


class Sentence(NamedTuple):
    table: np.ndarray
    limit: int
    alpha: float
    penalty: str
    rule: dict
    attention: np.ndarray | None
    beta: float

    def natural(self, history) -> dict[int, float]:
        """Return the model's log-probabilities of what may follow a history."""
        state = 0
        for token in (BOS, *history):
            state = next_state(state, token, self.table.shape[1])
        logits = self.table[state]
        logits = logits - np.log(np.sum(np.exp(logits)))
        return {t: float(logits[t]) for t in range(len(logits)) if t not in (PAD, BOS)}

    def log_probabilities(self, tokens) -> list[float]:
        return [self.natural(tokens[:t])[token] for t, token in enumerate(tokens)]

    def allowed(self, history) -> dict[int, float]:
        """Return the values that tokens are ranked by."""
        return allow(history, self.natural(history), **self.rule)

    def score(self, tokens, value) -> float:
        """Divide by the length penalty and add the coverage penalty."""
        n = len(tokens)
        if n == 0:
            return 0.0
        divisors = {"gnmt": (5 + n) / 6, "average": n, "none": 1.0}
        total = value / divisors[self.penalty] ** self.alpha
        if self.attention is None:
            return total
        sums, state = np.zeros(4), 0
        for token in (BOS, *tokens[:-1]):
            state = next_state(state, token, self.table.shape[1])
            sums += self.attention[state]
        return total + self.beta * float(np.log(np.clip(sums, 1e-37, 1.0)).sum())


def holds(tokens, phrase) -> bool:
    starts = range(len(tokens) - len(phrase) + 1)
    return any(tokens[start : start + len(phrase)] == phrase for start in starts)


def allow(
    history, natural, *, min_length, banned, phrases, ngram, penalty, required, prefixes
):
    """Map each token that may follow a history to its value."""
    place = len(history)
    agree = [
        prefix
        for prefix in prefixes
        if all(a in (-1, b) for a, b in zip(prefix, history, strict=False))
    ]
    forced = {prefix[place] for prefix in agree if place < len(prefix)} - {-1}
    is_free = not prefixes or any(
        place >= len(prefix) or prefix[place] == -1 for prefix in agree
    )
    seen = {history[start : start + ngram] for start in range(place - ngram + 1)}
    values = {}
    for token, value in natural.items():
        longer = (*history, token)
        short = len(longer) < min_length
        waits = short or not all(holds(history, phrase) for phrase in required)
        repeats = len(longer) >= ngram and longer[-ngram:] in seen
        is_banned = token in banned or repeats or (token == EOS and waits)
        ends = any(longer[-len(phrase) :] == phrase for phrase in phrases)
        if token in forced:
            values[token] = value
        elif is_free and not is_banned and not ends and value > -math.inf:
            values[token] = value * penalty if token in history else value
    return values


def exhaustive_best(sentence: Sentence) -> list[Hypothesis]:
    """Score every hypothesis that ends, and return the best."""
    found = []
    words = range(3, sentence.table.shape[1])
    for length in range(sentence.limit):
        for body in itertools.product(words, repeat=length):
            tokens = (*body, EOS)
            values = [
                sentence.allowed(tokens[:t]).get(token, -math.inf)
                for t, token in enumerate(tokens)
            ]
            if min(values) > -math.inf:
                total = sum(sentence.log_probabilities(tokens))
                score = sentence.score(tokens, sum(values))
                found.append(Hypothesis(tokens, total, score, True))
    return [max(found, key=lambda each: each.score)] if found else []


def reference_greedy(sentence: Sentence) -> list[Hypothesis]:
    """Follow the largest value until the end, the limit or a dead end."""
    history, value = (), 0.0
    while len(history) < sentence.limit and history[-1:] != (EOS,):
        allowed = sentence.allowed(history)
        if not allowed:
            return []
        token = max(sorted(allowed), key=allowed.__getitem__)
        history, value = (*history, token), value + allowed[token]
    total = sum(sentence.log_probabilities(history))
    finished = history[-1:] == (EOS,)
    return [Hypothesis(history, total, sentence.score(history, value), finished)]


def _begun(tokens, phrase) -> int:
    """Count the first tokens of a phrase that the tokens end with."""
    counts = range(len(phrase))
    return max(n for n in counts if tokens[len(tokens) - n :] == phrase[:n])


def _take_turns(ranked, width, required):
    """Order continuations by dynamic beam allocation; each begins with its tokens."""
    if not required:
        return ranked
    parents, banks, turns = set(), Counter(), []
    for place, (tokens, *_) in enumerate(ranked):
        history = tokens[:-1]
        unmet = [phrase for phrase in required if not holds(history, phrase)]
        advances = tokens[-1] in [phrase[_begun(history, phrase)] for phrase in unmet]
        if place < 2 * width or history not in parents or advances or tokens[-1] == EOS:
            bank = tokens[-1] == EOS
            for phrase in required:
                met = holds(tokens, phrase)
                bank += len(phrase) if met else _begun(tokens, phrase)
            turns.append((banks[bank], -bank, ranked[place]))
            banks[bank] += 1
        parents.add(history)
    return [hypothesis for *_, hypothesis in sorted(turns, key=lambda turn: turn[:2])]


def reference_beam(sentence, beam_size, groups=1, diversity=0.0) -> list[Hypothesis]:
    """Search to the limit, without a rule for stopping: so it shows whether that of
    beam search is sound.

    A hypothesis is (tokens, log-probability, value). Ties keep the order of beam and
    token id, as Python's sort is stable.
    """
    width = beam_size // groups
    live = [[((), 0.0, 0.0)] for _ in range(groups)]
    ended = [[] for _ in range(groups)]
    for _ in range(sentence.limit):
        chosen: Counter[int] = Counter()
        for group in range(groups):
            grown = []
            for history, total, value in live[group]:
                natural = sentence.natural(history)
                grown += [
                    ((*history, token), total + natural[token], value + added)
                    for token, added in sorted(sentence.allowed(history).items())
                ]
            grown.sort(key=lambda each: diversity * chosen[each[0][-1]] - each[2])
            grown = _take_turns(grown, width, sentence.rule["required"])
            ended[group] += [each for each in grown[:width] if each[0][-1] == EOS]
            live[group] = [each for each in grown if each[0][-1] != EOS][:width]
            chosen.update(each[0][-1] for each in live[group])

    def ordered(hypotheses, finished):
        scored = [
            Hypothesis(tokens, total, sentence.score(tokens, value), finished)
            for tokens, total, value in hypotheses
        ]
        return sorted(scored, key=lambda each: -each.score)

    once = {}
    for done, alive in zip(ended, live, strict=True):
        both = ordered(done, True) + ordered(alive, False)
        once |= {each.tokens: each for each in both[:width]}
    return sorted(once.values(), key=lambda each: (not each.finished, -each.score))


# Comparisons


def hypotheses(result, sentence: int) -> list[Hypothesis]:
    """Read a sentence's hypotheses, and check what holds of every result."""
    found = []
    for place in range(result.tokens.shape[1]):
        tokens = np.asarray(result.tokens[sentence, place])
        length = int(result.lengths[sentence, place])
        finished = bool(result.finished[sentence, place])
        each = np.asarray(result.token_log_probabilities[sentence, place])
        total = float(result.log_probabilities[sentence, place])
        assert np.all(tokens[length:] == PAD)
        assert not each[length:].any()
        assert not np.isin(tokens[:length], (PAD, BOS)).any()
        assert np.count_nonzero(tokens == EOS) == int(finished)
        assert not finished or tokens[length - 1] == EOS
        if np.isneginf(result.scores[sentence, place]):
            assert length == 0
            assert not finished
            assert np.isneginf(total)
            continue
        assert len(found) == place, "empty places are the last"
        np.testing.assert_allclose(each.sum(dtype=np.float64), total, rtol=2e-6)
        score = float(result.scores[sentence, place])
        found.append(
            Hypothesis(tuple(tokens[:length].tolist()), total, score, finished)
        )
    assert len({each.tokens for each in found}) == len(found)
    order = [(each.finished, each.score) for each in found]
    assert order == sorted(order, reverse=True)
    return found


def assert_same(found, expected) -> None:
    """Compare tokens and flags exactly, and numbers up to float32."""
    assert [(h.tokens, h.finished) for h in found] == [
        (h.tokens, h.finished) for h in expected
    ]
    found, expected = ([h[1:3] for h in each] for each in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
