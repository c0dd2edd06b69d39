"""The parameters that a run offers: those of its checkpoints, and the averages of
some.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from jaxformer.checkpoints import folder
from jaxformer.checkpoints.saved import open_to_read
from jaxformer.errors import InputError
from jaxformer.typing import PyTree

_AVERAGE = "average"


class SavedParameters(NamedTuple):
    """Parameters of a run that are found and not yet read.

    Attributes:
        path: the folder of the checkpoint.
        name: the step, or ``average/NAME``.
        vocabulary: the hash of the vocabulary that they were trained with.
    """

    path: Path
    name: int | str
    vocabulary: str

    def load(self, like: PyTree) -> PyTree:
        """Read them in the shapes, types and placement of a tree, as
        :func:`jaxformer.checkpoints.folder.restore`.

        Raises:
            InputError: they are of another model, damaged, not finite, or were removed.
        """
        return folder.restore(self.path, {"params": like})["params"]


def find_parameters(run: Path, which: str, best_metric: str) -> SavedParameters:
    """Find what ``--checkpoint`` names.

    Args:
        run: its directory.
        which: ``best`` (the latest where nothing was evaluated), ``latest``, a step,
            ``average`` (the newest) or ``average/NAME``.
        best_metric: name of the score that makes a checkpoint the best.

    Raises:
        InputError: there is nothing of that name, or it is not whole.
    """
    if which.split("/")[0] == _AVERAGE:
        return _find_average(run, which)
    checkpoints = open_to_read(run / "checkpoints", best_metric)
    step = checkpoints.find(which)
    path = checkpoints.path(step)
    folder.check(path, ["params"], contents=False)
    record = checkpoints.progress(step)
    if "vocabulary" not in record:
        raise folder.damaged(path, "its record does not name the vocabulary")
    return SavedParameters(path, step, record["vocabulary"])


def _find_average(run: Path, which: str) -> SavedParameters:
    from jaxformer.checkpoints.average import (
        average_folders,
        list_averages,
        read_average,
    )

    names = [f"{_AVERAGE}/{path.name}" for path in average_folders(run)]
    if not names:
        raise InputError(
            f"{run} holds no average yet; make one: jaxformer average --workdir={run}"
        )
    if which != _AVERAGE and which not in names:
        raise InputError(
            f"there is no checkpoint {which!r} in {run}; there are"
            f" {', '.join(sorted(names))}"
        )
    # Another average that is damaged does not matter to one that is named.
    found = (
        list_averages(run)[-1]
        if which == _AVERAGE
        else read_average(run / "averages" / which.split("/")[1])
    )
    return SavedParameters(
        run / "averages" / found.name, f"{_AVERAGE}/{found.name}", found.vocabulary
    )
