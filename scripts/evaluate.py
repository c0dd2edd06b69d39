#!/usr/bin/env python3
"""Evaluate: ``python scripts/evaluate.py --workdir=DIR``, the same as ``jaxformer
evaluate``.
"""

import sys

from jaxformer.cli.main import start

if __name__ == "__main__":
    sys.exit(start("evaluate"))
