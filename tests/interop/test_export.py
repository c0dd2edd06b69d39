"""A run that is exported computes the same elsewhere, and appears whole or not at
all.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizer_folders
from interop.test_imported_run import folder, imported, random_params
from sentencepiece import SentencePieceProcessor

import runs
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.files import new_folder
from jaxformer.interop import export, huggingface
from jaxformer.interop.ctranslate2 import tokens_of
from jaxformer.interop.huggingface import families
from jaxformer.interop.huggingface.run import import_run
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.models.config import TransformerConfig
from jaxformer.runs import config as configuration
from jaxformer.search.config import DecodingConfig
from jaxformer.translation.translator import Translator
from round_trips import awkward_lines

FAMILIES = tokenizer_folders.FOLDERS | {
    "Marian of one language": (
        functools.partial(tokenizer_folders.marian, tags=()),
        "marian",
    ),
    "mBART-50": (
        functools.partial(tokenizer_folders.fairseq, name="MBart50"),
        "mbart",
    ),
}
LANGUAGES = {
    "Marian": (None, "fra"),
    "Marian of one language": ("en", "de"),
    "M2M-100": ("en", "de"),
    "NLLB": ("eng_Latn", "deu_Latn"),
    "mBART": ("en_XX", "de_DE"),
    "mBART by JSON": ("en_XX", "de_DE"),
    "mBART-50": ("en_XX", "de_DE"),
    "BART": ("en", "de"),
    "BART by JSON": ("en", "de"),
}
MARIAN = {
    "positions": "sinusoidal_concatenated",
    "norm_epsilon": 1e-5,
    "length_penalty": "average",
}


def test_an_imported_run_goes_back(tmp_path):
    """The command writes the same weights, byte for byte, and a folder that is imported
    as the same run.
    """
    out = tmp_path / "a" / "out"
    line = f"--workdir={imported()}", f"--out={out}", "--format=huggingface"
    outcome = runs.call("export", *line)
    assert (outcome.code, outcome.err) == (0, "")
    record = json.loads(outcome.out)
    assert (record["checkpoint"], record["source_before"]) == (0, ["__en__"])
    name = "model.safetensors"
    assert (out / name).read_bytes() == (folder() / name).read_bytes()
    check_same_run(imported(), out, tmp_path / "again")
    error = runs.call("export", *line).error
    assert error == f"{out} exists already: name a folder that does not"


def test_ctranslate2_ends_the_sources_of_our_own_runs_by_itself(tmp_path):
    """The command names the end to put after a source only of imported runs, as the
    exported settings say.
    """
    for number, run in enumerate((runs.random_run(), imported())):
        out = tmp_path / str(number)
        line = f"--workdir={run}", f"--out={out}", "--format=ctranslate2"
        after = json.loads(runs.call("export", *line).out)["source_after"]
        settings = json.loads((out / "config.json").read_text())
        assert settings["add_source_eos"] == (not number)
        assert after == ["</s>"] * number


def check_same_run(run: Path, exported: Path, again: Path) -> None:
    """Check that an exported folder is imported as the same run, without languages that
    must be named.
    """
    import_run(exported, again)
    first, second = (configuration.load(each / "config.json") for each in (run, again))
    assert (second.model, second.decoding) == (first.model, first.decoding)
    assert second.data.languages == first.data.languages
    first, second = (Vocabularies.load(each / "vocabulary") for each in (run, again))
    assert second.hash == first.hash


@functools.cache
def family_run(name: str) -> Path:
    """Import a folder of a family with a model of random parameters."""
    path = Path(tempfile.mkdtemp(dir=os.environ[runs.FOLDER]))
    write, kind = FAMILIES[name]
    given = path / "given"
    given.mkdir()
    write(given)
    target = read_vocabularies(given, {"model_type": kind}).target
    source_language, target_language = LANGUAGES[name]
    start = target.pad_id if kind == "marian" else target.eos_id
    if name.startswith("mBART") and name != "mBART-50":
        start = target.tag_id(str(target_language))
    family = families.FAMILIES[kind]
    config = TransformerConfig(
        vocabulary_size=target.size,
        d_model=8,
        d_ff=8,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        norm_epsilon=1e-5,
        max_length=32,
        pad_id=target.pad_id,
        bos_id=start,
        **{"position_offset": target.pad_id + 1, **family.options},
    )
    special = {"eos_token_id": target.eos_id, "decoder_start_token_id": start}
    ends = {"forced_eos_token_id": target.eos_id}
    params = random_params(config)
    (table,) = (x["table"] for key, x in params.items() if key.endswith("embedding"))
    table[target.eos_id] *= 2.0 if name == "Marian of one language" else 3.0
    huggingface.write(
        given,
        config,
        params,
        settings={"model_type": kind, **special},
        generation={"bad_words_ids": [[target.pad_id], [9]], **special, **ends},
    )
    import_run(
        given,
        path / "run",
        source_language=source_language,
        target_language=target_language,
    )
    return path / "run"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokenizer_of_each_family_goes_back(tmp_path, name):
    """It is read as the same vocabulary and frame again."""
    run, out = family_run(name), tmp_path / "out"
    translator = Translator.load(run)
    export.write(out, "huggingface", translator, translator.decoding)
    check_same_run(run, out, tmp_path / "again")
    names = tokens_of(translator).target
    assert len(set(names)) == len(names) == translator.model.config.vocabulary_size
    assert names[translator.codec.frame.end] == "</s>"


def test_languages_that_a_run_does_not_know(tmp_path):
    """They are named at its export, and nowhere else."""
    run = runs.copy(family_run("Marian of one language"), tmp_path / "run")
    path = run / "config.json"
    text = path.read_text()
    for side, code in (("source", "en"), ("target", "de")):
        text = text.replace(
            f'"{side}_language": "{code}"', f'"{side}_language": "{side}"'
        )
    path.write_text(text)
    line = f"--workdir={run}", "--from=en", "--to=de"
    outcome = runs.call(
        "export", *line, f"--out={tmp_path}/out", "--format=huggingface"
    )
    assert outcome.code == 0
    options = json.loads((tmp_path / "out" / "tokenizer_config.json").read_bytes())
    assert (options["source_lang"], options["target_lang"]) == ("en", "de")
    error = runs.call("translate", line[0], "--to=de", stdin=b"a\n").error
    assert "translates only into target, not into 'de': leave it out, or take" in error


def marian(vocabulary: Vocabulary | None = None, **changes) -> Translator:
    """Return a translator that computes what a Marian model does."""
    vocabulary = vocabulary or runs.vocabulary()
    given = runs.translator(vocabulary_size=vocabulary.size, **MARIAN, **changes)
    return Translator(
        given.model.config,
        given.params,
        Vocabularies(vocabulary, vocabulary),
        given.decoding,
        tag="fr" if vocabulary.languages else None,
        source_language="en",
        target_language="fr",
    )


@pytest.mark.parametrize("tags", [(), ("de", "fr")])
def test_a_run_of_ours_becomes_a_marian_model(tmp_path, tags):
    """With a tag of the target language as Marian's ``>>fr<<``; it finds the same
    tokens.
    """
    texts = runs.sentences(6, longest=12)
    vocabulary = Vocabulary.train(texts * 20, 90, tags=tags)
    given = marian(vocabulary, max_target_length=20)
    lost = export.write(tmp_path / "out", "huggingface", given, given.decoding)
    # transformers ranks translations that were cut among the others
    assert lost == ["rank_unfinished=False (there it is True)"]
    import_run(tmp_path / "out", tmp_path / "run", target_language="fr")
    again = Translator.load(tmp_path / "run")
    assert dict(again.vocabularies.source.languages).keys() == {*tags}
    (found, scores), (expected, own) = (
        zip(*((best.tokens, best.score) for (best,) in each.search(texts)), strict=True)
        for each in (again, given)
    )
    tag = {f">>{code}<<": f"<2{code}>" for code in tags}
    found = [[tag.get(token, token) for token in each] for each in found]
    assert found == [*expected]
    assert len(set(map(tuple, found))) > 3
    np.testing.assert_allclose(scores, own, rtol=1e-5)


@pytest.mark.parametrize(
    ("form", "model"),
    [
        ("huggingface", "source.spm"),
        ("huggingface", "target.spm"),
        ("ctranslate2", "vocabulary/shared.model"),
        ("argos", "translate-en_fr/sentencepiece.model"),
    ],
)
@pytest.mark.parametrize("normalization", ["identity", "nfc", "nmt_nfkc"])
def test_each_format_has_the_normalization_of_the_run(
    tmp_path, form, model, normalization
):
    """The exported model of SentencePiece writes text as the run does."""
    lines = awkward_lines()[:400]
    vocabulary = Vocabulary.train(lines, 550, normalization=normalization)
    given = marian(vocabulary, max_target_length=20)
    export.write(tmp_path / "out", form, given, given.decoding)
    (found,) = (tmp_path / "out").rglob(model)
    exported = SentencePieceProcessor(model_file=str(found))
    assert exported.encode(lines) == vocabulary.encode_batch(lines)
    texts = [vocabulary.decode(ids) for ids in vocabulary.encode_batch(lines)]
    assert exported.decode(exported.encode(lines)) == texts
    assert (texts == lines) == (normalization == "identity")


def test_settings_without_a_counterpart_are_named(tmp_path):
    given = marian()
    changes = {
        "length_penalty": "gnmt",
        "coverage_penalty": 0.2,
        "repetition_penalty": 1.3,  # transformers computes another one
    }
    decoding = dataclasses.replace(given.decoding, **changes)
    lost = export.write(tmp_path / "out", "huggingface", given, decoding)
    assert lost == [
        "coverage_penalty=0.2",
        "repetition_penalty=1.3",
        "max_extra_length=20",  # beyond the source, unless it never binds
        "rank_unfinished=False (there it is True)",
        "length_penalty=gnmt (there it is average, 0.6)",
    ]


@pytest.mark.parametrize(
    ("form", "changes", "line"),
    [
        (
            "huggingface",
            {},
            "positions sinusoidal, norm_epsilon 1e-06: for its MarianMTModel, train"
            " with --config.model.positions=sinusoidal_concatenated"
            " --config.model.norm_epsilon=1e-05; or export by --format=ctranslate2",
        ),
        ("huggingface", {**MARIAN, "source_eos": False}, "data.source_eos is False"),
        (
            "huggingface",
            {"precision": "int8"},
            "--precision=float32 or bfloat16 or float16, n",
        ),
        (
            "ctranslate2",
            {"precision": "bfloat16"},
            "not bfloat16: CTranslate2 converts them when",
        ),
        ("argos", {"precision": "bfloat16"}, "of --precision=float32 or int8, not bfl"),
        (
            "stablehlo",
            {"precision": "int8"},
            "of --precision=float32 or bfloat16, not int8$",
        ),
    ],
)
def test_what_another_system_does_not_have_is_refused(tmp_path, form, changes, line):
    given = runs.translator(**changes)
    with (
        pytest.raises(InputError, match=line),
        new_folder(tmp_path / "a" / "out") as out,
    ):
        export.write(out, form, given, given.decoding)
    assert list(tmp_path.iterdir()) == []


def program(translator: Translator, path: Path, **changes) -> DecodingConfig:
    """Export a program; return its search."""
    decoding = dataclasses.replace(translator.decoding, **changes)
    with new_folder(path) as new:
        export.write(new, "stablehlo", translator, decoding)
    return decoding


ALONE = """
import json, runpy, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ("jaxformer", "flax", "sentencepiece"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Finder)
program = runpy.run_path(sys.argv[1] + "/translate.py")["ExportedSearch"]
for folder in sys.argv[1:]:
    from pathlib import Path
    found = program(Path(folder)).translate(json.loads(sys.stdin.readline()))
    print(json.dumps(found))
