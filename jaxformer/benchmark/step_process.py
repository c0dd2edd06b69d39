"""The process of one system: ``python -m jaxformer.benchmark.step_process``, which
learns what it is told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from jaxformer import freed_memory
from jaxformer.benchmark.task import (
    Learner,
    Task,
    fixed_batches,
    load_pairs,
    padding,
    real_tokens,
)
from jaxformer.benchmark.turns import Message, serve
from jaxformer.data.batching import Batch


def make_learner(system: str, task: Task) -> Learner:
    """Make a system by its name: framework, precision and, in jaxformer, a
    variation, joined by hyphens.
    """
    framework, precision, *variation = system.split("-")
    if framework == "jaxformer":
        from jaxformer.benchmark import learner

        return learner.make_learner(task, precision, *variation)
    from jaxformer.benchmark.torch_learners import (
        TorchLearner,
        TorchTransformer,
        make_marian,
    )

    model = {"torch": TorchTransformer, "marian": make_marian}[framework](task)
    return TorchLearner(task, precision, model)


def begin(request: Message) -> Callable[[Message], Message]:
    """Make the system that ``system`` names for ``task``, and take its first step."""
    task = Task(**request["task"])
    if request["system"].startswith("jaxformer"):
        freed_memory.manage()  # as the command line does
    learner = make_learner(request["system"], task)
    work: dict[str | None, list[Batch]] = {None: fixed_batches(task, request["steps"])}
    learner.run(work[None][:1])

    def answer(request: Message) -> Message:
        """Learn from fixed batches, or from those of the pairs in a file; give
        seconds and tokens.
        """
        pairs = request["pairs"]
        if pairs not in work:
            work[pairs] = learner.batches(load_pairs(Path(pairs)))
        batches = work[pairs]
        begun = time.perf_counter()
        learner.run(batches)
        seconds = time.perf_counter() - begun
        return {
            "seconds": seconds,
            "tokens": real_tokens(batches),
            "padding": padding(batches),
            "steps": len(batches),
        }

    return answer


if __name__ == "__main__":
    serve(begin)
