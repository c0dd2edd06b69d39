"""Memory that a server gives back."""

import re
from pathlib import Path

import pytest

from jaxformer.serving.memory import trim_heap

STATUS = Path("/proc/self/status")


def resident():
    """Return the megabytes that this process holds."""
    return int(re.findall(r"VmRSS:\s*(\d+)", STATUS.read_text())[0]) / 1024


@pytest.mark.skipif(not STATUS.exists(), reason="needs Linux")
def test_freed_memory_goes_back_to_the_system():
    """The last block lies above the others, which the allocator keeps without this."""
    blocks = [bytes(range(256)) * 256 for _ in range(3_000)]  # 64 KiB each
    del blocks[:-1]
    before = resident()
    trim_heap()
    assert resident() < before - 100
