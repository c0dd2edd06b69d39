"""The trained model that the tests of parity share."""

import pytest
from parity.marians import draw, make_ending, one_thread

from jaxformer.interop import marian


@pytest.fixture(scope="session")
def ending():
    """A model that ends its sentences, sources, and the model carried over."""
    with one_thread():
        model = make_ending(0).eval()
    return model, draw(9, 100), *marian.from_model(model)
