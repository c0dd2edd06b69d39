#!/usr/bin/env python3
"""Translate: ``python scripts/translate.py --workdir=DIR``, the same as ``jaxformer translate``."""

import sys

from jaxformer.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["translate", *sys.argv[1:]]))
