"""What the tests of data sets share: pairs of sentences, and a configuration."""

import os
import subprocess
import sys

import numpy as np
import pytest

from jaxformer.data.config import DataConfig
from jaxformer.data.sources import load
from jaxformer.errors import InputError

CODES = ("de", "en")
# A small text of the bundled corpus.
BASE = {
    "train": "bundled:en-de/valid",
    "vocabulary_size": 400,
    "max_length": 60,
    "tokens_per_batch": 700,
    "num_buckets": 4,
    "workers": 1,
}


def config_of(**options):
    return DataConfig(**{**BASE, **options})


def texts(count):
    """Make pairs with characters that other tools take for ends of lines."""
    return [
        (f"Satz {n} über\u2028Äpfel", f"sentence {n}\x85 on apples")
        for n in range(count)
    ]


def arrays(lengths):
    """Return the lengths of both sides of pairs."""
    sides = ([pair[side] for pair in lengths] for side in (0, 1))
    return tuple(np.array(side, np.int64) for side in sides)


def draw_lengths(count, longest):
    """Draw lengths as translations have them: skewed, and similar on both sides."""
    generator = np.random.default_rng(0)
    source = np.clip(generator.lognormal(2.3, 0.6, count), 1, longest).astype(np.int64)
    target = np.clip(source * generator.lognormal(0.1, 0.3, count), 1, longest)
    return source, target.astype(np.int64)


def refuse(name, message, languages=CODES):
    """A data set is refused in one line."""
    with pytest.raises(InputError, match=message) as error:
        list(load(name, *languages))
    assert "\n" not in str(error.value)


def run(code, **environment):
    """Run a program in a process of its own, as variables that packages read at
    import need it.
    """
    environment = {**os.environ, "PYTHONWARNINGS": "error", **environment}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found
