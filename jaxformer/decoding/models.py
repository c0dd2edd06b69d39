"""The models that search together, in the form and on the devices where they do."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxformer.decoding.config import Precision
from jaxformer.decoding.precision import prepare
from jaxformer.models.seq2seq import Transformer
from jaxformer.typing import PyTree


class Models(NamedTuple):
    """One model, or an ensemble of them with one vocabulary."""

    models: tuple[Transformer, ...]
    params: tuple[PyTree, ...]
    weights: np.ndarray | None = None
    """How much each counts, [M]; None: all alike."""
    mesh: Mesh | None = None
    """The devices among which sentences are divided; None: there is one."""
    least_rows: int = 1
    """How many rows a step has at least, where fewer take longer."""

    @property
    def positions(self) -> int:
        """Most tokens that every model takes, on either side."""
        return min(model.config.max_length for model in self.models)

    @property
    def devices(self) -> int:
        """How many devices search, each its share of the sentences."""
        return 1 if self.mesh is None else self.mesh.size

    def prepare(self, precision: Precision) -> Models:
        """Give the same models in another precision, on all devices of this host."""
        prepared = [prepare(model.config, own, precision) for model, own in zip(self.models, self.params, strict=True)]
        params = tuple(own for _, own in prepared)
        mesh = None
        if jax.local_device_count() > 1:
            mesh = Mesh(np.array(jax.local_devices()), (SENTENCES,))
            params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        narrow = precision == "int8" or any(config.dtype != "float32" for config, _ in prepared)
        models = tuple(Transformer(config) for config, _ in prepared)
        return self._replace(models=models, params=params, mesh=mesh, least_rows=2 if narrow else 1)


SENTENCES = "sentences"
"""The name of the mesh's axis."""
