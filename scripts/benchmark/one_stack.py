#!/usr/bin/env python3
r"""Compare GPT-2 and BERT with Hugging Face's in PyTorch on the CPU: tokens per second
of training, and of generation with a cache.

    python scripts/benchmark/one_stack.py
    python scripts/benchmark/one_stack.py --work=gpt2,bert --precisions=bfloat16
    python scripts/benchmark/one_stack.py --layers=2 --repeats=3    # a quick trial

``gpt2`` is a training step of GPT-2 small on 4 x 256 tokens, ``bert`` one of BERT base
on 8 x 128 of which 15 % are masked, ``generate-1`` and ``generate-16`` greedy
continuations of so many prompts of 32 tokens by 64 tokens with GPT-2 small. Weights are
random, dropout is 0.1, also of attention weights, and the optimizer AdamW. Hugging
Face's models run eagerly with PyTorch's fused kernels; in bfloat16 they learn under
``autocast`` and generate with weights of bfloat16. Each system computes what it
ordinarily does: Hugging Face's BERT the logits of all positions, jaxformer's those of
masked ones. ``huggingface-places`` is the same BERT with a head that reads masked
positions alone.

Each system is a process of its own with all cores and one environment, and they take
turns; figures are medians over the turns. The first step after a wait is up to twice as
long as the next ones, which training does not see: a turn has several. The ratio is to
huggingface of the same precision within a turn. Close other programs first.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np

import turns
from jaxformer.data.encoding import cores
from jaxformer.errors import InputError, require
from jaxformer.models.config import TransformerConfig
from jaxformer.models.families import preset
from turns import Message

OURS, REFERENCE, PLACES = "jaxformer", "huggingface", "huggingface-places"
SHAPES = {"gpt2": (4, 256), "bert": (8, 128)}
WORK = ("gpt2", "bert", "generate-1", "generate-16")
PRECISIONS = ("float32", "bfloat16")
PROMPT, NEW = 32, 64
MASK_RATE, DROPOUT, RATE, DECAY = 0.15, 0.1, 1e-4, 0.01
COLUMNS = {
    "work": ("work", ""),
    "precision": ("precision", ""),
    "system": ("system", ""),
    "tokens_per_second": ("tok/s", ",.1f"),
    "ratio": ("ratio", ".2f"),
    "startup_seconds": ("start s", ",.1f"),
    "memory_gib": ("GiB", ".2f"),
}

Run: TypeAlias = Callable[[], None]
"""Does a turn's work and waits until it is done."""


def main() -> None:
    """Measure, and print a line of JSON for each row, then a table."""
    options = parse()
    for package in ("torch", "transformers"):
        require(package, "benchmark")
    print(turns.describe_machine(), flush=True)
    rows = []
    for work in options.work.split(","):
        for precision in options.precisions.split(","):
            for row in compare(work, precision, options):
                print(json.dumps(row), flush=True)
                rows.append(row)
    print(turns.format_table(COLUMNS, rows))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = turns.make_parser(__doc__)
    for name, choices in (("work", WORK), ("precisions", PRECISIONS)):
        meaning = "several separated by commas; by default all"
        parser.add_argument(f"--{name}", default=",".join(choices), help=meaning)
    turns.add_numbers(
        parser,
        ("steps", 3, "of training in a turn (default: 3)"),
        ("repeats", 5, "turns of each system (default: 5)"),
        ("layers", 12, "of the models (default: 12)"),
        ("width", 768, "a multiple of 64, the width of a head (default: 768)"),
        ("vocabulary_size", None, "by default that of the published model"),
    )
    options = parser.parse_args()
    for name, choices in (("work", WORK), ("precisions", PRECISIONS)):
        for each in getattr(options, name).split(","):
            if each not in choices:
                parser.error(
                    f"there is no {name} {each!r}: choose from {', '.join(choices)}"
                )
    return options


