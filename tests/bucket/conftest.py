"""Each test has an empty bucket."""

from __future__ import annotations

import pytest
from fake_bucket import FakeBucket

from jaxformer import bucket
from jaxformer.bucket import locks, mirror


@pytest.fixture(autouse=True)
def _bucket(monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.02)
    monkeypatch.setattr(mirror, "_LARGE", 1000)
    FakeBucket.reset()
    yield
    bucket.close()
    FakeBucket.reset()
