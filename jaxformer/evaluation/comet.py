"""COMET: a neural network that was trained on human judgements and reads source, translation and reference."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.errors import InputError, require
from jaxformer.evaluation import sentences
from jaxformer.evaluation.statistics import Score, Statistics
from jaxformer.typing import Float

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"


@dataclass(frozen=True)
class Comet:
    """The mean of a COMET model's scores of the sentences; see :class:`jaxformer.evaluation.statistics.Metric`.

    Attributes:
        model: the model's name, which is fetched where it is not yet there, or the path of its ``model.ckpt``.
        batch_size: sentences that go through the model together.
        key: its name in options and records.
        higher_is_better: always.
        digits: decimals that a record keeps.

    References:
        Rei et al., "COMET: A Neural Framework for MT Evaluation", 2020; "COMET-22", 2022.
    """

    model: str = DEFAULT_MODEL
    batch_size: int = 16
    key: str = "comet"
    higher_is_better: bool = True
    digits: int = 4

    def prepare(self, references: int) -> None:
        """Load the model.

        Raises:
            InputError: the package is not installed, the model cannot be had, or it does not take so many references.
        """
        if _load(self.model).requires_references() and references != 1:
            raise InputError(f"COMET compares with one reference, not with {references}: leave the others out")

    def statistics(
        self, hypotheses: Sequence[str], *references: Sequence[str], sources: Sequence[str] | None = None
    ) -> Statistics:
        """Score each sentence; its row is that score and a one.

        Raises:
            InputError: as :func:`jaxformer.evaluation.sentences.check`; there are no sources, or several references;
                the package is not installed, or the model cannot be had.
        """
        sentences.check(hypotheses, references, sources)
        if sources is None:
            raise InputError("COMET reads the sources too: give --source")
        self.prepare(len(references))
        model = _load(self.model)
        columns = {"src": sources, "mt": hypotheses}
        if model.requires_references():
            (columns["ref"],) = references
        samples = [dict(zip(columns, lines, strict=True)) for lines in zip(*columns.values(), strict=True)]
        gpus = int(require("torch", "comet").cuda.is_available())
        found = model.predict(samples, batch_size=self.batch_size, gpus=gpus, progress_bar=False)
        rows = np.stack([np.asarray(found.scores, np.float64), np.ones(len(samples))], axis=1)
        return Statistics(rows, self._signature(int("ref" in columns)))

    def score(self, total: Float[np.ndarray, " K"], signature: str) -> Score:
        """Average the sentences whose rows were summed to ``total``."""
        return Score("COMET", float(total[0] / total[1]), signature)

    def _signature(self, references: int) -> str:
        name = self.model if not Path(self.model).exists() else Path(self.model).resolve().parent.parent.name
        return f"nrefs:{references}|model:{name}|unbabel-comet:{importlib.metadata.version('unbabel-comet')}"


@functools.cache
def _load(model: str) -> Any:
    """Read a model, which is fetched first where it is not at hand.

    Raises:
        InputError: the package is not installed, or the model cannot be had.
    """
    comet = require("comet", "comet")
    try:
        path = model if Path(model).is_file() else comet.download_model(model)
        return comet.load_from_checkpoint(path)
    except Exception as error:  # of any kind: no network, no such model, no licence for it, a damaged file
        raise InputError(
            f"COMET's model {model} cannot be had ({type(error).__name__}: {error}): check its name and the network, "
            "or fetch it elsewhere and give --comet_model=FOLDER/checkpoints/model.ckpt"
        ) from None
