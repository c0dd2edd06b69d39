"""The parameters that a run offers: those of its checkpoints, and the averages of
some.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxformer import bucket
from jaxformer.checkpoints import folder
from jaxformer.checkpoints.saved import SavedCheckpoints, open_to_read
from jaxformer.errors import InputError
from jaxformer.typing import PyTree

_AVERAGE = "average"


class Base(NamedTuple):
    """What adapters are for; kept in the record of their checkpoints as JSON.

    Attributes:
        run: absolute directory of a run, or its URL.
        checkpoint: a step of that run.
        hash: of the parameters of that checkpoint, as of
            :func:`jaxformer.checkpoints.folder.hash_tree`.
        scale: factor on what the adapters add.
    """

    run: str
    checkpoint: int
    hash: str
    scale: float

    def load(self, run: Path, like: PyTree) -> PyTree:
        """Read the parameters, of the run at its place or, where there is none, of the
        run of the same name next to that of the adapters.

        Args:
            run: directory of the run that has adapters.
            like: shapes, types and placement of the parameters.

        Raises:
            InputError: the checkpoint is missing, has changed, or does not fit.
        """
        run = Path(os.path.abspath(run))  # one that is `.` has no name and no parent
        needs = (
            f"{run} has only adapters for checkpoint {self.checkpoint} of {self.run}"
        )
        places = bucket.open_directory(self.run), run.parent / Path(self.run).name
        base = next((place for place in places if place.is_dir()), None)
        if base is None:
            raise InputError(
                f"{needs}, which is not there: put that run back, or next to {run}"
            )
        steps = SavedCheckpoints(base / "checkpoints").steps
        if self.checkpoint not in steps:
            raise InputError(
                f"{needs}, and {base} has no such checkpoint: put it back from a copy,"
                " or train adapters for another"
            )
        saved = find_parameters(base, str(self.checkpoint), "loss")
        if folder.hash_tree(saved.path, "params") != self.hash:
            raise InputError(
                f"{needs}, and {base} has other parameters there: put those back that"
                " the adapters were trained with, or train adapters for these"
            )
        return saved.load(like)


class SavedParameters(NamedTuple):
    """Parameters of a run that are found and not yet read.

    Attributes:
        path: the folder of the checkpoint.
        name: the step, or ``average/NAME``.
        vocabulary: the hash of the vocabulary that they were trained with.
        base: where the checkpoint holds adapters, what they are for.
        drawn: parts of the model that began as newly drawn in a run that otherwise
            began with another run's.
    """

    path: Path
    name: int | str
    vocabulary: str
    base: Base | None = None
    drawn: tuple[str, ...] = ()

    def load(
        self, like: PyTree, convert: Callable[[PyTree], PyTree] | None = None
    ) -> PyTree:
        """Read them in the shapes, types and placement of a tree, as
        :func:`jaxformer.checkpoints.folder.restore`; adapters are merged with their
        base.

        Args:
            like: the tree.
            convert: changes a dictionary of some of the entries of the tree; without
                adapters, each as soon as it is read.

        Raises:
            InputError: they are of another model, damaged, not finite, or were removed;
                or the base of adapters is missing or has changed.
        """
        if self.base is None:
            if convert is not None:
                return self._load_parts(like, convert)
            return folder.restore(self.path, {"params": like})["params"]
        from jaxformer.models.lora import Adapted

        base = self.base.load(self.path.parents[1], like)
        shapes = folder.read_shapes(self.path, "params")
        place = jax.tree.leaves(base)[0].sharding
        if isinstance(place, NamedSharding):  # of many devices: each has them whole
            whole = NamedSharding(place.mesh, PartitionSpec())
            shapes = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(
                    leaf.shape, leaf.dtype, sharding=whole
                ),
                shapes,
            )
        adapters = folder.restore(self.path, {"params": shapes})["params"]
        merged = Adapted(base, adapters, self.base.scale).merge()
        return merged if convert is None else convert(merged)

    def _load_parts(
        self, like: PyTree, convert: Callable[[PyTree], PyTree]
    ) -> dict[str, PyTree]:
        """Convert what is at one key of the tree before the next is read: the tree as
        it was saved is never whole in memory.
        """
        saved = folder.read_shapes(self.path, "params")  # checks the files
        folder.check_shapes(self.path, saved, like)
        found = {}
        sizes = {
            key: sum(leaf.size for leaf in jax.tree.leaves(part))
            for key, part in like.items()
        }
        # The largest part is read first, while no other is in memory.
        for key in sorted(like, key=lambda key: -sizes[key]):
            wanted = {"params": {key: like[key]}}
            found |= convert(
                folder.restore(self.path, wanted, partial=True, checked=True)["params"]
            )
            gc.collect()  # orbax keeps arrays in cycles
        return found


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
    record = checkpoints.progress(step)
    if "vocabulary" not in record:
        raise folder.damaged(path, "its record does not name the vocabulary")
    base = record.get("base")
    return SavedParameters(
        path,
        step,
        record["vocabulary"],
        None if base is None else Base(**base),
        tuple(record.get("drawn", ())),
    )


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
        run / "averages" / found.name,
        f"{_AVERAGE}/{found.name}",
        found.vocabulary,
        None if found.base is None else Base(**found.base),
    )
