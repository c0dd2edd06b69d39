"""A run that is exported translates in transformers and CTranslate2 as it does here."""

# pyright: reportOptionalMemberAccess=false, reportOptionalCall=false

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tokenizer_folders
from parity.imported_models import FAMILIES, WAYS, imported_case, torch, transformers
from safetensors.numpy import load_file

import runs
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.interop import export
from jaxformer.interop.ctranslate2 import target_prefix, tokens_of
from jaxformer.interop.huggingface.run import import_run
from jaxformer.translation.translator import Translator

try:
    import ctranslate2
    import ctranslate2.converters
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
LIMIT = 30


@pytest.fixture(scope="module", params=WAYS)
def case(request):
    return imported_case(request.param)


@pytest.fixture(scope="module")
def exported(case, tmp_path_factory):
    """Return the folder of transformers that the run of a case becomes."""
    out = tmp_path_factory.mktemp("exported")
    translator = case.translator
    assert export.write(out, "huggingface", translator, translator.decoding) == []
    return out


def test_transformers_loads_a_run_that_was_imported(case, exported):
    """With equal bits of weights and logits, and equal tokens of its tokenizer."""
    theirs, model, translator, out = (
        case.tokenizer,
        case.model,
        case.translator,
        exported,
    )
    check_same_tensors(case.folder, out)
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


def check_same_tensors(given, found):
    """Check that two folders have the same tensors of the same bytes."""
    given, found = (
        {
            k: x
            for path in each.glob("*.safetensors")
            for k, x in load_file(path).items()
        }
        for each in (given, found)
    )
    assert given.keys() == found.keys()
    for name, tensor in found.items():
        assert tensor.dtype == given[name].dtype
        assert tensor.tobytes() == given[name].tobytes(), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_and_shards_come_back(case, tmp_path, dtype):
    """The bytes of every tensor, by way of a run."""
    model = type(case.model).from_pretrained(case.folder, dtype=dtype)
    given, out = tmp_path / "given", tmp_path / "out"
    shutil.copytree(case.folder, given)
    (given / "model.safetensors").unlink()
    model.save_pretrained(given, max_shard_size="20KB")
    assert len(list(given.glob("*.safetensors"))) > 2
    source, target = FAMILIES[case.name][-1]
    run = tmp_path / "run"
    import_run(given, run, source_language=source, target_language=target)
    outcome = runs.call(
        "export",
        f"--workdir={run}",
        f"--out={out}",
        "--format=huggingface",
        f"--precision={dtype}",
    )
    assert outcome.code == 0, outcome.err
    check_same_tensors(given, out)


def names_in(folder):
    """Return the tokens of a CTranslate2 model by id, of source and target."""
    files = [
        folder / f"{side}_vocabulary.json"
        for side in (
            ["shared"]
            if (folder / "shared_vocabulary.json").exists()
            else ["source", "target"]
        )
    ]
    names = [json.loads(file.read_bytes()) for file in files]
    return names[0], names[-1]


def translate(folder, translator, **options):
    """Return what CTranslate2 finds for each text: the ids of hypotheses after those
    that are given, with the end, and their scores.
    """
    frame, config = translator.codec.frame, translator.model.config
    source, target = names_in(folder)
    rows = translator.codec.encode_sources(TEXTS)
    if tokens_of(translator).source_eos:
        rows = [row[:-1] for row in rows]
    before = [target[id_] for id_ in target_prefix(translator)]
    never = [
        [config.pad_id],
        *frame.banned,
        *[[frame.start]] * (frame.start != frame.end),
    ]
    if translator.vocabularies.template is not None:
        surplus = range(translator.vocabularies.target.size, config.vocabulary_size)
        never += [[row] for row in surplus]
    # Its own converter leaves padding, the last row, out of Marian models.
    never = [ids for ids in never if max(ids) < len(target)]
    loaded = ctranslate2.Translator(str(folder), intra_threads=1)
    found = loaded.translate_batch(
        [[source[id_] for id_ in row] for row in rows],
        target_prefix=[before] * len(rows) if before else None,
        max_decoding_length=LIMIT,
        suppress_sequences=[[target[id_] for id_ in ids] for ids in never],
        return_scores=True,
        return_end_token=True,
        **options,
    )
    ids = {token: id_ for id_, token in enumerate(target)}
    skip = len(frame.target_before)
    return [
        (
            [[ids[token] for token in tokens[skip:]] for tokens in each.hypotheses],
            each.scores,
        )
        for each in found
    ]


def search(translator, **options):
    """Search by the rules of CTranslate2."""
    same = {"max_target_length": LIMIT, "max_extra_length": LIMIT}
    same |= {"end_at_limit": False, "rank_unfinished": True, "renormalize": True}
    decoding = dataclasses.replace(translator.decoding, **same, **options)
    return translator.search(TEXTS, decoding=decoding, n_best=decoding.beam_size)


def check_greedy(translator, folder):
    """Check that greedy translations are those found here, token for token."""
    folder.mkdir()
    export.write(folder, "ctranslate2", translator, translator.decoding)
    pieces = translator.vocabularies.target.pieces
    found = translate(folder, translator, beam_size=1, min_decoding_length=0)
    ours = [each.tokens for (each,) in search(translator, beam_size=1, min_length=0)]
    assert [pieces(ids) for (ids,), _ in found] == ours
    assert len(set(map(tuple, ours))) > 2


def test_ctranslate2_translates_greedily_as_a_run_that_was_imported(case, tmp_path):
    """Every row of the model has a name of its own, also without a piece."""
    check_greedy(case.translator, tmp_path / "out")


def test_ctranslate2_translates_as_a_run_of_ours(tmp_path):
    """It ends the sources by itself."""
    check_greedy(runs.translator(no_unknown=True), tmp_path / "out")


@pytest.fixture(scope="module")
def converted(case, exported, tmp_path_factory):
    """Return our model for CTranslate2, and what its own converter makes of our folder
    for transformers.
    """
    own, theirs = (tmp_path_factory.mktemp(name) for name in ("own", "theirs"))
    export.write(own, "ctranslate2", case.translator, case.translator.decoding)
    converter = ctranslate2.converters.TransformersConverter(str(exported))
    converter.convert(str(theirs), force=True)
    return own, theirs


@pytest.mark.parametrize(
    ("alpha", "patience", "early_stopping"), [(1.0, LIMIT, "never"), (0.6, 1, "full")]
)
def test_ctranslate2_finds_the_same_beams(
    case, converted, alpha, patience, early_stopping
):
    """All four hypotheses of a beam of 4 with their scores, cut ones too, by our export
    and by its own converter of our folder for transformers.

    No translation is empty: after a prefix it ends at once only if that is the best.
    """
    least = len(case.translator.codec.frame.target_before) + 1
    expected = search(
        case.translator,
        beam_size=4,
        alpha=alpha,
        early_stopping=early_stopping,
        min_length=least + 1,
    )
    pieces = case.translator.vocabularies.target.pieces
    for folder in converted:
        found = translate(
            folder,
            case.translator,
            beam_size=4,
            num_hypotheses=4,
            patience=patience,
            length_penalty=alpha,
            min_decoding_length=least,
        )
        for (ids, scores), ours in zip(found, expected, strict=True):
            assert [pieces(each) for each in ids] == [each.tokens for each in ours]
            np.testing.assert_allclose(
                scores, [each.score for each in ours], rtol=1e-5, atol=1e-5
            )
    ended = [each for ours in expected for each in ours if each.finished]
    assert len(ended) > 15
    assert len({len(each.tokens) for each in ended}) > 1
