#!/usr/bin/env python3
"""Translate: ``python scripts/translate.py --workdir=DIR``, the same as ``jaxformer
translate``.
"""

import sys

from jaxformer.cli.main import start

if __name__ == "__main__":
    sys.exit(start("translate"))
