"""Systems whose words are partly wrong."""

from __future__ import annotations

import random


def draw(seed, words, *shares, size, lengths=(1, 25), weights=None):
    """Draw references, and systems with such shares of their words wrong."""
    rng = random.Random(seed)
    references = [
        rng.choices(words, weights, k=rng.randint(*lengths)) for _ in range(size)
    ]

    def damage(line, share):
        return " ".join(w if rng.random() > share else rng.choice(words) for w in line)

    systems = [[damage(line, share) for line in references] for share in shares]
    return systems, [" ".join(line) for line in references]
