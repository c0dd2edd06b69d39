"""Functions of :mod:`jaxformer.functional` that are faster or take less memory, under
the same name and with the same arguments and values; README.md says what each pays.
"""

from jaxformer.kernels.attention import attend
from jaxformer.kernels.chunked_losses import output_losses
from jaxformer.kernels.elementwise import dropout, relu
from jaxformer.kernels.losses import cross_entropy
from jaxformer.kernels.matmul import embed, joint_linear, linear, project_to_vocabulary
from jaxformer.kernels.norm import layer_norm

__all__ = [
    "attend",
    "cross_entropy",
    "dropout",
    "embed",
    "joint_linear",
    "layer_norm",
    "linear",
    "output_losses",
    "project_to_vocabulary",
    "relu",
]
