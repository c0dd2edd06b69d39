"""The search of an imported run is what ``generation_config.json`` says: with the
settings of published models, every token and score is that of transformers.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportOptionalCall=false, reportArgumentType=false

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizer_folders
from interop import folders
from interop.test_imported_settings import UNREAD
from parity.imported_models import FAMILIES, compare, make, torch, transformers

import runs
from jaxformer.data.frame import Frame
from jaxformer.interop.huggingface import generation
from jaxformer.interop.huggingface.run import import_run
from jaxformer.search.config import DecodingConfig
from jaxformer.search.single import truncate
from jaxformer.translation.batch import make_sampling
from jaxformer.translation.translator import Translator

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
    pytest.mark.filterwarnings("ignore:.*sacremoses"),
]

# Of the published models, with shorter limits.
OPUS = {"num_beams": 4, "max_length": 20, "bad_words_ids": "padding"}
OPUS |= {"forced_eos_token_id": 0, "renormalize_logits": True}
SUMMARY = {"num_beams": 4, "min_length": 8, "max_length": 18, "length_penalty": 2.0}
SUMMARY |= {"no_repeat_ngram_size": 3, "early_stopping": True}
SUMMARY |= {"forced_bos_token_id": 0, "forced_eos_token_id": 2}
FIVE = {"num_beams": 5, "max_length": 20, "early_stopping": True}
CASES = {
    "OPUS-MT": ("marian", OPUS),
    "OPUS-MT, 6 beams": ("marian of languages", OPUS | {"num_beams": 6}),
    "nllb-200": ("nllb", {"max_length": 20}),
    "m2m100": ("m2m_100", FIVE),
    "mbart-large-en-ro": ("mbart", FIVE | {"forced_eos_token_id": 2}),
    "mbart-large-50": ("mbart-50", FIVE),
    "bart-large-cnn": ("bart", SUMMARY),
    "bans": (
        "marian",
        {
            "num_beams": 3,
            "max_new_tokens": 16,
            "max_length": 12,
            "min_new_tokens": 2,
            "min_length": 6,
            "bad_words_ids": [[1], [5, 1], [0], [6, 7], [8, 0], [9, 10, 11]],
            "suppress_tokens": [12, 13],
            "no_repeat_ngram_size": 2,
            "forced_eos_token_id": [0],
            "renormalize_logits": True,
            "length_penalty": -0.5,
        },
    ),
    "never": ("nllb", {"num_beams": 4, "max_length": 14, "early_stopping": "never"}),
    "no penalty": ("nllb", {"num_beams": 4, "max_length": 14, "length_penalty": 0.0}),
}

WHOLE = "OPUS-MT", "nllb-200", "bart-large-cnn"


@pytest.mark.parametrize("case", runs.slow_but(["bans"], CASES))
def test_the_search_is_that_of_transformers(tmp_path, case):
    """All hypotheses, of 96 sentences for a model of each kind."""
    name, search = CASES[case]
    if search.get("bad_words_ids") == "padding":
        tokenizer, _ = make(tmp_path / "tokenizer", name)
        search = search | {"bad_words_ids": [[tokenizer.pad_token_id]]}
    theirs, model = make(tmp_path / "folder", name, search)
    source, target = FAMILIES[name][-1]
    run = tmp_path / "run"
    _, ignored = import_run(
        tmp_path / "folder", run, source_language=source, target_language=target
    )
    assert not ignored
    translator = Translator.load(run)
    texts = [text for text in tokenizer_folders.sentences() if len(text) < 50]
    texts = texts[: 96 if case in WHOLE else 48]
    beam_size, alone = translator.decoding.beam_size, case in ("bans", *WHOLE)
    of = translator, theirs, model, name, texts
    lengths = compare(*of, beam_size, alone=alone)
    assert len(lengths) > 2
    if beam_size == 1:  # a beam that the folder does not name
        compare(*of, 4, alone=alone)


@pytest.mark.parametrize(
    "search",
    [
        {},
        {"temperature": 0.7, "top_k": 0},
        {"top_k": 5, "top_p": 0.8, "temperature": 1.4},
        {"top_k": 30, "min_p": 0.1, "epsilon_cutoff": 0.02, "top_p": 0.95},
    ],
)
def test_samples_are_drawn_from_the_distribution_of_transformers(search):
    config = transformers.GenerationConfig(do_sample=True, **search)
    frame = Frame((), (0,), (), 1, 0)
    found = generation.read_decoding({"do_sample": True, **search}, 64, frame)
    assert found.sample
    logits = 2 * np.random.default_rng(0).standard_normal((40, 90), np.float32)
    config.update(**config._get_default_generation_params(), defaults_only=True)
    config._eos_token_tensor = torch.tensor([0])
    model = SimpleNamespace(_merge_criteria_processor_list=lambda own, _: own)
    mixin = transformers.GenerationMixin
    warpers = mixin._get_logits_processor(model, config)
    expected = torch.softmax(warpers(None, torch.tensor(logits)), -1)
    logits = jnp.asarray(logits)
    given = logits - jnp.max(logits, axis=1, keepdims=True)
    distribution = np.exp(truncate(given, make_sampling(found)))
    np.testing.assert_allclose(distribution, expected, atol=1e-6)


def test_every_setting_of_transformers_is_known():
    """Those that are taken change a run: see ``test_imported_settings``."""
    settings = {*vars(transformers.GenerationConfig())}
    settings = {name for name in settings if not name.startswith("_")}
    assert settings <= generation.KNOWN | generation.WITHOUT_EFFECT
    assert DecodingConfig().early_stopping in generation.EARLY_STOPPING.values()


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_transformers_computes_the_same_with_every_field_that_is_not_read(
    tmp_path, family
):
    found = []
    for fields in ({}, UNREAD):
        folder = folders.make_folder(tmp_path / str(len(fields)), family, **fields)
        found.append(folders.compute_logits(folder, family)[0])
    np.testing.assert_array_equal(*found)
