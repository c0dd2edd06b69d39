"""The encoders and decoders before the Transformer as Linen modules: Bahdanau's and
Luong's.

A decoder takes one position at a time: ``advance`` computes the states of N hypotheses,
which are of B sentences and next to each other, and what a word is predicted from;
``unroll`` does so for all positions of a target, and ``read`` makes the input of the
output layer of it.

The cells are Flax's, whose GRU applies the reset gate to U h, as cuDNN's and PyTorch's,
where Cho et al. 2014 apply it to h. Recurrent matrices begin orthogonal, other kernels
Glorot-uniform, biases 0. States are float32 arrays [N, D].
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeAlias, cast

import jax.numpy as jnp
from flax import linen as nn

from jaxformer.errors import InputError
from jaxformer.functional import earlier_attention as earlier
from jaxformer.kernels.matmul import linear
from jaxformer.nn.dropout import Dropout
from jaxformer.nn.initializers import projection
from jaxformer.typing import Array, Bool, Float, Parameters, PyTree


class Annotations(NamedTuple):
    """What a decoder reads of a source.

    Attributes:
        memory: the output of the encoder.
        keys: the memory's part of an additive score, computed once; else None.
        mask: real positions.
    """

    memory: Float[Array, "B S E"]
    keys: Float[Array, "B S D"] | None
    mask: Bool[Array, "B 1 1 S"]


_GLOROT = nn.initializers.glorot_uniform()
_gru = functools.partial(nn.GRUCell, kernel_init=_GLOROT)
_lstm = functools.partial(nn.OptimizedLSTMCell, kernel_init=_GLOROT)

Advanced: TypeAlias = tuple[PyTree, tuple[Float[Array, "N F"], Float[Array, "N S"]]]
"""The states after a step, what the word is predicted from, and attention weights."""


class EarlierAttention(nn.Module):
    """One head of attention with unscaled scores, without projections of values and
    output.

    Its parameters are kernels, as in :mod:`jaxformer.functional.earlier_attention`:
    ``state`` and ``memory`` [., A] and ``energy`` [A, 1] of ``additive`` and
    ``concat``, ``state`` [D, E] of ``general``.

    Attributes:
        kind: ``additive`` (Bahdanau et al. 2015), or ``dot``, ``general`` or ``concat``
            (Luong et al. 2015), which is another name of ``additive``.
        width: A, of the hidden layer of ``additive`` and ``concat``.

    Raises:
        InputError: an unknown kind.
    """

    kind: str
    width: int = 0

    @nn.compact
    def _parameters(self, d: int, e: int) -> Parameters:
        width = self.width
        hidden = {"state": (d, width), "memory": (e, width), "energy": (width, 1)}
        shapes = {"additive": hidden, "dot": {}, "general": {"state": (d, e)}}
        shapes["concat"] = hidden
        if self.kind not in shapes:
            raise InputError(
                f"the kind of attention is one of {', '.join(shapes)}, not"
                f" {self.kind!r}"
            )
        return {
            name: self.param(name, projection, shape, 1, False)
            for name, shape in shapes[self.kind].items()
        }

    def project(
        self, memory: Float[Array, "B S E"], width: int
    ) -> Float[Array, "B S A"] | None:
        """Project the memory of an additive score once, for many calls; None for other
        scores.

        Args:
            memory: what is attended to.
            width: D, of the states.
        """
        params = self._parameters(width, memory.shape[-1])
        return linear(memory, **params["memory"]) if "memory" in params else None

    def __call__(
        self,
        query: Float[Array, "B T D"],
        memory: Float[Array, "B S E"],
        mask: Bool[Array, "#B #T S"] | None = None,
        *,
        keys: Float[Array, "B S A"] | None = None,
    ) -> tuple[Float[Array, "B T E"], Float[Array, "B T S"]]:
        """Attend from queries, such as the states of a decoder, to a memory; return the
        contexts and the weights.

        Args:
            query: the states; as wide as the memory for ``dot``.
            memory: what they attend to.
            mask: True = may attend; axes of size 1 broadcast. One of padding is
                [B, 1, S].
            keys: the result of :meth:`project`.

        Raises:
            InputError: a mask of numbers, or one that does not fit.
        """
        params = self._parameters(query.shape[-1], memory.shape[-1])
        if "state" in params:
            query = linear(query, **params["state"])
        if "energy" not in params:
            scores = earlier.dot_scores(query, memory)
        else:
            keys = linear(memory, **params["memory"]) if keys is None else keys
            scores = earlier.energies(params["energy"], query, keys)
        return earlier.attend_by_scores(scores, memory, mask)


def _attend(
    attention: EarlierAttention, states: Array, source: Annotations
) -> tuple[Array, ...]:
    """Attend from the states of all hypotheses; return contexts [N, E] and weights [N,
    S].
    """
    memory, keys, mask = source
    # A search that is exported knows the number of its rows when it is called.
    query = states.astype(memory.dtype).reshape(memory.shape[0], -1, states.shape[-1])
    found = attention(query, memory, mask[:, 0], keys=keys)
    return tuple(x.reshape(states.shape[0], x.shape[-1]) for x in found)


class BahdanauEncoder(nn.Module):
    """A GRU in each direction (Bahdanau et al. 2015, section 3.2)."""

    width: int
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create both."""
        forward, backward = (
            nn.RNN(_gru(self.width, dtype=self.dtype)) for _ in range(2)
        )
        self.both = nn.Bidirectional(forward, backward)

    def __call__(
        self, x: Float[Array, "B S D"], lengths: Array, *, train: bool
    ) -> tuple[Float[Array, "B S 2*D"], PyTree]:
        """Annotate each position by the states of both directions there; return them
        and, for the decoder, the backward state of the first position.
        """
        del train
        begin = _begin(x, self.width)
        memory = cast(Array, self.both(x, initial_carry=begin, seq_lengths=lengths))
        return memory.astype(self.dtype), memory[:, 0, self.width :]


