import os
import shlex

import pytest
from pairs import CODES, refuse, run, texts

from jaxformer.cli.main import main
from jaxformer.data import hub, load
from jaxformer.errors import InputError


@pytest.fixture(scope="session")
def tfds():
    return pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="session")
def little_corpus(tfds):
    """A builder written with TFDS's own tools, of the form of its translations."""

    class LittleCorpus(tfds.core.GeneratorBasedBuilder):
        # it stands in no package, where TFDS would look for its checksums
        code_path = None
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [  # noqa: RUF012
            tfds.core.BuilderConfig(name="de-en"),
            tfds.core.BuilderConfig(name="many"),
        ]

        def _info(self):
            if self.builder_config.name == "many":
                languages = tfds.features.TranslationVariableLanguages(
                    languages=["de", "en", "fr"]
                )
                features = tfds.features.FeaturesDict(
                    {"talk": tfds.features.Text(), "translations": languages}
                )
            else:
                features = tfds.features.Translation(languages=CODES)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {
                "train": self._generate_examples(200),
                "test": self._generate_examples(5),
            }

        def _generate_examples(self, count):
            for number, (german, english) in enumerate(texts(count)):
                if self.builder_config.name == "many":
                    other = {"en": english} if number % 2 else {"fr": "pomme"}
                    yield number, {"talk": "t", "translations": {"de": german, **other}}
                else:
                    yield number, {"de": german, "en": english}

    return LittleCorpus


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory, little_corpus):
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("de-en", "many"):
        little_corpus(
            config=config, data_dir=folder, file_format="array_record"
        ).download_and_prepare()
    return folder


@pytest.fixture
def tfds_folder(monkeypatch, prepared_folder):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_folder))
    return prepared_folder


def test_reading_tfds_hides_gpus(tfds_folder, monkeypatch):
    """Whatever opens a data set hides the GPUs from a TensorFlow that is there."""
    calls = []
    monkeypatch.setattr(hub, "hide_gpus_from_tensorflow", lambda: calls.append(1))
    list(load("tfds:little_corpus/de-en/test", *CODES))
    assert calls


def test_tfds_in_both_directions(tfds_folder):
    """All records come, in one order, as text, in the direction that the languages
    say.
    """
    forward = list(load("tfds:little_corpus/de-en/train", "de", "en"))
    backward = list(load("tfds:little_corpus/de-en/train", "en", "de"))
    assert sorted(forward) == sorted(texts(200))
    assert backward == [(english, german) for german, english in forward]
    assert (
        list(load("tfds:little_corpus/de-en:1.0.0/train[:10]", "de", "en"))
        == forward[:10]
    )


def test_tfds_with_many_languages(tfds_folder):
    """Of translations into many languages, the examples with both count."""
    assert sorted(load("tfds:little_corpus/many/train", "en", "de")) == sorted(
        (english, german) for german, english in texts(200)[1::2]
    )


def test_tfds_is_read_without_tensorflow(tfds_folder):
    """In a process of its own, from the files alone, TensorFlow is never imported."""
    code = (
        "import sys; from jaxformer.data import load; print(sum(1 for _ in"
        " load('tfds:little_corpus/de-en/train', 'de', 'en')), 'tensorflow' in"
        " sys.modules)"
    )
    assert run(code, TFDS_DATA_DIR=str(tfds_folder)).stdout.split() == ["200", "False"]


