"""The same task in PyTorch: a plain ``torch.nn.Transformer``, and Marian of Hugging
Face.

Both are what their users write: eager, attention by PyTorch's own fused kernel, Adam
over all parameters in one call (``fused=True``), bfloat16 by ``torch.autocast``,
gradients set to None.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from jaxformer.data.batching import Batch
from jaxformer.data.encoding import cores
from jaxformer.data.store import Encoded
from jaxformer.functional.positions import sinusoidal
from tasks import BOS, EOS, PAD, Task, sorted_batches

WARMUP_STEPS = 4000
LONGEST = 1024
"""Tokens of a sequence at most."""

_SIDES = ("source", "target")


class TorchTransformer(nn.Module):
    """The paper's model from PyTorch's own layers, with one table for source, target
    and output.
    """

    def __init__(self, task: Task) -> None:
        """Make the layers."""
        super().__init__()
        self.table = nn.Embedding(task.vocabulary_size, task.d_model)
        nn.init.normal_(self.table.weight, std=task.d_model**-0.5)
        self.transformer = nn.Transformer(
            task.d_model,
            task.num_heads,
            task.num_layers,
            task.num_layers,
            task.d_ff,
            task.dropout_rate,
            layer_norm_eps=1e-6,
            batch_first=True,
        )
        # The paper has no norm after a stack of post-norm layers, and dropout only on
        # sub-layer outputs.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for layer in (
            *self.transformer.encoder.layers,
            *self.transformer.decoder.layers,
        ):
            cast(Any, layer).dropout.p = 0.0
            cast(Any, layer).self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                cast(Any, layer).multihead_attn.dropout = 0.0
        self.dropout = nn.Dropout(task.dropout_rate)
        self.register_buffer(
            "positions",
            torch.from_numpy(np.array(sinusoidal(jnp.arange(LONGEST), task.d_model))),
            persistent=False,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Look tokens [B, T] up, scaled, and add their positions: [B, T, D]."""
        width = self.table.embedding_dim
        places = cast(Tensor, self.positions)[: tokens.shape[1]]
        return self.dropout(self.table(tokens) * math.sqrt(width) + places)

    def forward(
        self, source: Tensor, inputs: Tensor, no_source: Tensor | None
    ) -> Tensor:
        """Predict what follows each of the inputs [B, T]: logits [B, T, V].

        Args:
            source: tokens [B, S].
            inputs: the target's tokens before each place.
            no_source: True where the source is padding [B, S]; None: nowhere.
        """
        causal = nn.Transformer.generate_square_subsequent_mask(
            inputs.shape[1], device=inputs.device
        )
        output = self.transformer(
            self.embed(source),
            self.embed(inputs),
            tgt_mask=causal,
            src_key_padding_mask=no_source,
            memory_key_padding_mask=no_source,
            tgt_is_causal=True,
        )
        return functional.linear(output, self.table.weight)


def make_marian(task: Task) -> Any:
    """Make a Marian model of the same size; its layers are post-norm too."""
    import transformers

    sizes: dict[str, Any] = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (
            ("layers", task.num_layers),
            ("ffn_dim", task.d_ff),
            ("attention_heads", task.num_heads),
        )
    }
    config = cast(Any, transformers).MarianConfig(
        vocab_size=task.vocabulary_size,
        d_model=task.d_model,
        activation_function="relu",
        dropout=task.dropout_rate,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        max_position_embeddings=LONGEST,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **sizes,
    )
    return transformers.MarianMTModel(config)


class TorchLearner:
    """A model in PyTorch with its optimizer."""

    def __init__(
        self,
        task: Task,
        precision: str,
        model: nn.Module,
        device: str = "cpu",
    ) -> None:
        """Prepare to learn.

        Args:
            task: what to learn.
            precision: the type of the computation.
            model: that learns.
            device: ``cpu`` or ``cuda``.
        """
        torch.set_num_threads(cores())
        self.task, self.half, self.device = task, precision == "bfloat16", device
        self.model = model.train().to(device)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, fused=True
        )

        def paper(step: int) -> float:  # section 5.3
            return task.d_model**-0.5 * min(
                (step + 1) ** -0.5, (step + 1) * WARMUP_STEPS**-1.5
            )

        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, paper)

    def logits(
        self, source: Tensor, inputs: Tensor, no_source: Tensor | None
    ) -> Tensor:
        """Predict what follows each of the inputs; arguments as
        :meth:`TorchTransformer.forward` has them.
        """
        if isinstance(self.model, TorchTransformer):
            return self.model(source, inputs, no_source)
        mask = None if no_source is None else (~no_source).long()
        return self.model(
            input_ids=source,
            attention_mask=mask,
            decoder_input_ids=inputs,
            use_cache=False,
        ).logits

    def loss(self, batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        """Sum the cross-entropy of the targets, and count them."""
        # Rows of only padding do not count, and attention over nothing may be NaN.
        used = (np.asarray(batch["target"]) != PAD).any(axis=1)
        source, target = (
            torch.from_numpy(np.asarray(batch[side])[used].astype(np.int64))
            for side in _SIDES
        )
        count, no_source = int((target != PAD).sum()), source == PAD
        # Asked here, since asking a GPU would wait for it.
        padded = bool(no_source.any())
        source, target = source.to(self.device), target.to(self.device)
        inputs = functional.pad(target[:, :-1], (1, 0), value=BOS)
        half = (
            torch.autocast(self.device, torch.bfloat16)
            if self.half
            else contextlib.nullcontext()
        )
        with half:
            logits = self.logits(
                source, inputs, no_source.to(self.device) if padded else None
            )
        flat, labels = logits.reshape(-1, logits.shape[-1]).float(), target.reshape(-1)
        total = functional.cross_entropy(
            flat, labels, ignore_index=PAD, reduction="sum", label_smoothing=smoothing
        )
        return total, count

    def step(self, batch: Batch) -> None:
        """Update once."""
        total, count = self.loss(batch, self.task.label_smoothing)
        (total / count).backward()
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, batches: Iterable[Batch]) -> None:
        """Update once with each batch, and wait for the last."""
        for batch in batches:
            self.step(batch)
        if self.device == "cuda":
            torch.cuda.synchronize()

    def batches(self, pairs: Encoded) -> list[Batch]:
        """Make the batches of real text that suit it best."""
        return sorted_batches(pairs, self.task.tokens_per_batch)
