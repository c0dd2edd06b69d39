"""``python -m jaxformer``: the same as ``jaxformer``."""

import sys

from jaxformer.cli.main import start

if __name__ == "__main__":
    sys.exit(start())
