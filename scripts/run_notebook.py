#!/usr/bin/env python3
"""Run a notebook from top to bottom and store its outputs.

    python scripts/run_notebook.py docs/notebooks/from_attention_to_a_model.ipynb

The file is rewritten without what differs from run to run, such as the times of the
cells.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxformer.errors import InputError, require


def run(path: Path) -> None:
    """Run the notebook in a kernel of its own, in its folder, and write it back.

    Raises:
        InputError: there is no such file, or nbclient is not installed.
        nbclient.exceptions.CellExecutionError: a cell failed; the file stays as it was.
    """
    if not path.is_file():
        raise InputError(
            f"a notebook must be a file, but there is no {path}: name an .ipynb"
        )
    nbformat, nbclient = require("nbformat", "test"), require("nbclient", "test")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    # without the version of this one
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


def main() -> int:
    """Run the notebooks that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="files .ipynb"
    )
    try:
        for path in parser.parse_args().notebooks:
            run(path)
            print(path)
    except InputError as error:
        print(f"run_notebook: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
