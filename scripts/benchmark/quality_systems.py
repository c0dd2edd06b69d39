"""One model trained in jaxformer and in PyTorch's own layers: how well each predicts
the validation text on the way.

Both begin with the same parameters and see the same batches in the same order, with the
same learning rates, optimizer, dropout and smoothing. What differs is who computes, the
order in which numbers are added, and dropout's random bits.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from jax_learner import JaxLearner
from jaxformer.data.batching import Batch
from jaxformer.data.corpus import load_evaluation, name_sources
from jaxformer.data.pipeline import Position, TrainingData
from jaxformer.data.records import Pair
from jaxformer.errors import InputError, LineError, require
from jaxformer.evaluation.evaluate import evaluate
from jaxformer.functional.losses import smoothed_probabilities
from jaxformer.runs.config import RunConfig
from jaxformer.training.run import Run
from jaxformer.training.schedules import make_schedule
from jaxformer.translation.translator import Translator
from jaxformer.typing import PyTree
from tasks import BOS, PAD, Learner, Task

OURS = "jaxformer"
"""Our model's name among the results."""

THEIRS = "torch"
"""The name of PyTorch's."""

_Stream: TypeAlias = Generator[tuple[Batch, Position]]
_PRECISIONS = "float32", "bfloat16"

# What PyTorch's reference is and does; all other keys are free.
_FIXED: Mapping[str, Mapping[str, object]] = {
    "model": {
        "d_k": None,
        "d_v": None,
        "attention_dropout_rate": 0.0,
        "activation_dropout_rate": 0.0,
        "activation": "relu",
        "norm_order": "post",
        "norm_epsilon": 1e-6,
        "positions": "sinusoidal",
        "tied_embeddings": "all",
        "scale_embedding": True,
        "output_bias": False,
        "scan_layers": False,
    },
    "data": {"packing": False},
    "training": {
        "optimizer": "adam",
        "adam_b1": 0.9,
        "adam_b2": 0.98,
        "adam_epsilon": 1e-9,
        "gradient_clip": None,
        "ema_decay": None,
        "frozen": None,
        "z_loss": 0.0,
        "r_drop": 0.0,
        "initial_run": None,
    },
}


class System(NamedTuple):
    """One of the two systems.

    Attributes:
        learner: its model.
        parameters: returns the current parameters in the form of jaxformer.
    """

    learner: Learner
    parameters: Callable[[], PyTree]


class TestSet(NamedTuple):
    """What both translate at the end.

    Attributes:
        name: of the data set.
        pairs: of it.
        language: of its references.
    """

    name: str
    pairs: list[Pair]
    language: str


class Point(NamedTuple):
    """What was measured of a system at a step.

    Attributes:
        system: of :data:`OURS` and :data:`THEIRS`.
        step: updates made.
        valid_nll: of the validation text, in nats a token, neither smoothed nor with
            dropout.
        seconds: that it has trained, compilation included and measuring left out.
    """

    system: str
    step: int
    valid_nll: float
    seconds: float


def check_comparable(config: RunConfig) -> None:
    """Refuse a run that PyTorch's reference cannot be trained like.

    Args:
        config: of the run.

    Raises:
        InputError: a key has another value than the reference, or a package that is
            needed is not installed.
    """
    # the last two at the end, when hours have gone by
    for package in ("torch", "matplotlib", "sacrebleu"):
        require(package, "benchmark")
    from torch_learners import LONGEST

    for section, keys in _FIXED.items():
        for key, value in keys.items():
            found = getattr(getattr(config, section), key)
            if found != value:
                raise _refusal(f"{section}.{key}", found, value)
    model = config.model
    if model.dtype not in _PRECISIONS:
        raise _refusal("model.dtype", model.dtype, "float32")
    if model.num_encoder_layers != model.num_decoder_layers:
        raise _refusal(
            "model.num_decoder_layers",
            model.num_decoder_layers,
            model.num_encoder_layers,
        )
    if model.max_length > LONGEST:
        raise _refusal("model.max_length", model.max_length, LONGEST)
    if (model.pad_id, model.bos_id) != (PAD, BOS):
        raise InputError(
            f"the reference in PyTorch pads with {PAD} and begins with {BOS}, and this"
            f" vocabulary with {model.pad_id} and {model.bos_id}: let data.train name"
            " text, for which a vocabulary is trained"
        )


def make_task(config: RunConfig) -> Task:
    """Return what PyTorch is to learn.

    PyTorch shares epsilon among all V tokens. What is shared among the others is the
    same as V / (V - 1) times as much shared among all, since the true token then gets
    back what it lacks.
    """
    model, training = config.model, config.training
    _, off = smoothed_probabilities(
        model.vocabulary_size, training.label_smoothing, training.smoothing_convention
    )
    return Task(
        d_model=model.d_model,
        d_ff=model.d_ff,
        num_heads=model.num_heads,
        num_layers=model.num_encoder_layers,
        vocabulary_size=model.vocabulary_size,
        tokens_per_batch=config.data.tokens_per_batch,
        dropout_rate=model.dropout_rate,
        label_smoothing=off * model.vocabulary_size,
    )


