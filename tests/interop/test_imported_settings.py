"""Every setting of a folder changes the run, is named or refused, or changes nothing in
transformers either.
"""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from interop import folders
from interop.test_imported_run import folder, with_search

from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface import generation, run
from jaxformer.interop.huggingface.run import import_run

# Other values of the fields that config.json of published models has.
SIZES = {
    "vocab_size": 20,
    "d_model": 4,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_ffn_dim": 13,
    "decoder_ffn_dim": 13,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 13,
}
MODEL = {
    **SIZES,
    "model_type": "t5",
    "architectures": ["T5Model"],
    "is_encoder_decoder": False,
    "activation_function": "relu6",
    "scale_embedding": "other",
    "dropout": 0.3,
    "attention_dropout": 0.3,
    "activation_dropout": 0.3,
    "pad_token_id": 4,
    "tie_word_embeddings": False,
    "quantization_config": {},
}
OF_MARIAN = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": "21"}
UNREAD = {
    "classif_dropout": 0.3,
    "classifier_dropout": 0.3,
    "encoder_layerdrop": 0.3,
    "decoder_layerdrop": 0.3,
    "add_bias_logits": True,
    "add_final_layer_norm": True,
    "normalize_before": True,
    "normalize_embedding": True,
    "static_position_embeddings": True,
    "extra_pos_embeddings": 5,
    "num_hidden_layers": 1,
    "init_std": 1.0,
    "use_cache": False,
    "gradient_checkpointing": True,
    "output_past": True,
    "save_step": 7,
    "prefix": " ",
    "task_specific_params": {"summarization": {"num_beams": 9}},
    "id2label": {"0": "a", "1": "b"},
    "label2id": {"a": 0, "b": 1},
    "_num_labels": 2,
    "_name_or_path": "other",
    "transformers_version": "3.1",
    "torch_dtype": "float32",
}
"""Fields that neither reads: of training, of pipelines, of old versions of the classes.
``tests/parity`` shows that transformers computes the same with all of them.
"""


@pytest.mark.parametrize("family", folders.FAMILIES)
def test_every_field_of_a_published_model_is_read_or_without_effect(tmp_path, family):
    def outcome(**changes):
        folders.make_folder(tmp_path, family, **changes)
        try:
            return huggingface.read(tmp_path).config
        except InputError as error:
            return str(error)

    usual = outcome()
    fields = MODEL | (OF_MARIAN if family == "marian" else {})
    same = [name for name, other in fields.items() if outcome(**{name: other}) == usual]
    assert not same
    assert outcome(**UNREAD) == usual


SAMPLED = {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1}
SAMPLED |= {"epsilon_cutoff": 0.1}
SEARCH = {
    "max_length": 15,
    "max_new_tokens": 9,
    "min_length": 5,
    "min_new_tokens": 5,
    "num_beams": 2,
    "early_stopping": True,
    "length_penalty": 2.0,
    "no_repeat_ngram_size": 3,
    "bad_words_ids": [[9]],
    "suppress_tokens": [9],
    "renormalize_logits": True,
    "forced_bos_token_id": 7,
    "forced_eos_token_id": None,
    "eos_token_id": 5,
    "decoder_start_token_id": 0,
    "do_sample": False,
    **SAMPLED,
}


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_every_setting_of_a_search_is_taken_or_named(tmp_path, monkeypatch, file):
    """Also one that a later version has; older folders have all in ``config.json``."""
    written: list = []
    monkeypatch.setattr(run, "_write", lambda *given: written.append(given[2:4]))
    copy = shutil.copytree(folder(), tmp_path / "folder")
    search = json.loads((copy / "generation_config.json").read_bytes())
    (copy / "generation_config.json").unlink()
    settings = json.loads((copy / "config.json").read_bytes())

    def outcome(**changes):
        content = search | changes
        if file == "config.json":
            content = settings | content
        (copy / file).write_text(json.dumps(content))
        try:
            languages = {"source_language": "en", "target_language": "de"}
            _, ignored = import_run(copy, tmp_path / "run", **languages)
        except InputError as error:
            return str(error), []
        return repr(written.pop()), [each.partition("=")[0] for each in ignored]

    assert {*SEARCH} == generation.TAKEN
    drawn = {"do_sample": True, "num_beams": 1}
    for name, other in SEARCH.items():
        base = drawn if name in SAMPLED else {}
        assert outcome(**base, **{name: other}) != outcome(**base), name
    others = generation.NOT_TAKEN | generation.TRUNCATIONS
    assert {*outcome(**drawn, **dict.fromkeys(others, 0.5))[1]} - {"do_sample"} == {
        name for name in others if name != "num_beams"
    }
    if file == "generation_config.json":
        usual, named = outcome()
        idle = dict.fromkeys(generation.WITHOUT_EFFECT, 7)
        assert outcome(**idle, _from_model_config=True) == (usual, named)
        assert outcome(of_tomorrow=7) == (usual, [*named, "of_tomorrow"])


def test_settings_of_the_search_that_are_not_taken_are_named(tmp_path):
    """So is a first token that the frame does not force; ids of bad words that would
    leave no translation are not taken, as in transformers.
    """
    search = {
        "repetition_penalty": 1.3,
        "stop_strings": ["."],
        "forced_bos_token_id": [7],
        "forced_eos_token_id": 7,
        "eos_token_id": [2, 5],
        "bad_words_ids": [[1], [2], [3], [7], [7, 3]],
        "suppress_tokens": [8, 2],
        "min_length": 9,
        "min_new_tokens": 6,
        "max_new_tokens": 30,
        "no_repeat_ngram_size": 1,
    }
    config, ignored = import_run(
        with_search(tmp_path, **search),
        tmp_path / "run",
        source_language="en",
        target_language="de",
    )
    assert [each.split(" (")[0] for each in ignored] == [
        "repetition_penalty=1.3",
        "stop_strings=['.']",
        "do_sample=True",
        "no_repeat_ngram_size=1",
        "forced_bos_token_id=[7]",
        "forced_eos_token_id=7",
        "eos_token_id=[2, 5]",
        "suppress_tokens=[8, 2]",
    ]
    assert config.decoding.min_length == 7  # here the end counts
    assert config.decoding.max_target_length == 30
    assert config.decoding.no_repeat_ngram == 0
    template = Vocabularies.load(tmp_path / "run" / "vocabulary").template
    assert template is not None
    assert template.banned == ((3,), (7,), (7, 3), (8,))


def test_a_sampled_folder_is_sampled(tmp_path):
    """By its truncations, as transformers has them; others are named."""
    search = {"num_beams": 1, "top_p": 0.9, "epsilon_cutoff": 0.01, "typical_p": 0.5}
    config, ignored = import_run(
        with_search(tmp_path, **search),
        tmp_path / "run",
        source_language="en",
        target_language="de",
    )
    assert ignored == ["typical_p=0.5 (no such truncation)"]
    found = dataclasses.asdict(config.decoding)
    expected = {"sample": True, "top_k": 50, "top_p": 0.9, "epsilon": 0.01}
    assert {name: found[name] for name in expected} == expected
