"""The encoders and decoders before the Transformer as Linen modules: those of Cho,
Sutskever, Bahdanau and Luong.

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
        memory: the output of the encoder; of Cho's one vector, S = 1.
        keys: the memory's part of an additive score, computed once; else None.
        mask: real positions.
    """

    memory: Float[Array, "B S E"]
    keys: Float[Array, "B S D"] | None
    mask: Bool[Array, "B 1 1 S"]


_GLOROT = nn.initializers.glorot_uniform()
_gru = functools.partial(nn.GRUCell, kernel_init=_GLOROT)
_lstm = functools.partial(nn.OptimizedLSTMCell, kernel_init=_GLOROT)
# States are in the order of the source also where it is read in reverse.
_rnn = functools.partial(nn.RNN, return_carry=True, keep_order=True)

Weights: TypeAlias = Float[Array, "N S"] | None
Advanced: TypeAlias = tuple[PyTree, tuple[Float[Array, "N F"], Weights]]
"""The states after a step, what the word is predicted from, and attention weights,
None without attention.
"""


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
    attention: EarlierAttention | None, states: Array, source: Annotations
) -> tuple[Array, Weights]:
    """Attend from the states of all hypotheses; return contexts [N, E] and weights [N,
    S]. Without attention the context is the only vector of the memory.
    """
    memory, keys, mask = source
    # A search that is exported knows the number of its rows when it is called.
    query = states.astype(memory.dtype).reshape(memory.shape[0], -1, states.shape[-1])
    if attention is None:
        return jnp.broadcast_to(memory, query.shape).reshape(states.shape), None
    found = attention(query, memory, mask[:, 0], keys=keys)
    context, weights = (x.reshape(states.shape[0], x.shape[-1]) for x in found)
    return context, weights


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