class BahdanauDecoder(nn.Module):
    """A GRU that attends from its state before a step to the annotations, and a maxout
    readout of its state after it, the word before and the context (Bahdanau et al.
    2015, section 3.1 and appendix A).

    The appendix prints the state before in the readout, and equation 4 the one after.
    All widths are d_model: of words, states, the alignment and the readout.
    """

    width: int
    dropout_rate: float
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create the cell, the attention and both maps."""
        width = self.width
        self.initial = self.param("initial", projection, (width, width))
        self.attention = EarlierAttention("additive", width)
        self.cell = _gru(width, dtype=self.dtype)
        self.readout = self.param("readout", projection, (4 * width, 2 * width))
        self.dropout = Dropout(self.dropout_rate)

    def begin(self, last: Array) -> PyTree:
        """Return the first states."""
        return jnp.tanh(linear(last, **self.initial))

    def advance(
        self,
        states: PyTree,
        x: Array,
        source: Annotations,
        *,
        train: bool = False,
    ) -> Advanced:
        """Read the embedded word before."""
        del train
        context, weights = _attend(self.attention, states, source)
        after, _ = self.cell(states, jnp.concatenate([x, context], axis=-1))
        seen = jnp.concatenate([after.astype(x.dtype), x, context], axis=-1)
        return after, (seen, weights)

    def read(self, seen: Array, *, train: bool = False) -> Float[Array, "*B D"]:
        """Take the larger of each two units."""
        units = linear(seen, **self.readout)
        largest = units.reshape(*units.shape[:-1], self.width, 2).max(axis=-1)
        return self.dropout(largest, train=train)


class LuongEncoder(nn.Module):
    """A stack of LSTMs from left to right, with dropout between them."""

    width: int
    depth: int
    dropout_rate: float
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create the stack."""
        self.stack = [
            nn.RNN(_lstm(self.width, dtype=self.dtype), return_carry=True)
            for _ in range(self.depth)
        ]
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self, x: Float[Array, "B S D"], lengths: Array, *, train: bool
    ) -> tuple[Float[Array, "B S D"], PyTree]:
        """Return the states of the top layer, and of each layer the cell and the state
        after the last real position.
        """
        last = []
        for number, rnn in enumerate(self.stack):
            if number:
                x = self.dropout(x, train=train)
            begin = _begin(x, self.width)
            carry, x = rnn(x, initial_carry=begin, seq_lengths=lengths)
            last.append(carry)
        return x.astype(self.dtype), last


class LuongDecoder(nn.Module):
    """A stack of LSTMs that attends from its state after a step (Luong et al. 2015):
    h~ = tanh(W_c [c; h]) predicts the word, and is part of the next input (section
    3.3, input feeding).
    """

    width: int
    depth: int
    score: str
    dropout_rate: float
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create the stack, the attention and the map to h~."""
        self.stack = [_lstm(self.width, dtype=self.dtype) for _ in range(self.depth)]
        self.attention = EarlierAttention(self.score, self.width)
        shape = 2 * self.width, self.width
        self.combined = self.param("combined", projection, shape, 1, False)
        self.dropout = Dropout(self.dropout_rate)

    def begin(self, last: PyTree) -> PyTree:
        """Return the first states: those of the encoder, and 0 as h~."""
        return last, jnp.zeros_like(last[-1][1], self.dtype)

    def advance(
        self,
        states: PyTree,
        x: Array,
        source: Annotations,
        *,
        train: bool = False,
    ) -> Advanced:
        """Read the embedded word before."""
        carries, fed = states
        x, after = jnp.concatenate([x, fed.astype(x.dtype)], axis=-1), []
        for number, (cell, carry) in enumerate(zip(self.stack, carries, strict=True)):
            if number:
                x = self.dropout(x, train=train)
            carry, x = cell(carry, x.astype(self.dtype))
            after.append(carry)
        context, weights = _attend(self.attention, x, source)
        both = jnp.concatenate([context, x.astype(context.dtype)], axis=-1)
        found = jnp.tanh(linear(both, **self.combined))
        return (after, found), (found, weights)

    def read(self, seen: Array, *, train: bool = False) -> Float[Array, "*B D"]:
        """Apply dropout to h~."""
        return self.dropout(seen, train=train)


def unroll(
    decoder: BahdanauDecoder | LuongDecoder,
    states: PyTree,
    x: Float[Array, "B T D"],
    source: Annotations,
    *,
    train: bool,
) -> tuple[Float[Array, "B T F"], Float[Array, "B T S"]]:
    """Advance over the embedded words before each position of a target; return what its
    words are predicted from, and the attention weights.
    """
    run = nn.scan(
        lambda decoder, *now: decoder.advance(*now, source, train=train),
        variable_broadcast="params",
        split_rngs={"params": False, "dropout": True},
        in_axes=1,
        out_axes=1,
    )
    return run(decoder, states, x)[1]


def _begin(x: Array, width: int) -> tuple[Array, Array]:
    """Return the first states of both directions, or the first cell and state."""
    # Unlike Flax's they vary over the axes of shard_map over which x does.
    zeros = jnp.zeros_like(x, jnp.float32, shape=(x.shape[0], width))
    return zeros, zeros
