"""A language model of characters as your own Linen module, from our embedding, layers
and loss.

A decoder without a source is a stack of encoder layers under a causal mask.

    python docs/examples/linen_language_model.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxformer as jf

TEXT = (
    "what the model reads it weighs, and what it weighs it writes; what it writes it"
    " reads again, word for word. "
)
LETTERS = sorted(set(TEXT))
LENGTH, BATCH, STEPS = 32, 16, 150


class LanguageModel(nn.Module):
    """Predicts each character from those before it."""

    vocabulary_size: int
    layer: jf.nn.LayerConfig
    num_layers: int

    def setup(self):
        """Create the parts; each owns its parameters under the name that it is given
        here.
        """
        self.embedding = jf.nn.Embedding(self.vocabulary_size, self.layer.d_model)
        self.dropout = jf.nn.Dropout(self.layer.dropout_rate)
        self.layers = [jf.nn.EncoderLayer(self.layer) for _ in range(self.num_layers)]

    def __call__(self, tokens, *, train=False):
        """Return the logits [B, T, V] of the character that follows each of ``tokens``
        [B, T].
        """
        places = jnp.arange(tokens.shape[1])
        x = self.embedding(tokens) + jf.functional.sinusoidal(
            places, self.layer.d_model
        )
        x = self.dropout(x, train=train)
        for layer in self.layers:
            x, _ = layer(x, jf.functional.causal_mask(tokens.shape[1]), train=train)
        return self.embedding.logits(x)  # tied to the input, as in the paper


def draw_batch(random):
    """Draw windows of the text, one character longer than the model reads."""
    letters = np.array([LETTERS.index(letter) for letter in TEXT * 2])
    starts = random.integers(0, len(TEXT), BATCH)
    return letters[starts[:, None] + np.arange(LENGTH + 1)]


def main():
    """Train, then continue the first words."""
    layer = jf.nn.LayerConfig(d_model=64, num_heads=4, d_ff=128, dropout_rate=0.1)
    model = LanguageModel(len(LETTERS), layer, num_layers=1)
    params = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, LENGTH), int))[
        "params"
    ]
    optimizer = optax.adam(4e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, windows, key):
        def mean_loss(params):
            logits = model.apply(
                {"params": params}, windows[:, :-1], train=True, rngs={"dropout": key}
            )
            total, count = jf.functional.cross_entropy(logits, windows[:, 1:])
            return total / count

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, loss

    random = np.random.default_rng(0)
    for number in range(1, STEPS + 1):
        params, state, loss = step(
            params, state, draw_batch(random), jax.random.key(number)
        )
        if number in (1, STEPS):
            print(f"step {number}: {loss:.1f} nats a character")

    text = TEXT[:20]
    predict = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
    while len(text) < 80:
        window = [LETTERS.index(letter) for letter in text[-20:]]
        text += LETTERS[int(predict(jnp.array([window]))[0, -1].argmax())]
    print(text)


if __name__ == "__main__":
    main()
