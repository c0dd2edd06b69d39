"""Settings of the tests of translation."""

from __future__ import annotations

import pytest

from jaxformer.translation import models


@pytest.fixture(autouse=True)
def _one_device(request, monkeypatch):
    """Translate on one device, except where devices are the point: programs for eight
    compile and run far longer.
    """
    if "test_devices" not in request.node.nodeid:
        monkeypatch.setattr(models, "mesh_of_devices", lambda: None)
