"""What a package of Argos Translate cannot have is refused before anything is
written.
"""

from __future__ import annotations

import dataclasses

import pytest
import tokenizer_folders
from interop.test_imported_run import imported

import runs
from jaxformer.data.frame import SOURCE, TARGET, TEXT, Template
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.files import new_folder
from jaxformer.interop import export
from jaxformer.interop.argos_languages import describe_language
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.translation.translator import Translator


@pytest.mark.parametrize(
    ("code", "described"),
    [
        ("de", ("de", "German")),
        ("eng_Latn", ("en", "English")),
        ("de-AT", ("de", "German")),
        ("arb_Arab", ("ar", "Arabic")),
        ("arz_Arab", ("arz_Arab", "arz_Arab")),
        ("zh_CN", ("zh", "Chinese")),
        ("cmn_Hant", ("zt", "Chinese (traditional)")),
        ("pt_BR", ("pb", "Portuguese (Brazil)")),
        ("ns", ("nso", "Northern Sotho")),
        ("backwards", ("backwards", "backwards")),
    ],
)
def test_languages_by_their_codes(code, described):
    assert describe_language(code) == described


def with_template(*source: str, target=(TEXT, "{eos}")) -> Vocabularies:
    """Return the vocabularies of an M2M-100 with other tokens around the text."""
    found = Vocabularies.load(imported() / "vocabulary")
    template = Template(tuple(source), target, start="{eos}")
    return dataclasses.replace(found, template=template)


def with_bytes_in_the_target() -> Vocabularies:
    texts = runs.sentences(40) * 20
    target = Vocabulary.train(texts, 400, byte_fallback=True)
    return Vocabularies(runs.vocabulary(), target)


def by_json(path) -> Vocabularies:
    tokenizer_folders.mbart_json(path)
    return read_vocabularies(path, {"model_type": "mbart"})


ENDS = ("en", "fr")


@pytest.mark.parametrize(
    ("make", "languages", "line"),
    [
        (
            lambda _: with_template(TEXT, "{eos}", SOURCE),
            ENDS,
            r"\[\] before and \['</s>', '__en__'\] after: export it by --format=ctr",
        ),
        (lambda _: with_template(SOURCE, TARGET, TEXT), ENDS, "has .*'__fr__'. before"),
        (
            lambda _: with_template(TEXT, target=(SOURCE, TARGET, TEXT, "{eos}")),
            ENDS,
            "begins a target with at most one token, not .'__en__', '__fr__'",
        ),
        (by_json, ENDS, "tokenizer.json: import the folder without tokenizer.json if"),
        (
            lambda _: with_bytes_in_the_target(),
            ENDS,
            "does not decode the target's '<0x.*: train with data.shared_vocabulary",
        ),
        (
            lambda _: with_template(TEXT),
            ("source", "target"),
            "the run does not: give --from and --to",
        ),
        (
            lambda _: with_template(TEXT),
            ("pt_XX", "por"),
            "two languages, and pt_XX and por are both pt: export it by",
        ),
    ],
)
def test_what_a_package_cannot_have(tmp_path, make, languages, line):
    folder = tmp_path / "folder"
    folder.mkdir()
    vocabularies = make(folder)
    given = runs.translator()
    config = dataclasses.replace(
        given.model.config,
        vocabulary_size=vocabularies.target.size,
        source_vocabulary_size=vocabularies.source.size,
    )
    translator = Translator(
        config,
        given.params,
        vocabularies,
        given.decoding,
        source_language=languages[0],
        target_language=languages[1],
    )
    path = tmp_path / "new" / "a.argosmodel"
    with (
        pytest.raises(InputError, match=line),
        new_folder(path, packed=True) as new,
    ):
        export.write(new, "argos", translator, given.decoding)
    assert [*tmp_path.iterdir()] == [folder]


def test_the_name_of_a_package(tmp_path):
    """It ends as Argos's file dialogs look for it, and is that of a new file."""
    line = ("export", f"--workdir={runs.random_run()}", "--format=argos")
    error = runs.call(*line, f"--out={tmp_path}/ende").error
    assert error == (
        f"--out={tmp_path}/ende must end with .argosmodel for --format=argos: write"
        f" --out={tmp_path}/ende.argosmodel"
    )
    path = tmp_path / "ende.argosmodel"
    path.touch()
    error = runs.call(*line, f"--out={path}").error
    assert error == f"{path} exists already: name a file that does not"
