"""A server's engine reads its run, reads it again, and uses its shortlist."""

import itertools
import json

import jax
import numpy as np
import pytest
from serving.little_engine import search, texts, translator

import runs
from jaxformer.errors import InputError
from jaxformer.serving.engine import TranslationEngine
from jaxformer.serving.programs import PLAIN
from jaxformer.translation.shortlist import Shortlist

pytestmark = pytest.mark.usefixtures("one_device")


def test_load_and_reload_of_a_run(monkeypatch, tmp_path):
    """Nothing is compiled to describe it; settings of the search replace the run's."""
    run = runs.copy(runs.random_run(), tmp_path / "run")
    engine = TranslationEngine.load(run, checkpoint="latest", decoding={"beam_size": 3})
    assert (engine.name, engine.checkpoint) == (run.name, "20")
    assert engine.languages == ("en", "de")
    assert (engine.beam_size, engine.positions) == (3, 128)
    assert engine.parameters == sum(
        leaf.size for leaf in jax.tree.leaves(engine.translator.params)
    )
    with monkeypatch.context() as patch:
        # JAX would keep what each trace of the model leaves.
        patch.setattr(jax, "eval_shape", None)
        assert engine.reloaded().checkpoint == "20"
    with pytest.raises(InputError, match="beam_size must be at least 1"):
        TranslationEngine.load(run, decoding={"beam_size": 0})
    config = json.loads((run / "config.json").read_text())
    config["data"]["max_length"] = 32
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="run now has another data"):
        engine.reloaded()


def with_shortlist(seed: int, length: int = 3):
    """Return the little translator with the lists of random tokens."""
    best = np.random.default_rng(seed).integers(4, 400, (400, length))
    listed = translator()
    listed.shortlist = Shortlist(np.arange(12, dtype=np.int32), best.astype("i4"), "")
    return listed


def test_a_shortlist_compiles_nothing_in_a_request(compiled):
    """Each shape has room for the lists of any sentences, and for those of a reload
    that are as long. Others, or none, are refused.
    """
    runs_read = [with_shortlist(3), other := with_shortlist(5)]
    runs_read += [with_shortlist(3, length=4), translator()]
    read = iter(runs_read)
    engine = TranslationEngine(lambda: next(read), rows=4)
    for _ in itertools.islice(engine.warm(), engine.needed):
        pass
    sources = texts(6)
    compiled.clear()
    found = [search(own, PLAIN, sources) for own in (engine, engine.reloaded())]
    assert not compiled
    expected = [own.translate(sources) for own in (runs_read[0], other)]
    assert [[own[0].text for own in each] for each in found] == expected
    assert expected[0] != expected[1]
    for _ in range(2):
        with pytest.raises(InputError, match="now has another shortlist than"):
            engine.reloaded()