@pytest.mark.parametrize("year", range(13, 20))
def test_the_wmt_data_sets_of_tfds(tfds, tmp_path, monkeypatch, year):
    """The names of WMT 2013 to 2019 are known, and their records become pairs."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = f"tfds:wmt{year}_translate/de-en/train"
    refuse(
        name,
        rf"^tfds:wmt{year}_translate/de-en is not prepared in"
        rf" {tmp_path}.*--dataset=tfds:wmt{year}_",
    )
    with tfds.testing.mock_data(num_examples=3):
        forward, backward = list(load(name, "de", "en")), list(load(name, "en", "de"))
    assert len(forward) == 3
    assert all(pair.source and pair.target for pair in forward)
    assert [pair[::-1] for pair in forward] == backward


def test_the_command_that_prepares(tfds, tmp_path, monkeypatch):
    """The command that the error gives can be run as it stands."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "a folder"))
    with pytest.raises(InputError) as error:
        load("tfds:wmt14_translate/de-en/train", *CODES)
    program, *arguments = shlex.split(str(error.value).rpartition(": ")[2])
    asked = []
    monkeypatch.setattr(
        hub,
        "prepare_tfds",
        lambda name: asked.append((name, os.environ["TFDS_DATA_DIR"])) or tmp_path,
    )
    assert (program, main(arguments)) == ("jaxformer", 0)
    assert asked == [("wmt14_translate/de-en", str(tmp_path / "a folder"))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("little_corpus/de-en/tran", r"Unknown split 'tran'.*did you mean train\?"),
        (
            "little_corpus/de-en",
            r"must end with a split: try tfds:little_corpus/de-en/train",
        ),
        (
            "little_corpus/en-de/train",
            r"no config 'en-de': it has de-en, many; did you mean de-en\?.*direction",
        ),
        (
            "little_corpus/mani/train",
            r"no config 'mani': it has de-en, many; did you mean many\?",
        ),
        (
            "little_corpse/de-en/train",
            r"neither known to TFDS nor prepared in .*; did you mean little_corpus\?",
        ),
        ("wmt41_translate/de-en/train", r"; did you mean wmt1\d_translate\?"),
        (
            "little_corpus",
            r"must end with a split, as in tfds:wmt14_translate/de-en/train",
        ),
        ("../little_corpus/train", r"no data set tfds:\.\./little_corpus"),
    ],
)
def test_an_unknown_name_in_tfds(tfds_folder, name, message):
    refuse(f"tfds:{name}", message)


def test_an_unknown_language_in_tfds(tfds_folder):
    refuse(
        "tfds:little_corpus/de-en/train",
        r"record 0: no language 'fr': the fields are de, en",
        ("de", "fr"),
    )


def copy_without_shard(tfds_folder, tmp_path, monkeypatch):
    """Copy the prepared folder and give the path of its training shard there."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    target = tmp_path / "little_corpus" / "de-en" / "1.0.0"
    target.mkdir(parents=True)
    for path in (tfds_folder / "little_corpus" / "de-en" / "1.0.0").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return next(target.glob("*train.array_record*"))


def test_a_missing_or_damaged_shard_is_refused(tfds_folder, tmp_path, monkeypatch):
    """No record is lost in silence: not of a shard that is gone, cut off or changed."""
    shard = copy_without_shard(tfds_folder, tmp_path, monkeypatch)
    content = shard.read_bytes()
    changed = bytearray(content)
    changed[110] ^= 0xFF
    for broken in (b"", content[: len(content) // 2], content[:-10], bytes(changed)):
        shard.write_bytes(broken)
        refuse(
            "tfds:little_corpus/de-en/train",
            r"^tfds:little_corpus/de-en/train, record \d+.*prepare it again",
        )
    shard.unlink()
    refuse(
        "tfds:little_corpus/de-en/train", r"record 0: .*No such file.*prepare it again"
    )


def test_records_that_only_tensorflow_reads_are_refused(
    tfds_folder, tmp_path, monkeypatch
):
    """TFDS's own default form is answered with the command for ours."""
    shard = copy_without_shard(tfds_folder, tmp_path, monkeypatch)
    for path in shard.parent.glob("*array_record*"):
        path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    info = shard.parent / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    refuse(
        "tfds:little_corpus/de-en/train",
        r"prepared as tfrecord, which only TensorFlow reads.*: jaxformer prepare "
        r"--dataset=tfds:little_corpus/de-en --output=FOLDER",
    )


def test_preparing_through_tfds(little_corpus, tmp_path, monkeypatch):
    """Where nothing must be unpacked, preparing works without TensorFlow, and once."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    folder = hub.prepare_tfds("little_corpus/de-en")
    assert folder == tmp_path / "little_corpus" / "de-en" / "1.0.0"
    shard = next(folder.glob("*train.array_record*"))
    before = shard.stat().st_mtime_ns
    assert hub.prepare_tfds("little_corpus/de-en") == folder
    assert shard.stat().st_mtime_ns == before
    assert sorted(load("tfds:little_corpus/de-en/train", *CODES)) == sorted(texts(200))


def test_preparing_says_what_package_is_missing(little_corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    def unpack(self):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(little_corpus, "download_and_prepare", unpack)
    with pytest.raises(
        InputError,
        match=(
            r"No module named 'tensorflow'\): pip install tensorflow .*, or prepare it"
        ),
    ):
        hub.prepare_tfds("little_corpus/de-en")
