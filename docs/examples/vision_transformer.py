"""A vision transformer: our encoder over the patches of images, in your own
Linen module.

The images are stripes of two directions and two widths at random phases, under noise;
the model tells the four kinds.

    python docs/examples/vision_transformer.py
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import jaxformer as jf

SIDE, PATCH, CLASSES = 16, 4, 4
STEPS, BATCH = 100, 16


class VisionTransformer(nn.Module):
    """Patches, a class token, the encoder, and a head on the class token
    (Dosovitskiy et al. 2021, section 3.1).
    """

    layer: jf.nn.LayerConfig
    num_layers: int

    @nn.compact
    def __call__(self, images, *, train=False):
        """Give images [B, H, W, 1] the logits of their classes, and each layer's
        attention weights.
        """
        width = self.layer.d_model
        patches = nn.Conv(
            width, (PATCH, PATCH), strides=(PATCH, PATCH), name="patches"
        )(images)
        patches = patches.reshape(len(images), -1, width)
        token = self.param("class_token", nn.initializers.zeros_init(), (1, 1, width))
        x = jnp.concatenate(
            [jnp.broadcast_to(token, (len(images), 1, width)), patches], axis=1
        )
        positions = jf.nn.Positions(
            "learned", width, max_length=x.shape[1], scale=False, name="positions"
        )
        x = x + positions(jnp.arange(x.shape[1]))
        x, weights = jf.nn.Encoder(self.layer, self.num_layers, name="encoder")(
            x, train=train
        )
        return nn.Dense(CLASSES, name="head")(x[:, 0]), weights


def draw_batch(random):
    """Draw stripes [B, 16, 16, 1], of which two kinds lie and two stand, and two are
    2 and two 4 pixels wide.
    """
    kinds = random.integers(0, CLASSES, BATCH)
    waves = np.pi * np.arange(SIDE) / np.where(kinds % 2, 2, 4)[
        :, None
    ] + random.uniform(0, 2 * np.pi, (BATCH, 1))
    stripes = np.broadcast_to(np.sin(waves)[:, None], (BATCH, SIDE, SIDE))
    images = np.where((kinds < 2)[:, None, None], stripes, stripes.swapaxes(1, 2))
    noisy = images + random.normal(0, 0.5, images.shape)
    return noisy[..., None].astype(np.float32), kinds


def main():
    """Train on images drawn for each step; evaluate on others."""
    layer = jf.nn.LayerConfig(
        d_model=32,
        num_heads=4,
        d_ff=64,
        activation="gelu",
        norm_order="pre",
        dropout_rate=0.1,
    )
    model = VisionTransformer(layer, num_layers=2)
    random = np.random.default_rng(0)
    params = jax.jit(model.init)(jax.random.key(0), draw_batch(random)[0])["params"]
    optimizer = optax.adamw(2e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, kinds, key):
        def mean_loss(params):
            logits, _ = model.apply(
                {"params": params}, images, train=True, rngs={"dropout": key}
            )
            total, count = jf.functional.cross_entropy(logits, kinds, smoothing=0.1)
            return total / count

        updates, state = optimizer.update(jax.grad(mean_loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    predict = jax.jit(lambda params, images: model.apply({"params": params}, images))
    for number in range(STEPS + 1):
        if number % STEPS == 0:
            held_out = [
                draw_batch(np.random.default_rng(10_000 + batch)) for batch in range(8)
            ]
            right = np.mean(
                [
                    predict(params, images)[0].argmax(-1) == kinds
                    for images, kinds in held_out
                ]
            )
            print(f"after {number} steps {right:.0%} of held-out images are right")
        params, state = step(params, state, *draw_batch(random), jax.random.key(number))

    _, weights = predict(params, held_out[0][0])
    print(
        "weights of the last layer",
        weights[-1].shape,
        "what the class token attends to",
        weights[-1][:, :, 0].shape,
    )


if __name__ == "__main__":
    main()