def compare(
    work: str, precision: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Let the systems take turns; return a row for each."""
    kind, _, batch = work.partition("-")
    rows, length = (int(batch), NEW) if batch else SHAPES[kind]
    request = {
        "kind": kind,
        "precision": precision,
        "rows": rows,
        "length": length,
        "tokens": rows * length * (1 if batch else options.steps),
    }
    for name in ("steps", "layers", "width", "vocabulary_size"):
        request[name] = getattr(options, name)
    systems = [OURS, REFERENCE] + [PLACES] * (kind == "bert")

    def tell(text: str) -> None:
        print(f"{work}, {precision}, {text}", file=sys.stderr, flush=True)

    with turns.started(systems, __file__, request) as processes:
        answers = turns.take_turns(processes, [{}], options.repeats, tell)
    return [
        {
            "work": work,
            "precision": precision,
            "system": system,
            "tokens_per_second": turns.median_rate(own),
            "ratio": turns.median_ratio(own, answers[number, REFERENCE]),
            "startup_seconds": processes[system].startup_seconds,
            "memory_gib": own[-1]["memory_gib"],
        }
        for (number, system), own in answers.items()
    ]


def begin(request: Message) -> Callable[[Message], Message]:
    """Build the system that a process is."""
    options = argparse.Namespace(**request)
    ours = options.system == OURS
    if options.kind == "generate":
        run = make_generator(options) if ours else make_torch_generator(options)
    else:
        run = make_learner(options) if ours else make_torch_learner(options)

    def answer(_: Message) -> Message:
        begun = time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - begun, "work": options.tokens}

    return answer


def make_config(options: argparse.Namespace) -> TransformerConfig:
    """Describe the model; its depth and width may be other than the published."""
    changes: dict[str, Any] = {
        "d_model": options.width,
        "d_ff": 4 * options.width,
        "num_heads": options.width // 64,
        "dropout_rate": DROPOUT,
        "attention_dropout_rate": DROPOUT,
        "dtype": options.precision,
    }
    if options.vocabulary_size is not None:
        changes["vocabulary_size"] = options.vocabulary_size
    if options.kind == "bert":
        special = {"bos_id": 101, "eos_id": 102, "mask_id": 103}
        changes |= {"num_encoder_layers": options.layers, "head": "words", **special}
        return preset("bert-base-uncased", **changes)
    # No token of the batches is padding.
    changes |= {"num_decoder_layers": options.layers, "pad_id": 0}
    if options.vocabulary_size is not None:
        changes["bos_id"] = options.vocabulary_size - 1
    return preset("gpt2", **changes)


def draw_tokens(options: argparse.Namespace, rows: int, length: int) -> np.ndarray:
    """Draw tokens of text, [rows, length]."""
    config = make_config(options)
    first, end = 104, config.vocabulary_size - 1  # beyond BERT's special tokens
    return np.random.default_rng(0).integers(first, end, (rows, length), np.int32)


def make_learner(options: argparse.Namespace) -> Run:
    """Take steps of training, by the engine that training takes."""
    import jax

    from jaxformer.models.seq2seq import make_model
    from jaxformer.runs.training import TrainingConfig
    from jaxformer.training.engines import make_engine

    training = TrainingConfig(
        objective={"gpt2": "causal", "bert": "masked"}[options.kind],
        mask_rate=MASK_RATE,
        schedule="constant",
        learning_rate=RATE,
        warmup_steps=0,
        optimizer="adamw",
        weight_decay=DECAY,
        adam_b2=0.999,
        adam_epsilon=1e-8,
        label_smoothing=0.0,
        initializer="normal",
    )
    engine = make_engine(make_model(make_config(options)), training)
    state = engine.create()
    batch = {"target": draw_tokens(options, options.rows, options.length)}

    def run() -> None:
        nonlocal state
        for _ in range(options.steps):
            state, metrics = engine.step(state, engine.put(batch))
            jax.block_until_ready(metrics)  # as training reads them on a CPU
        jax.block_until_ready(state)

    return run


def make_torch_model(options: argparse.Namespace) -> Any:
    """Make Hugging Face's model of the same size."""
    import torch
    import transformers

    torch.set_num_threads(cores())
    torch.manual_seed(0)
    config = make_config(options)
    library = cast(Any, transformers)
    if options.kind == "bert":
        settings = library.BertConfig(
            vocab_size=config.vocabulary_size,
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.d_ff,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
        )
        return library.BertForMaskedLM(settings)
    settings = library.GPT2Config(
        vocab_size=config.vocabulary_size,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=config.num_heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), DROPOUT),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), config.bos_id),
    )
    return library.GPT2LMHeadModel(settings)


