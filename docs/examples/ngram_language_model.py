"""Language models before neural ones on the bundled corpus: n-grams with interpolated
modified Kneser-Ney smoothing (Chen and Goodman 1998), and a log-linear model of the two
words before (Neubig 2017, section 4).

    python docs/examples/ngram_language_model.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

SIZE, BOS, EOS = 2000, 2, 3
ORDERS, BATCH, STEPS = (1, 2, 3, 4), 2048, 400


def read_tokens(folder):
    """Tokenise training and test text as configs/language_model.py would read them."""
    for name in ("train", "test"):
        keys = ["--config=language_model", "--config.data.window=None"]
        keys += [f"--config.data.train=bundled:en-de/{name}"]
        keys += [f"--output={folder}/{name}"]
        if name == "test":
            keys += [f"--vocabulary={folder}/train/vocabulary"]
        command = [sys.executable, "-m", "jaxformer", "prepare", *keys]
        subprocess.run(command, check=True, capture_output=True)
        yield np.fromfile(Path(folder) / name / "target.bin", "<u2").astype(np.int64)


def windows(tokens, length):
    """Return each token after those before it, [N, length]; a text, which ends with
    EOS, begins after as many BOS.
    """
    places = np.arange(len(tokens))
    starts = np.append(0, np.flatnonzero(tokens == EOS) + 1)
    start = starts[np.searchsorted(starts, places, "right") - 1]
    back = [places - distance for distance in range(length - 1, -1, -1)]
    return np.stack([np.where(x < start, BOS, tokens[x]) for x in back], axis=-1)


class KneserNey:
    """Interpolates n-grams of all orders. One is an integer of n digits in base V:
    division drops its last word, and the remainder its first.
    """

    def __init__(self, grams, order, size):
        """Count.

        Args:
            grams: integers, n-grams as often as they occur.
            order: n.
            size: V, the number of words.
        """
        self.order, self.size = order, size
        self.tables = [self.count(n, grams) for n in range(1, order + 1)]

    def count(self, n, grams):
        """Return sorted n-grams and their discounted counts, and of each context the
        total and the share that its discounts leave to lower orders.
        """
        if n == self.order:
            known, counts = np.unique(grams, return_counts=True)
        else:  # after how many different words it occurs
            longer = np.unique(grams % self.size ** (n + 1))
            known, counts = np.unique(longer % self.size**n, return_counts=True)
        n1, n2, n3, n4 = (max(int(np.sum(counts == x)), 1) for x in range(1, 5))
        y = n1 / (n1 + 2 * n2)
        by_count = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discounts = np.clip(by_count, 0, [1, 2, 3])[np.minimum(counts, 3) - 1]
        contexts, place = np.unique(known // self.size, return_inverse=True)
        total, left = np.bincount(place, counts), np.bincount(place, discounts)
        return known, counts - discounts, contexts, total, left / total

    def probability(self, grams, n=None):
        """Return the probability of the last word of each n-gram after the others."""
        n = self.order if n is None else n
        if n == 0:
            return np.full(len(grams), 1 / self.size)
        lower = self.probability(grams % self.size ** (n - 1), n - 1)
        known, discounted, contexts, total, left = self.tables[n - 1]
        place, seen = find(contexts, grams // self.size)
        gram, counted = find(known, grams)
        own = np.where(counted, discounted[gram], 0) / total[place]
        return np.where(seen, own + left[place] * lower, lower)


def find(known, values):
    """Return where values are in a sorted array, and whether they are."""
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return place, known[place] == values


def as_integers(tokens, order):
    """Write the n-gram that ends with each token as an integer."""
    return windows(tokens, order) @ SIZE ** np.arange(order - 1, -1, -1)


@jax.jit
def log_probabilities(params, contexts):
    """Return log softmax(b + W1[word before] + W2[the one before that]), [B, V]."""
    one, two = (params[name][contexts[:, i]] for i, name in ((1, "one"), (0, "two")))
    return jax.nn.log_softmax(params["bias"] + one + two)


def train_log_linear(tokens):
    """Maximise the likelihood of the text by Adam, whose rate falls to 0."""
    shapes = {"one": (SIZE, SIZE), "two": (SIZE, SIZE), "bias": (SIZE,)}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    optimizer = optax.adam(optax.linear_schedule(0.05, 0, STEPS))
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, contexts, words):
        def loss(params):
            logs = log_probabilities(params, contexts)
            return -jnp.take_along_axis(logs, words[:, None], 1).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    random, examples = np.random.default_rng(0), windows(tokens, 3)
    for _ in range(STEPS):
        some = examples[random.integers(0, len(tokens), BATCH)]
        params, state = step(params, state, some[:, :2], some[:, 2])
    return params


def main():
    """Print perplexities a token of the test text."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = read_tokens(folder)
    print(f"{len(train)} tokens of training text, {len(test)} of test text")
    for order in ORDERS:
        model = KneserNey(as_integers(train, order), order, SIZE)
        nats = -np.log(model.probability(as_integers(test, order))).mean()
        print(f"Kneser-Ney, {order}-grams: perplexity {np.exp(nats):.1f}")
    params, nats = train_log_linear(train), 0.0
    for some in np.array_split(windows(test, 3), 20):
        logs = np.asarray(log_probabilities(params, some[:, :2]))
        nats -= logs[np.arange(len(some)), some[:, 2]].sum() / len(test)
    print(f"log-linear, 2 words before: perplexity {np.exp(nats):.1f}")


if __name__ == "__main__":
    main()
