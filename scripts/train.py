#!/usr/bin/env python3
"""Launch training: ``python scripts/train.py --config=FILE --workdir=DIR``, the same
as ``jaxformer train``.
"""

import sys

from jaxformer.cli.main import start

if __name__ == "__main__":
    sys.exit(start("train"))
