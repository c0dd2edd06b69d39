"""What a folder of Hugging Face says of its tokenizer and its search is taken as by
transformers, or refused.
"""

from __future__ import annotations

import json
import re

import numpy as np
import tokenizer_folders
from interop import folders
from interop.test_imported_run import with_search

import runs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.interop.huggingface.run import import_run


def test_bart_begins_with_its_first_token_where_its_search_says_so(tmp_path):
    """By ``forced_bos_token_id``, also in ``config.json`` of older folders, where it
    has another name too; ``generation_config.json`` goes before.
    """
    given = tmp_path / "folder"
    given.mkdir()
    tokenizer_folders.bart(given)
    rows = max(json.loads((given / "vocab.json").read_bytes()).values()) + 1
    settings = {"vocab_size": rows, "max_position_embeddings": 64}
    table = np.ones((rows, folders.WIDTH), np.float32)
    positions = np.ones((66, folders.WIDTH), np.float32)
    tensors = folders.draw_tensors("bart") | {"model.shared.weight": table}
    del tensors["final_logits_bias"]
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_positions.weight"] = positions
    oldest = {"force_bos_token_to_be_generated": True}
    cases = [
        ({}, None, False),
        ({"forced_bos_token_id": 0}, None, True),
        (oldest, None, True),
        (oldest, {"num_beams": 2}, False),
        ({}, {"forced_bos_token_id": 0}, True),
        ({}, {"forced_bos_token_id": 5}, False),
    ]
    for number, (own, search, forced) in enumerate(cases):
        folders.make_folder(given, "bart", tensors, **settings, **own)
        if search is not None:
            (given / "generation_config.json").write_text(json.dumps(search))
        run = tmp_path / str(number)
        _, ignored = import_run(given, run, source_language="a", target_language="b")
        template = Vocabularies.load(run / "vocabulary").template
        assert template is not None
        assert template.target[:-2] == (("{bos}",) if forced else ()), number
        named = [each.split(" (")[0] for each in ignored]
        assert named == (["forced_bos_token_id=5"] if number == 5 else [])


def test_what_the_tokenizer_and_the_name_of_a_folder_say(tmp_path):
    """The order of NLLB before 2023, a setting that is not taken, and a name with
    characters that data sets give a meaning.
    """
    copy = with_search(tmp_path).rename(tmp_path / "a [en>de] + b")
    options = json.loads((copy / "tokenizer_config.json").read_bytes())
    options |= {"legacy_behaviour": True, "clean_up_tokenization_spaces": True}
    (copy / "tokenizer_config.json").write_text(json.dumps(options))
    languages = {"source_language": "en", "target_language": "de"}
    (tmp_path / "run").mkdir()  # an empty folder serves
    config, ignored = import_run(copy, tmp_path / "run", **languages)
    assert config.data.train == "imported:a__en_de____b"
    named = [each.split("=")[0] for each in ignored]
    assert named == ["do_sample", "clean_up_tokenization_spaces"]
    template = Vocabularies.load(tmp_path / "run" / "vocabulary").template
    assert template is not None
    assert template.source == ("{text}", "{eos}", "{source}")


def write_marian(given, **more):
    """Write a Marian folder of random weights."""
    given.mkdir()
    tokenizer_folders.marian(given, tags=())
    pieces = json.loads((given / "vocab.json").read_bytes())
    tensors = folders.draw_tensors("marian")
    shape = len(pieces), folders.WIDTH
    tensors["model.shared.weight"] = np.random.default_rng(0).normal(size=shape)
    tensors["final_logits_bias"] = np.ones((1, len(pieces)))
    tensors = {name: value.astype(np.float32) for name, value in tensors.items()}
    settings = {"vocab_size": len(pieces), "pad_token_id": pieces["<pad>"], **more}
    settings |= {"eos_token_id": 0, "decoder_start_token_id": pieces["<pad>"]}
    return folders.make_folder(given, "marian", tensors, **settings)


def test_attention_of_an_imported_model(tmp_path):
    """Its page has the tokens of a sentence, and every layer and head."""
    import_run(
        write_marian(tmp_path / "given", max_position_embeddings=64), tmp_path / "run"
    )
    sentence = "The animal didn't cross the street because it was too tired."
    given = f"--workdir={tmp_path / 'run'}", "--target=Das Tier.", "--animate", sentence
    assert runs.call("attention", *given).code == 0
    page = (tmp_path / "run" / "attention" / "attention.html").read_text("utf-8")
    data = json.loads(re.findall('<script id="data".*?>(.*?)</script>', page)[0])
    encoder, decoder, cross = data["kinds"]
    assert "".join(encoder["rows"][:-1]).replace("▁", " ").strip() == sentence
    for kind, layers in ((encoder, 1), (decoder, 2), (cross, 2)):
        shape = layers, folders.HEADS, len(kind["rows"]), len(kind["columns"])
        assert np.shape(kind["weights"]) == shape
        np.testing.assert_allclose(np.sum(kind["weights"], axis=-1), 1, atol=5e-3)
