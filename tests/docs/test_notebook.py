"""The notebook runs from top to bottom, and its model learns the task."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "from_attention_to_a_model.ipynb"

nbformat = pytest.importorskip("nbformat")


def read(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return notebook


def outputs_of(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [output for cell in cells for output in cell.outputs]


def check_results(notebook, share):
    """Attention is its formula, order needs positions, and words are reversed."""
    outputs = outputs_of(notebook)
    said = "".join(one.text for one in outputs if one.output_type == "stream")
    answer = float(re.search(r"^answer ([\d.]+)$", said, re.MULTILINE)[1])
    assert float(re.search(r"answer by hand +\[?([\d.]+)", said)[1]) == answer
    without, with_places = re.findall(r"positions: +largest difference (\S+)", said)
    assert float(without) < 1e-5 < 0.05 < float(with_places)
    losses = re.search(r"loss (\S+) -> (\S+) \(floor (\S+)\)", said).groups()
    first, last, floor = map(float, losses)
    assert floor <= last < first
    right, words = map(int, re.search(r"(\d+) of (\d+) unseen words", said).groups())
    assert right >= share * words > 100
    assert int(re.search(r"the best head gives .* (\d+)% of its weight", said)[1]) > 50
    assert sum("image/png" in one.get("data", {}) for one in outputs) == 3


def test_the_stored_outputs_are_whole():
    """Each cell of code has run, in order and without an error; the file is small."""
    notebook = read(NOTEBOOK)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {(one.output_type, one.get("name")) for one in outputs_of(notebook)}
    assert kinds <= {("stream", "stdout"), ("display_data", None)}
    check_results(notebook, share=0.95)
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < 200_000
    assert not re.search(r"/(home|root|tmp)/", text)


@pytest.mark.slow
def test_it_runs(tmp_path, monkeypatch):
    """A new kernel runs every cell, with fewer training steps, to the same results."""
    pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XLA_FLAGS", "")  # one device
    copy = tmp_path / NOTEBOOK.name
    shutil.copy(NOTEBOOK, copy)
    notebook = read(copy)
    cells = notebook.cells
    (parameters,) = (x for x in cells if "parameters" in x.metadata.get("tags", ()))
    assert "STEPS = 1000" in parameters.source
    parameters.source = "STEPS = 250"
    nbformat.write(notebook, copy)
    path = ROOT / "scripts" / "run_notebook.py"
    specification = importlib.util.spec_from_file_location("run_notebook", path)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    script.run(copy)
    check_results(read(copy), share=0.8)
