"""A use of a name that is not public is found."""

import pytest
from name_uses import private_uses


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import jaxformer as jf\njf.nn.Encoder\njf.functional.embed(x).shape", []),
        (
            (
                "from jaxformer.nn import Encoder\nfrom jaxformer import"
                " training\ntraining.TrainingConfig().steps"
            ),
            [],
        ),
        ("import jaxformer.nn.blocks", ["jaxformer.nn.blocks"]),
        ("from jaxformer.nn.blocks import EncoderLayer", ["jaxformer.nn.blocks"]),
        ("from jaxformer.checkpoints import folder", ["jaxformer.checkpoints"]),
        (
            "import jaxformer as jf\njf.nn.blocks.EncoderLayer(config)",
            ["jaxformer.nn.blocks"],
        ),
        (
            "import jaxformer as jf\njf.functional.losses.cross_entropy",
            ["jaxformer.functional.losses"],
        ),
        ("from jaxformer import nn as ours\nours.nothing", ["jaxformer.nn.nothing"]),
        ("import jaxformer\njaxformer.typing.Key", ["jaxformer.typing"]),
        ("import numpy as jf\njf.losses", []),
    ],
)
def test_a_private_name_is_found(source, wrong):
    """Each way of reaching behind the public names is seen, and what is public
    passes.
    """
    assert private_uses(source) == wrong
