"""A translation model as your own NNX module: our Linen modules through
flax.nnx.bridge.ToNNX.

It learns to reverse a line of letters and to replace each by its successor.

    python docs/examples/nnx_translation.py
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.nnx import bridge

import jaxformer as jf

PAD, BOS, EOS, LETTERS, LONGEST = 0, 1, 2, 6, 5
VOCABULARY = 3 + LETTERS
STEPS, BATCH = 200, 32


class Translation(nnx.Module):
    """Encoder and decoder over one table of letters."""

    def __init__(self, layer, *, rngs):
        """Create the parts: ``lazy_init`` draws the parameters for inputs of these
        shapes.
        """
        x, tokens = jnp.zeros((1, 1, layer.d_model)), jnp.zeros((1, 1), int)
        mask = jnp.ones((1, 1, 1, 1), bool)
        self.embedding = bridge.ToNNX(
            jf.nn.Embedding(VOCABULARY, layer.d_model), rngs=rngs
        ).lazy_init(tokens)
        self.encoder = bridge.ToNNX(
            jf.nn.Encoder(layer, num_layers=1), rngs=rngs
        ).lazy_init(x)
        self.decoder = bridge.ToNNX(
            jf.nn.Decoder(layer, num_layers=1), rngs=rngs
        ).lazy_init(x, x, mask)

    def __call__(self, source, target, *, train=False):
        """Return the logits [B, T, V] of each target token, from the source and the
        target tokens before it.
        """
        memory, mask = self.encode(source, train=train)
        return self.decode(
            memory, mask, jf.models.shift_right(target, BOS), train=train
        )

    def encode(self, source, *, train=False):
        """Return the memory [B, S, D] and the mask of its real positions."""
        mask = jf.functional.padding_mask(source, PAD)
        memory, _ = self.encoder(self.embed(source), mask, train=train)
        return memory, mask

    def decode(self, memory, mask, inputs, *, train=False):
        """Return the logits [B, T, V] of what follows each of the inputs [B, T]."""
        seen = jf.functional.causal_mask(inputs.shape[1])
        x, _ = self.decoder(self.embed(inputs), memory, seen, mask, train=train)
        return self.embedding.logits(x)

    def embed(self, tokens):
        """Add positions to the vectors of tokens."""
        x = self.embedding(tokens)
        return x + jf.functional.sinusoidal(jnp.arange(tokens.shape[1]), x.shape[-1])


def draw_batch(random):
    """Draw sources of 3 to 5 letters and their translations, padded on the right."""
    source = np.full((BATCH, LONGEST + 1), PAD)
    target = source.copy()
    for row, length in enumerate(random.integers(3, LONGEST + 1, BATCH)):
        letters = random.integers(0, LETTERS, length)
        source[row, : length + 1] = [*(3 + letters), EOS]
        target[row, : length + 1] = [*(3 + (letters[::-1] + 1) % LETTERS), EOS]
    return source, target


@nnx.jit
def train_step(model, optimizer, source, target):
    """Update model and optimizer in place; return the loss."""

    def mean_loss(model):
        # dropout draws from the module's own rngs
        logits = model(source, target, train=True)
        total, count = jf.functional.cross_entropy(
            logits, target, target != PAD, smoothing=0.1
        )
        return total / count

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def translate(model, source):
    """Translate by our beam search: its step runs the decoder over all that is
    written so far.
    """
    beam, length = 4, source.shape[1]
    memory, mask = model.encode(source)
    parts, state = nnx.split(model)

    def step(tokens, cache):
        # a loop of JAX may not change modules outside it
        here = nnx.merge(parts, state, copy=True)
        written = cache["written"].at[:, cache["position"]].set(tokens)
        logits = here.decode(cache["memory"], cache["mask"], written)
        return logits[:, cache["position"]], {
            **cache,
            "written": written,
            "position": cache["position"] + 1,
        }

    cache = {
        # one row a hypothesis: it follows those that live on
        "memory": jnp.repeat(memory, beam, axis=0),
        "mask": jnp.repeat(mask, beam, axis=0),
        "written": jnp.full((len(source) * beam, length), PAD),
        "position": jnp.zeros((), int),
    }
    limits = [length] * len(source)
    rules = jf.search.SearchRules(
        bos_id=BOS, eos_id=EOS, pad_id=PAD, max_lengths=limits, beam_size=beam
    )
    return jf.search.beam_search(step, cache, rules)


def spell(tokens):
    """Write tokens as letters."""
    return "".join("abcdef"[token - 3] for token in tokens if token >= 3)


def main():
    """Train, then translate lines that were not seen."""
    layer = jf.nn.LayerConfig(d_model=32, num_heads=4, d_ff=64, dropout_rate=0.0)
    model = Translation(layer, rngs=nnx.Rngs(params=0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.adam(5e-3), wrt=nnx.Param)
    random = np.random.default_rng(0)
    for number in range(1, STEPS + 1):
        loss = train_step(model, optimizer, *draw_batch(random))
        if number in (1, STEPS):
            print(f"step {number}: {loss:.1f} nats a token")

    source, target = draw_batch(np.random.default_rng(1))
    found = translate(model, jnp.asarray(source)).tokens[:, 0]
    for row in range(3):
        print(f"{spell(source[row])} -> {spell(found[row])}")
    print(
        f"{np.mean((np.asarray(found) == target).all(axis=1)):.0%} of {BATCH} lines are"
        " right"
    )


if __name__ == "__main__":
    main()