assert not {"jaxformer", "flax"} & set(sys.modules)
"""


def run_alone(folders: list[Path], ids: list[list[list[int]]]) -> list[list[list[int]]]:
    """Translate the texts of each program in a process that has no jaxformer."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *folders],
        input="".join(f"{json.dumps(each)}\n" for each in ids),
        capture_output=True,
        text=True,
        check=False,
        env=runs.environment(),
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("unchecked")
def test_a_program_translates_without_jaxformer(tmp_path):
    """Greedily and with a beam of 4; sentences of several lengths, one of them
    blank.
    """
    given = runs.translator(min_length=3, no_repeat_ngram=3)
    texts = [*runs.sentences(7, longest=24), ""]
    ids = given.vocabularies.source.encode_batch(texts)
    expected = []
    for beam_size in (1, 4):
        decoding = program(given, tmp_path / str(beam_size), beam_size=beam_size)
        expected.append(given.translate(texts, decoding=decoding))
    found = run_alone([tmp_path / "1", tmp_path / "4"], [ids, ids])
    target = given.vocabularies.target
    found = [[target.decode(each) for each in rows] for rows in found]
    assert found == expected
    assert found[0] != found[1]
    assert len(set(found[1])) > 4


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "name",
    runs.slow_but(["NLLB"], [name for name in FAMILIES if "JSON" not in name]),
)
def test_a_program_of_each_family_finds_the_same(tmp_path, name):
    """With its first input, languages and positions, without banned and unknown
    tokens, and with an end at the limit. It is for CPUs, GPUs and TPUs.
    """
    given, texts = Translator.load(family_run(name)), runs.sentences(8, longest=12)
    settings = {"beam_size": 4, "no_unknown": True, "max_target_length": 12}
    decoding = program(given, tmp_path / "out", **settings)
    content = bytearray((tmp_path / "out" / "search.stablehlo").read_bytes())
    platforms = jax.export.deserialize(content).platforms
    assert platforms == ("cpu", "cuda", "tpu")
    from jaxformer.interop.stablehlo_loader import ExportedSearch

    found = ExportedSearch(tmp_path / "out").translate(
        given.vocabularies.source.encode_batch(texts)
    )
    target = given.vocabularies.target
    found = [target.pieces([*each, target.eos_id]) for each in found]
    expected = [each.tokens for (each,) in given.search(texts, decoding=decoding)]
    assert found == expected
    assert len({*map(tuple, expected)}) > 1
    most = 12 - len(given.codec.frame.target_before)
    assert max(map(len, expected)) == most  # ended there by force


@pytest.mark.usefixtures("unchecked")
def test_a_program_is_for_three_platforms_and_half_precision(tmp_path):
    """Its parameters are as wide as its precision, and sources too long are refused."""
    given = runs.translator()
    program(given, tmp_path / "out", precision="bfloat16", beam_size=1)
    from jaxformer.interop.stablehlo_loader import ExportedSearch

    content = bytearray((tmp_path / "out" / "search.stablehlo").read_bytes())
    exported = jax.export.deserialize(content)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    loaded = ExportedSearch(tmp_path / "out")
    table = loaded.params["target_embedding/table"]
    assert table.dtype == jax.numpy.bfloat16
    assert loaded.translate([[5, 6, 7]])
    with pytest.raises(ValueError, match="has 129 tokens, and at most 128 can be"):
        loaded.translate([[5] * 128])
