"""The model of an imported run is tuned with its vocabulary and its languages."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from interop.test_imported_run import folder, imported, trilingual

from jaxformer.cli import config_file
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.interop import huggingface
from jaxformer.runs import config as configuration
from jaxformer.runs.config import RunConfig
from jaxformer.training.run import open_run
from jaxformer.training.train import train
from jaxformer.training.warm_start import load_initial


def fine_tuning(run: Path, *changes: str) -> RunConfig:
    flags = ["data.train=bundled:en-de/valid", "data.max_length=64", *changes]
    flags = [f"--config.{flag}" for flag in flags]
    return configuration.parse(config_file.read(f"finetune:{run}", flags))


def test_fine_tuning_begins_with_model_and_vocabulary_of_the_run(tmp_path):
    """Of its own rows and first input; the same again when it is resumed."""
    run, new = imported(), tmp_path / "new"
    known = configuration.load(run / "config.json")
    with open_run(fine_tuning(run), new).claim():
        pass
    found = open_run(fine_tuning(run), new)
    assert found.config.model == known.model
    assert found.vocabularies == Vocabularies.load(run / "vocabulary")
    params = huggingface.read(folder()).params
    begin = load_initial(
        found.config.training, found.vocabularies.hash, params, optimizer=None
    )
    jax.tree.map(np.testing.assert_array_equal, begin.params, params)


def test_fine_tuning_finds_the_languages_of_the_frame_in_the_data(tmp_path):
    """Each part has the pieces of its own; a data set without them is refused."""
    name = trilingual()
    parts = f"data.train={name} + {name} [fra_Latn>eng_Latn]"
    run = open_run(fine_tuning(imported(), parts), tmp_path / "new")
    store = run.text.load(run.vocabularies, seed=0).store
    tags = run.vocabularies.source.languages
    codes = {id_: code for code, id_ in tags.items()}
    found = [
        (codes[source[0]], codes[target[0]])
        for source, target in zip(store.source, store.target, strict=True)
    ]
    assert found == 2 * [("en", "de")] + 2 * [("fr", "en")]
    for parts in (f"{name} [es>en]", f"{name} [en>es]"):
        with pytest.raises(InputError, match="no language 'es': the fields are eng"):
            train(fine_tuning(imported(), f"data.train={parts}"), tmp_path / "new")
    parts = "data.train=bundled:en-de/valid + synthetic:copy/valid [tlh>de]"
    with pytest.raises(InputError, match="the vocabulary has no language 'tlh'"):
        train(fine_tuning(imported(), parts), tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (["data.vocabulary_size=900"], "data.vocabulary_size is 900 and"),
        (["model.d_ff=32"], "another model"),
        (["training.initial_optimizer=True"], "was imported, without an optimizer"),
    ],
)
def test_fine_tuning_refuses_what_does_not_fit(tmp_path, changes, line):
    with pytest.raises(InputError, match=line):
        train(fine_tuning(imported(), *changes), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_imported_run_is_not_continued():
    with pytest.raises(InputError, match=r"was imported .* --config=finetune:"):
        train(fine_tuning(imported()), imported())