class ChoEncoder(nn.Module):
    """A GRU of which only the last state h leaves, as c = tanh(V h) (Cho et al. 2014,
    appendix A.1.1).
    """

    width: int
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create the GRU and V."""
        self.rnn = _rnn(_gru(self.width, dtype=self.dtype))
        self.summary = self.param("summary", projection, (self.width, self.width))

    def __call__(
        self, x: Float[Array, "B S D"], lengths: Array, *, train: bool
    ) -> tuple[Float[Array, "B 1 D"], PyTree]:
        """Return c, all that is read of the source, for the steps and for the first
        state.
        """
        del train
        begin, _ = _begin(x, self.width)
        last, _ = self.rnn(x, initial_carry=begin, seq_lengths=lengths)
        context = jnp.tanh(linear(last.astype(self.dtype), **self.summary))
        return context[:, None], context


class ChoDecoder(nn.Module):
    """A GRU that reads the word before and c in every step, and a maxout readout of its
    state after it, the word and c (Cho et al. 2014, appendix A.1.2).

    All widths are d_model: of words, states, c, an alignment and the readout.
    """

    width: int
    dropout_rate: float
    dtype: jnp.dtype

    # The width of a context, in those of a state.
    sides = 1

    def setup(self) -> None:
        """Create the cell and both maps."""
        self.attention: EarlierAttention | None = None
        width = self.width
        self.initial = self.param("initial", projection, (width, width))
        self.cell = _gru(width, dtype=self.dtype)
        shape = (2 + self.sides) * width, 2 * width
        self.readout = self.param("readout", projection, shape)
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


class BahdanauDecoder(ChoDecoder):
    """Cho's decoder with another context in each step: it attends from its state before
    the step to the annotations (Bahdanau et al. 2015, section 3.1 and appendix A).

    The appendix prints the state before in the readout, and equation 4 the one after.
    """

    sides = 2

    def setup(self) -> None:
        """Create the attention too."""
        super().setup()
        self.attention = EarlierAttention("additive", self.width)


class StackEncoder(nn.Module):
    """A stack of LSTMs from left to right, or all of them from right to left, with
    dropout between them (Sutskever et al. 2014; Luong et al. 2015).
    """

    width: int
    depth: int
    dropout_rate: float
    dtype: jnp.dtype
    reverse: bool = False

    def setup(self) -> None:
        """Create the stack."""
        self.stack = [
            _rnn(_lstm(self.width, dtype=self.dtype), reverse=self.reverse)
            for _ in range(self.depth)
        ]
        self.dropout = Dropout(self.dropout_rate)

    def __call__(
        self, x: Float[Array, "B S D"], lengths: Array, *, train: bool
    ) -> tuple[Float[Array, "B S D"], PyTree]:
        """Return the states of the top layer, and of each layer the cell and the state
        after the last real position that it reads.
        """
        last = []
        for number, rnn in enumerate(self.stack):
            if number:
                x = self.dropout(x, train=train)
            begin = _begin(x, self.width)
            carry, x = rnn(x, initial_carry=begin, seq_lengths=lengths)
            last.append(carry)
        return x.astype(self.dtype), last


class SutskeverDecoder(nn.Module):
    """A stack of LSTMs that begins with the encoder's last cells and states, layer by
    layer, and sees no more of the source (Sutskever et al. 2014).
    """

    width: int
    depth: int
    dropout_rate: float
    dtype: jnp.dtype

    def setup(self) -> None:
        """Create the stack."""
        self.attention: EarlierAttention | None = None
        self.stack = [_lstm(self.width, dtype=self.dtype) for _ in range(self.depth)]
        self.dropout = Dropout(self.dropout_rate)

    def begin(self, last: PyTree) -> PyTree:
        """Return the first states."""
        return last

    def advance(
        self, states: PyTree, x: Array, source: Annotations, *, train: bool = False
    ) -> Advanced:
        """Read the embedded word before."""
        del source
        after, x = self.climb(states, x, train=train)
        return after, (x.astype(self.dtype), None)

    def climb(self, carries: PyTree, x: Array, *, train: bool) -> tuple[PyTree, Array]:
        """Return all cells and states after a step, and the top state."""
        after = []
        for number, (cell, carry) in enumerate(zip(self.stack, carries, strict=True)):
            if number:
                x = self.dropout(x, train=train)
            carry, x = cell(carry, x.astype(self.dtype))
            after.append(carry)
        return after, x

    def read(self, seen: Array, *, train: bool = False) -> Float[Array, "*B D"]:
        """Apply dropout to what predicts the words."""
        return self.dropout(seen, train=train)


class LuongDecoder(SutskeverDecoder):
    """Sutskever's decoder that attends from its state after a step (Luong et al. 2015):
    h~ = tanh(W_c [c; h]) predicts the word, and is part of the next input (section
    3.3, input feeding).
    """

    score: str

    def setup(self) -> None:
        """Create the attention and the map to h~ too."""
        super().setup()
        self.attention = EarlierAttention(self.score, self.width)
        shape = 2 * self.width, self.width
        self.combined = self.param("combined", projection, shape, 1, False)

    def begin(self, last: PyTree) -> PyTree:
        """Return the first states: those of the encoder, and 0 as h~."""
        return last, jnp.zeros_like(last[-1][1], self.dtype)

    def advance(
        self, states: PyTree, x: Array, source: Annotations, *, train: bool = False
    ) -> Advanced:
        """Read the embedded word before."""
        carries, fed = states
        x = jnp.concatenate([x, fed.astype(x.dtype)], axis=-1)
        after, x = self.climb(carries, x, train=train)
        context, weights = _attend(self.attention, x, source)
        both = jnp.concatenate([context, x.astype(context.dtype)], axis=-1)
        found = jnp.tanh(linear(both, **self.combined))
        return (after, found), (found, weights)


def unroll(
    decoder: ChoDecoder | SutskeverDecoder,
    states: PyTree,
    x: Float[Array, "B T D"],
    source: Annotations,
    *,
    train: bool,
) -> tuple[Float[Array, "B T F"], Float[Array, "B T S"] | None]:
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
