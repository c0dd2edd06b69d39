"""A run that is exported translates in transformers and CTranslate2 as it does here."""

# pyright: reportOptionalMemberAccess=false, reportOptionalCall=false

import dataclasses

import numpy as np
import pytest
import tokenizer_folders
from parity.test_imported_runs import FAMILIES, make, torch, transformers
from safetensors.numpy import load_file

import runs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.interop import export
from jaxformer.interop.ctranslate2 import tokens_of
from jaxformer.interop.huggingface.run import import_run
from jaxformer.translation.translator import Translator

try:
    import ctranslate2
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    ctranslate2 = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        None in (transformers, ctranslate2), reason="needs the extra `parity`"
    ),
    pytest.mark.filterwarnings("ignore:.*sacremoses"),
]
TEXTS = [text for text in tokenizer_folders.sentences() if len(text) < 60][:16]


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """Return a name, tokenizer and model of transformers, and the imported run."""
    path = tmp_path_factory.mktemp("case")
    theirs, model = make(path / "folder", request.param)
    source, target = FAMILIES[request.param][-1]
    run = path / "run"
    import_run(path / "folder", run, source_language=source, target_language=target)
    return request.param, theirs, model, Translator.load(run), path


def test_transformers_loads_a_run_that_was_imported(case, tmp_path):
    """With equal bits of weights and logits, and equal tokens of its tokenizer."""
    _, theirs, model, translator, path = case
    out = tmp_path / "out"
    assert export.write(out, "huggingface", translator, translator.decoding) == []
    given, found = (
        load_file(each / "model.safetensors") for each in (path / "folder", out)
    )
    for key, tensor in found.items():
        np.testing.assert_array_equal(tensor, given[key], strict=True)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    assert type(loaded) is type(model)
    rows = translator.codec.encode_sources(TEXTS[:4])
    for row in rows:
        ids = {
            "input_ids": torch.tensor([row]),
            "decoder_input_ids": torch.tensor([row]),
        }
        with torch.no_grad():
            assert torch.equal(model(**ids).logits, loaded(**ids).logits)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert type(tokenizer) is type(theirs)
    assert tokenizer(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    assert loaded.generation_config.num_beams == 4
    assert loaded.generation_config.length_penalty == 0.8


def test_transformers_generates_what_a_run_of_ours_does(tmp_path):
    """Text in, the same text out, by the folder alone."""
    vocabulary = runs.vocabulary()
    changes = {"positions": "sinusoidal_concatenated", "norm_epsilon": 1e-5}
    made = runs.translator(**changes, length_penalty="average", max_target_length=24)
    given = Translator(
        made.model.config,
        made.params,
        Vocabularies(vocabulary, vocabulary),
        dataclasses.replace(made.decoding, max_extra_length=100),
        source_language="en",
        target_language="de",
    )
    out = tmp_path / "out"
    export.write(out, "huggingface", given, given.decoding)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()
    assert model.generation_config.num_beams == 4
    texts = runs.sentences(12, longest=24)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    found = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    # Unknown tokens have no text there.
    expected = [each.replace("⁇", " ").split() for each in given.translate(texts)]
    assert [each.split() for each in found] == expected
    assert len(set(map(tuple, expected))) > 6


def translate(folder, translator):
    """Return the tokens that CTranslate2 finds greedily."""
    frame, tokens = translator.codec.frame, tokens_of(translator)
    rows = translator.codec.encode_sources(TEXTS)
    if tokens.source_eos:
        rows = [row[:-1] for row in rows]
    before = [tokens.target[id_] for id_ in frame.target_before]
    never = [[translator.model.config.pad_id], *map(list, frame.banned)]
    never += [[frame.start]] * (frame.start != frame.end)
    found = ctranslate2.Translator(str(folder), intra_threads=1).translate_batch(
        [[tokens.source[id_] for id_ in row] for row in rows],
        target_prefix=[before] * len(rows) if before else None,
        beam_size=1,
        min_decoding_length=0,
        max_decoding_length=30,
        suppress_sequences=[[tokens.target[id_] for id_ in ids] for ids in never],
    )
    ids = {token: id_ for id_, token in enumerate(tokens.target)}
    pieces = translator.vocabularies.target.pieces
    found = [each.hypotheses[0][len(before) :] for each in found]
    return [pieces([ids[token] for token in each]) for each in found]


def check_ctranslate2(translator, folder):
    """Check that the first 20 tokens of its translations are those found here."""
    folder.mkdir()
    export.write(folder, "ctranslate2", translator, translator.decoding)
    decoding = dataclasses.replace(
        translator.decoding,
        beam_size=1,
        max_target_length=30,
        min_length=0,
        end_at_limit=False,
    )
    ours = [each for (each,) in translator.search(TEXTS, decoding=decoding)]
    ours = [each.tokens[: -1 if each.finished else None][:20] for each in ours]
    assert [each[:20] for each in translate(folder, translator)] == ours
    assert len(set(map(tuple, ours))) > 2


def test_ctranslate2_translates_as_a_run_that_was_imported(case, tmp_path):
    """Every row of the model has a name of its own, also without a piece."""
    check_ctranslate2(case[3], tmp_path / "out")


def test_ctranslate2_translates_as_a_run_of_ours(tmp_path):
    """It ends the sources by itself."""
    check_ctranslate2(runs.translator(no_unknown=True), tmp_path / "out")
