"""COMET through its package's interface, with a stand-in of the same shape: the model itself is too large for tests."""

import importlib.metadata
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from jaxformer.errors import InputError
from jaxformer.evaluation import comet as module
from jaxformer.evaluation.comet import Comet
from jaxformer.evaluation.metrics import score
from jaxformer.evaluation.statistics import join_shards, measure_shard, score_rows

SOURCES = ["one", "two two", "three"]
HYPOTHESES = ["eins", "zwei zwei", ""]
REFERENCES = ["eins", "zwei", "drei"]


def judge(sample):
    """Judge as the stand-in does: by the letters of all three."""
    return len(sample["mt"]) / (1 + len(sample["src"]) + len(sample.get("ref", "")))


class Model:
    """What ``comet.load_from_checkpoint`` gives."""

    def __init__(self, path):
        self.path, self.asked = path, []

    def requires_references(self):
        return "kiwi" not in self.path

    def predict(self, samples, batch_size=16, gpus=1, progress_bar=True):
        assert (gpus, progress_bar) == (0, False)
        assert all(
            set(sample) == ({"src", "mt", "ref"} if self.requires_references() else {"src", "mt"}) for sample in samples
        )
        self.asked.append(len(samples))
        scores = [judge(sample) for sample in samples]
        return SimpleNamespace(scores=scores, system_score=sum(scores) / len(scores))


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """Put the stand-in where the package would be, and say what it was asked to fetch."""
    fetched = []

    def download_model(model):
        fetched.append(model)
        if "nothing" in model:
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return f"/cache/{model}/checkpoints/model.ckpt"

    monkeypatch.setitem(
        sys.modules, "comet", SimpleNamespace(download_model=download_model, load_from_checkpoint=Model)
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.2.7" if name == "unbabel-comet" else real(name))
    module._load.cache_clear()
    yield fetched
    module._load.cache_clear()


def test_mean_of_the_sentences(package):
    """The score is the model's system score; the signature names model and version (statement 111)."""
    found = score(Comet(), HYPOTHESES, REFERENCES, sources=SOURCES)
    samples = [{"src": s, "mt": h, "ref": r} for s, h, r in zip(SOURCES, HYPOTHESES, REFERENCES, strict=True)]
    assert found.value == pytest.approx(np.mean([judge(sample) for sample in samples]))
    assert found.name == "COMET"
    assert found.signature == "nrefs:1|model:Unbabel/wmt22-comet-da|unbabel-comet:2.2.7"
    assert package == ["Unbabel/wmt22-comet-da"]
    score(Comet(), HYPOTHESES, REFERENCES, sources=SOURCES)
    assert len(package) == 1


def test_model_without_references(package):
    """A model that needs no reference is given none, and the signature says so."""
    found = score(Comet("Unbabel/wmt22-cometkiwi-da"), HYPOTHESES, REFERENCES, REFERENCES, sources=SOURCES)
    assert found.signature.startswith("nrefs:0|model:Unbabel/wmt22-cometkiwi-da|")


def test_model_of_a_file(package, tmp_path):
    """A model in a file is read there, and nothing is fetched."""
    path = tmp_path / "my-model" / "checkpoints" / "model.ckpt"
    path.parent.mkdir(parents=True)
    path.touch()
    found = score(Comet(str(path)), HYPOTHESES, REFERENCES, sources=SOURCES)
    assert package == []
    assert "|model:my-model|" in found.signature


def test_hosts_score_as_one():
    """Shares of hosts are put together as for every metric (statement 113)."""
    shards = [
        measure_shard(
            Comet(),
            numbers,
            *([lines[n or 0] for n in numbers] for lines in (HYPOTHESES, REFERENCES)),
            sources=[SOURCES[n or 0] for n in numbers],
        )
        for numbers in ([2, 0], [1, None])
    ]
    whole = score(Comet(), HYPOTHESES, REFERENCES, sources=SOURCES)
    assert score_rows(Comet(), join_shards(shards, 3)) == whole


def test_what_cannot_be_scored():
    """Missing sources, several references and a model that cannot be fetched are said in one line each."""
    with pytest.raises(InputError, match="COMET reads the sources too: give --source"):
        score(Comet(), HYPOTHESES, REFERENCES)
    with pytest.raises(InputError, match="COMET compares with one reference, not with 2"):
        score(Comet(), HYPOTHESES, REFERENCES, REFERENCES, sources=SOURCES)
    with pytest.raises(InputError, match="3 hypotheses") as caught:
        score(Comet(), HYPOTHESES, REFERENCES, sources=SOURCES[:2])
    with pytest.raises(InputError, match=r"COMET's model nothing/there cannot be had \(KeyError") as caught:
        score(Comet("nothing/there"), HYPOTHESES, REFERENCES, sources=SOURCES)
    assert "\n" not in str(caught.value)


def test_missing_package(monkeypatch):
    """Without the package the error names the extra."""
    monkeypatch.setitem(sys.modules, "comet", None)
    with pytest.raises(
        InputError, match=r"needs the package comet, which is not installed: pip install 'jaxformer\[comet\]'"
    ):
        Comet().prepare(1)
