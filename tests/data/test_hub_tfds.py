import shutil
from pathlib import Path

import pytest
from pairs import CODES, refuse, run, texts

from jaxformer.data import hub
from jaxformer.data.sources import load


@pytest.fixture(scope="session")
def tfds():
    return pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="session")
def little_corpus(tfds):
    """A builder written with TFDS's own tools, of the form of its translations."""

    class LittleCorpus(tfds.core.GeneratorBasedBuilder):
        code_path = None  # of no package, where TFDS would look for checksums
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [  # noqa: RUF012
            tfds.core.BuilderConfig(name="de-en"),
            tfds.core.BuilderConfig(name="many"),
        ]

        def _info(self):
            features = tfds.features.Translation(languages=CODES)
            if self.builder_config.name == "many":
                several = tfds.features.TranslationVariableLanguages
                features = tfds.features.FeaturesDict(
                    {
                        "talk": tfds.features.Text(),
                        "translations": several(languages=["de", "en", "fr"]),
                    }
                )
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            counts = {"train": 200, "test": 5}
            return {split: self._generate_examples(n) for split, n in counts.items()}

        def _generate_examples(self, count):
            for number, (german, english) in enumerate(texts(count)):
                record = {"de": german, "en": english}
                if self.builder_config.name == "many":
                    other = {"en": english} if number % 2 else {"fr": "pomme"}
                    record = {"talk": "t", "translations": {"de": german, **other}}
                yield number, record

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


def test_tfds_in_both_directions(tfds_folder, monkeypatch):
    """All records come, in one order, as text, in the direction of the languages; of
    many languages, the examples with both. Opening hides the GPUs from TensorFlow.
    """
    calls = []
    monkeypatch.setattr(hub, "hide_gpus_from_tensorflow", lambda: calls.append(1))
    forward = list(load("tfds:little_corpus/de-en/train", "de", "en"))
    backward = list(load("tfds:little_corpus/de-en/train", "en", "de"))
    assert sorted(forward) == sorted(texts(200))
    assert backward == [pair[::-1] for pair in forward]
    first = load("tfds:little_corpus/de-en:1.0.0/train[:10]", "de", "en")
    assert list(first) == forward[:10]
    for codes in (("de", "en"), ("deu_Latn", "en_XX")):
        many = sorted(load("tfds:little_corpus/many/train", *codes))
        assert many == sorted(texts(200)[1::2])
    assert calls
    message = "record 0: no language 'fr': the fields are de, en"
    refuse("tfds:little_corpus/de-en/train", message, ("de", "fr"))


def test_tfds_is_read_without_tensorflow(tfds_folder):
    code = (
        "import sys; from jaxformer.data.sources import load; print(sum(1 for _ in"
        " load('tfds:little_corpus/de-en/train', 'de', 'en')), 'tensorflow' in"
        " sys.modules)"
    )
    assert run(code, TFDS_DATA_DIR=str(tfds_folder)).stdout.split() == ["200", "False"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("little_corpus/de-en/tran", r"Unknown split 'tran'.*did you mean train\?"),
        ("little_corpus/de-en", "with a split: try tfds:little_corpus/de-en/train"),
        ("little_corpus/en-de/train", r"no config 'en-de': .* mean de-en\?.*direction"),
        ("little_corpus/mani/train", r"it has de-en, many; did you mean many\?"),
        (
            "little_corpse/de-en/train",
            r"nor prepared in .*; did you mean little_corpus\?",
        ),
        ("wmt41_translate/de-en/train", r"; did you mean wmt1\d_translate\?"),
        ("little_corpus", "must end with a split, as in tfds:wmt14_translate/de-en/tr"),
    ],
)
def test_an_unknown_name_in_tfds(tfds_folder, name, message):
    refuse(f"tfds:{name}", message)


@pytest.fixture
def shard(tfds_folder, tmp_path, monkeypatch):
    """The training shard in a copy of the prepared folder."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    place = Path("little_corpus", "de-en", "1.0.0")
    shutil.copytree(tfds_folder / place, tmp_path / place)
    return next((tmp_path / place).glob("*train.array_record*"))


def test_a_missing_or_damaged_shard_is_refused(shard):
    """No record is lost silently."""
    name, content = "tfds:little_corpus/de-en/train", shard.read_bytes()
    changed = bytearray(content)
    changed[110] ^= 0xFF
    for broken in (b"", content[: len(content) // 2], content[:-10], bytes(changed)):
        shard.write_bytes(broken)
        refuse(name, rf"^{name}, record \d+.*prepared again")
    shard.unlink()
    refuse(name, "record 0: .*No such file.*prepared again")


def test_records_that_only_tensorflow_reads_are_refused(shard):
    """The line says where it could be prepared otherwise."""
    for path in shard.parent.glob("*array_record*"):
        path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    info = shard.parent / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    refuse(
        "tfds:little_corpus/de-en/train",
        "prepared as tfrecord, which only TensorFlow reads: set TFDS_DATA_DIR",
    )


def test_a_data_set_is_prepared_when_it_is_first_read(
    little_corpus, tmp_path, monkeypatch, capfd
):
    """Once, and without TensorFlow where nothing is unpacked. Standard output has
    nothing of it.
    """
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = "tfds:little_corpus/de-en/train"
    assert sorted(load(name, *CODES)) == sorted(texts(200))
    assert capfd.readouterr().out == ""
    assert (tmp_path / "little_corpus" / "de-en" / "1.0.0").is_dir()
    monkeypatch.setattr(little_corpus, "download_and_prepare", None)
    assert sorted(load(name, *CODES)) == sorted(texts(200))
