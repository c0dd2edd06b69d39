"""What reads the output of an encoder: heads for masked words, for a whole text, for
each position and for spans (Devlin et al. 2019, sections 3.1 and 4, and figure 4).
"""

from __future__ import annotations

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.functional.layers import widen
from jaxformer.kernels.elementwise import ACTIVATIONS
from jaxformer.kernels.matmul import linear
from jaxformer.nn.blocks import LayerNorm
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Float


class Linear(nn.Module):
    """A linear map x W + b.

    Attributes:
        width: of the output.
    """

    width: int

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B C"]:
        """Apply it."""
        shape = (x.shape[-1], self.width)
        kernel = self.param("kernel", lambda key: projection(key, shape)["kernel"])
        bias = self.param("bias", nn.initializers.zeros_init(), shape[1:])
        return linear(x, kernel, bias)


class WordTransform(nn.Module):
    """Transform the encoder's output before the output layer: LN(act(x W + b)) (the
    masked language model of Devlin et al. 2019).

    Attributes:
        width: of the model.
        activation: a name of :data:`~jaxformer.functional.layers.ACTIVATIONS`.
        norm_epsilon: added to the variance.
    """

    width: int
    activation: str = "gelu_exact"
    norm_epsilon: float = 1e-12

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Transform each position."""
        x = Linear(self.width, name="dense")(x)
        x = ACTIVATIONS[self.activation](x)
        return LayerNorm(self.width, self.norm_epsilon, name="norm")(x)


class Pooler(nn.Module):
    """The vector of a whole text: tanh(x W + b) of its first position (Devlin et al.
    2019, section 4.1).

    Attributes:
        width: of the model.
        activation: ``tanh``, or ``relu`` as in DistilBERT's classifier.
    """

    width: int
    activation: str = "tanh"

    @nn.compact
    def __call__(self, x: Float[Array, "B S D"]) -> Float[Array, "B D"]:
        """Read the first position."""
        x = Linear(self.width, name="dense")(x[:, 0])
        if self.activation == "relu":
            return ACTIVATIONS["relu"](x)
        return jnp.tanh(widen(x)).astype(x.dtype)


class Classifier(nn.Module):
    """A linear map to classes, after dropout (Devlin et al. 2019, section 4).

    Attributes:
        width: of the model.
        classes: their number.
        dropout_rate: of its input.
    """

    width: int
    classes: int
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "*B D"], *, train: bool = False
    ) -> Float[Array, "*B C"]:
        """Compute the logit of each class in float32."""
        x = Dropout(self.dropout_rate, name="dropout")(x, train=train)
        return Linear(self.classes, name="dense")(widen(x))
