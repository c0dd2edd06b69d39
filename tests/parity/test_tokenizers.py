"""Vocabularies that are read from a folder give the ids and the text of transformers'
tokenizers.

Two kinds of lines are left out by name. Special pieces that a line spells are ids of
them there and text here. And where a folder has only a SentencePiece model,
transformers 5 rebuilds it without the model's normalisation (mBART) or its treatment of
spaces at the ends (mBART-50, NLLB): there lines are compared that the model has
normalised, and text without spaces at its ends.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

import random

import pytest
import sentencepiece
import tokenizer_folders
from tokenizer_folders import awkward_lines

from jaxformer.interop.huggingface.tokenizers import read_vocabularies

try:
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
    pytest.mark.filterwarnings("ignore:.*sacremoses"),
]


def check(vocabulary, theirs, lines, processor=None):
    """Compare the ids of lines, and the text of these and of random ids.

    Args:
        vocabulary: ours.
        theirs: transformers' tokenizer.
        lines: texts.
        processor: of a SentencePiece model that transformers rebuilds. In a few lines
            two segmentations are equally probable but for the rounding of float32, and
            each program takes another.
    """
    expected = theirs(lines, add_special_tokens=False)["input_ids"]
    assert len(expected) == len(lines) == 2000
    found, ties = vocabulary.encode_batch(lines), 0
    for line, own, other in zip(lines, found, expected, strict=True):
        if processor is not None and own != other:
            scores = [score(processor, vocabulary, ids) for ids in (own, other)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-4), line
            ties += 1
        else:
            assert own == other, line
    assert ties <= 5
    draw = random.Random(1)
    known = [id_ for id_ in range(vocabulary.size) if id_ != vocabulary.eos_id]
    drawn = [draw.choices(known, k=draw.randint(1, 20)) for _ in range(500)]
    for ids in expected + drawn:
        text = one_line(theirs.decode(ids, skip_special_tokens=True))
        assert vocabulary.decode(ids) == (text.strip() if processor else text)


def score(processor, vocabulary, ids):
    pieces = vocabulary.pieces(ids)
    return sum(map(processor.get_score, processor.piece_to_id(pieces)))


def one_line(text):
    return text.replace("\n", " ").replace("\r", " ")


@pytest.mark.parametrize("bytes_", [False, True])
@pytest.mark.parametrize("separate", [False, True])
def test_marian(tmp_path, separate, bytes_):
    """Source and target have models of their own, and one table of ids or two."""
    tokenizer_folders.marian(tmp_path, separate=separate, bytes_=bytes_)
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    ours = read_vocabularies(tmp_path, {"model_type": "marian"})
    assert ours.source.eos_id == theirs.eos_token_id
    assert ours.source.pad_id == ours.source.bos_id == theirs.pad_token_id
    lines = awkward_lines()
    options = {"add_special_tokens": False}
    target = theirs(text_target=lines, **options)["input_ids"]
    assert ours.target.encode_batch(lines) == target
    assert ours.source.encode_batch(lines) == theirs(lines, **options)["input_ids"]
    for ids in target:
        text = theirs.decode(ids, skip_special_tokens=True)
        assert ours.target.decode(ids) == one_line(text)


def test_m2m100(tmp_path):
    tokenizer_folders.m2m100(tmp_path)
    module = transformers.models.m2m_100.tokenization_m2m_100
    codes = [f"__{code}__" for code in module.FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    theirs = transformers.M2M100Tokenizer.from_pretrained(
        tmp_path, additional_special_tokens=codes
    )
    ours = read_vocabularies(tmp_path, {"model_type": "m2m_100"}).source
    for language in ("af", "en", "zu"):
        assert ours.tag_id(language) == theirs.get_lang_id(language)
    check(ours, theirs, awkward_lines())


@pytest.mark.parametrize("name", ["MBart", "MBart50", "Nllb"])
def test_fairseq(tmp_path, name):
    """By the SentencePiece model, and by the tokenizer.json that transformers saves."""
    tokenizer_folders.fairseq(tmp_path, name)
    rows = 1201 + {"MBart": 25, "MBart50": 52, "Nllb": 202}[name] + 1
    options = {}
    if name == "Nllb":  # the ids of fairseq, which published folders state
        module = transformers.models.nllb.tokenization_nllb
        names = [*module.FAIRSEQ_LANGUAGE_CODES, "<mask>"]
        options["added_tokens_decoder"] = {
            1201 + place: transformers.AddedToken(token, special=True)
            for place, token in enumerate(names)
        }
    theirs = getattr(transformers, f"{name}Tokenizer").from_pretrained(
        tmp_path, **options
    )
    kind = "m2m_100" if name == "Nllb" else "mbart"
    settings = {"model_type": kind, "vocab_size": rows}
    ours = read_vocabularies(tmp_path, settings).source
    assert ours.size == rows == len(theirs)
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "sentencepiece.bpe.model")
    )
    lines = awkward_lines()
    for _ in range(3):  # what comes together is composed the next time
        lines = [processor.normalize(" ".join(line.split())) for line in lines]
        lines = [line.replace("▁", " ").strip() for line in lines]
    check(ours, theirs, lines, processor)
    theirs.save_pretrained(tmp_path / "saved")
    saved = read_vocabularies(tmp_path / "saved", settings).source
    assert saved.size == rows
    assert dict(saved.languages) == dict(ours.languages)
    for code, id_ in ours.languages.items():
        assert theirs.convert_tokens_to_ids(code) == id_
    check(saved, theirs, awkward_lines())


@pytest.mark.parametrize("as_json", [False, True])
def test_bart(tmp_path, as_json):
    """Truncation and padding of the file are left to the caller."""
    tokenizer_folders.bart(tmp_path, as_json=as_json)
    theirs = transformers.BartTokenizer.from_pretrained(tmp_path)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    ours = read_vocabularies(tmp_path, {"model_type": "bart"}).source
    assert ours.size == len(theirs)
    check(ours, theirs, awkward_lines())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False},
    ],
)
def test_bert(tmp_path, options):
    """Case, accents and Chinese characters as ``tokenizer_config.json`` says, with
    ``vocab.txt`` and with a ``tokenizer.json`` that says otherwise, cuts and pads.
    """
    tokenizer_folders.bert(tmp_path, **options)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    ours = read_vocabularies(tmp_path, {"model_type": "bert"}).source
    check_special(ours, theirs)
    check(ours, theirs, awkward_lines())
    other = transformers.BertTokenizer.from_pretrained(tmp_path, do_lower_case=True)
    other.backend_tokenizer.enable_truncation(4)
    other.backend_tokenizer.enable_padding(length=4)
    other.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines = awkward_lines()[:300]
    ids = read_vocabularies(tmp_path, {"model_type": "bert"}).source.encode_batch(lines)
    assert ids == theirs(lines, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", ["roberta", "gpt2"])
def test_byte_level(tmp_path, name, as_json):
    getattr(tokenizer_folders, name)(tmp_path)
    kind = {"roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer"}[name]
    theirs = getattr(transformers, kind).from_pretrained(tmp_path)
    if as_json:
        theirs.save_pretrained(tmp_path)
    ours = read_vocabularies(tmp_path, {"model_type": name}).source
    check_special(ours, theirs)
    check(ours, theirs, awkward_lines())


@pytest.mark.parametrize("as_json", [False, True])
def test_gpt(tmp_path, as_json):
    """Its only special piece stands for unknown text, the beginning and the end."""
    tokenizer_folders.gpt(tmp_path)
    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(tmp_path)
    if as_json:
        theirs.save_pretrained(tmp_path)
    ours = read_vocabularies(tmp_path, {"model_type": "openai-gpt"}).source
    assert ours.pad_id == ours.size == len(theirs)
    assert ours.unk_id == ours.bos_id == ours.eos_id == theirs.unk_token_id
    lines = awkward_lines()
    expected = theirs(lines, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(lines) == expected
    for ids in [ids for ids in expected if ours.unk_id not in ids]:
        assert ours.decode(ids) == one_line(theirs.decode(ids))


def check_special(ours, theirs):
    """Compare the special ids, the frames of one text and of two, and special pieces in
    a text.
    """
    ends = theirs.cls_token_id, theirs.sep_token_id
    if theirs.cls_token is None:  # GPT-2 has neither padding nor unknown text
        ends = (theirs.eos_token_id,) * 2
        assert ours.pad_id == ours.unk_id == ours.size == len(theirs)
        assert ours.mask_id is None
    else:
        assert ours.pad_id == theirs.pad_token_id
        assert ours.unk_id == theirs.unk_token_id
        assert ours.mask_id == theirs.mask_token_id
    assert (ours.bos_id, ours.eos_id) == ends
    assert ours.size == len(theirs)
    for piece in theirs.all_special_tokens:
        for line in tokenizer_folders.spelled([piece]):
            assert not {*ours.encode(line)} & {*ends, ours.pad_id, ours.mask_id}