def learning_rates(config: RunConfig) -> np.ndarray:
    """Compute the rate of every update of the run, and of the one that would follow,
    float32.
    """
    schedule = make_schedule(config.training, config.model.d_model)
    return np.asarray(jax.vmap(schedule)(jnp.arange(config.training.steps + 1)))


def make_systems(config: RunConfig) -> dict[str, System]:
    """Make both systems, with the same parameters.

    Args:
        config: complete, with the sizes and ids of the vocabulary;
            :func:`check_comparable` has passed it.
    """
    ours = JaxLearner(config.model, config.training, config.data)
    return {
        OURS: System(ours, ours.parameters),
        THEIRS: _make_theirs(config, ours.parameters()),
    }


def _make_theirs(config: RunConfig, params: PyTree) -> System:
    """Make the model in PyTorch, beginning with these parameters; the seed of
    dropout is that of the run.
    """
    import torch

    import torch_learners
    import torch_parameters

    torch.manual_seed(config.training.seed)
    task, rates = make_task(config), learning_rates(config)
    model = torch_learners.TorchTransformer(task)
    stacks: Any = model.transformer
    places = torch_parameters.find_places(model.table, stacks.encoder, stacks.decoder)
    torch_parameters.write(places, params)
    learner = torch_learners.TorchLearner(
        task, config.model.dtype, model, lambda step: float(rates[step])
    )
    return System(learner, lambda: torch_parameters.read(places))


def measured_steps(config: RunConfig) -> list[int]:
    """Return the steps of ``training.evaluate_every``, and the first and the last
    besides.
    """
    steps = config.training.steps
    return [*range(0, steps, config.training.evaluate_every), steps]


def train_in_turns(
    systems: Mapping[str, System],
    data: TrainingData,
    valid: Sequence[Batch],
    steps: Sequence[int],
) -> Iterator[Point]:
    """Let each system train up to the next of the steps and be measured, while the
    others wait.

    Args:
        systems: by name.
        data: whose batches each of them gets, from the first on.
        valid: batches of the validation text.
        steps: at which to measure, rising.

    Yields:
        For each step a point of every system.
    """
    seconds = dict.fromkeys(systems, 0.0)
    with contextlib.ExitStack() as parts:
        opened = {name: cast(_Stream, data.batches()) for name in systems}
        streams = {
            name: parts.enter_context(contextlib.closing(stream))
            for name, stream in opened.items()
        }
        for before, step in itertools.pairwise([0, *steps]):
            for name, (learner, _) in systems.items():
                begun = time.perf_counter()
                learner.run(
                    batch for batch, _ in itertools.islice(streams[name], step - before)
                )
                seconds[name] += time.perf_counter() - begun
                yield Point(name, step, learner.nll(valid), seconds[name])


def load_test(run: Run, params: PyTree) -> TestSet:
    """Read the run's test set, and find what translating it would refuse before
    anything is trained.

    Args:
        run: whose vocabularies and configuration these are.
        params: of the model, trained or not.

    Raises:
        InputError: it cannot be read, or a sentence is longer than ``decoding`` allows.
    """
    data = run.config.data
    pairs, (_, language) = load_evaluation(data.test, data)
    test = TestSet(data.test, pairs, language)
    try:
        _make_translator(run, test, params).check([pair.source for pair in test.pairs])
    except LineError as error:
        raise error.within(name_sources(data.test, data)) from None
    return test


def translate_test(run: Run, test: TestSet, params: PyTree) -> dict[str, Any]:
    """Translate a test set with these parameters by the run's ``decoding``; return the
    record with BLEU.

    Args:
        run: whose vocabularies and configuration these are.
        test: of :func:`load_test`.
        params: of the model.
    """
    return evaluate(_make_translator(run, test, params), test.pairs, test.name)[0]


def _make_translator(run: Run, test: TestSet, params: PyTree) -> Translator:
    data = run.config.data
    return Translator(
        run.config.model,
        params,
        run.vocabularies,
        run.config.decoding,
        source_eos=data.source_eos,
        tag=test.language if data.language_tags else None,
        source_language=data.source_language,
        target_language=test.language,
        trained_length=data.max_length,
    )


def relative_difference(points: Sequence[Point]) -> list[tuple[int, float]]:
    """Return the relative difference of our loss from PyTorch's at each step."""
    curves = {
        name: {point.step: point.valid_nll for point in points if point.system == name}
        for name in (OURS, THEIRS)
    }
    return [
        (step, curves[OURS][step] / nll - 1.0) for step, nll in curves[THEIRS].items()
    ]


def _refusal(key: str, found: object, value: object) -> InputError:
    return InputError(
        f"the reference in PyTorch is the paper's model and recipe, and {key}={found}"
        f" is not: set --config.{key}={value}"
    )