def make_torch_learner(options: argparse.Namespace) -> Run:
    """Take steps of training as users write them."""
    import torch

    model = make_torch_model(options).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=RATE, weight_decay=DECAY, fused=True
    )
    half = options.precision == "bfloat16"
    tokens = torch.from_numpy(
        draw_tokens(options, options.rows, options.length).astype(np.int64)
    )

    def loss() -> Any:
        if options.kind == "gpt2":
            return model(input_ids=tokens, labels=tokens).loss
        inputs, labels = mask(tokens, make_config(options))
        if options.system == REFERENCE:
            return model(input_ids=inputs, labels=labels).loss
        x = model.bert(input_ids=inputs).last_hidden_state[labels >= 0]
        return torch.nn.functional.cross_entropy(
            model.cls(x).float(), labels[labels >= 0]
        )

    def run() -> None:
        for _ in range(options.steps):
            with (
                torch.autocast("cpu", torch.bfloat16)
                if half
                else contextlib.nullcontext()
            ):
                total = loss()
            total.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def mask(tokens: Any, config: TransformerConfig) -> tuple[Any, Any]:
    """Draw inputs and labels as Hugging Face's collator does, [B, T] each."""
    import torch

    labels, inputs = tokens.clone(), tokens.clone()
    chosen = torch.rand(tokens.shape) < MASK_RATE
    labels[~chosen] = -100
    kind = torch.rand(tokens.shape)
    inputs[chosen & (kind < 0.8)] = config.mask_id
    other = chosen & (kind >= 0.8) & (kind < 0.9)
    drawn = torch.randint(config.vocabulary_size, tokens.shape)
    inputs[other] = drawn[other]
    return inputs, labels


def make_generator(options: argparse.Namespace) -> Run:
    """Continue prompts as :meth:`jaxformer.translation.generator.Generator.generate`
    does.
    """
    import jax

    from jaxformer.models.seq2seq import example, make_model
    from jaxformer.search.config import DecodingConfig
    from jaxformer.translation.batch import Sentence, search_batch
    from jaxformer.translation.models import Models

    config = dataclasses.replace(make_config(options), dtype="float32")
    model = make_model(config)
    params = model.lazy_init(jax.random.key(0), *example(config))["params"]
    models = Models((model,), (params,)).prepare(options.precision)
    del params
    decoding = DecodingConfig(
        beam_size=1, max_extra_length=NEW, min_length=NEW, batch_size=options.rows
    )
    prompts = draw_tokens(options, options.rows, PROMPT).tolist()
    sentences = [Sentence(ids, 0, (row, 0)) for row, ids in enumerate(prompts)]

    def run() -> None:
        found = search_batch(
            models, sentences, decoding, eos_id=config.bos_id, n_best=1
        )
        _check(int(found.lengths.sum()), options)

    return run


def make_torch_generator(options: argparse.Namespace) -> Run:
    """Continue prompts by Hugging Face's ``generate``."""
    import torch

    model = make_torch_model(options).eval().to(getattr(torch, options.precision))
    prompts = torch.from_numpy(
        draw_tokens(options, options.rows, PROMPT).astype(np.int64)
    )

    def run() -> None:
        found = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            do_sample=False,
            min_new_tokens=NEW,
            max_new_tokens=NEW,
            pad_token_id=0,
        )
        _check(found.numel() - prompts.numel(), options)

    return run


def _check(tokens: int, options: argparse.Namespace) -> None:
    if tokens != options.tokens:
        raise InputError(f"{tokens} tokens were written, not {options.tokens}")


if __name__ == "__main__":
    turns.run(main, begin)
