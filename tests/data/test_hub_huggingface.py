import json

import pytest
from pairs import CODES, refuse, run, texts

from jaxformer.data import hub, load


@pytest.fixture(scope="session")
def hf_cache(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    cache = tmp_path_factory.mktemp("hf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
        datasets.disable_progress_bars()
        yield cache
        datasets.enable_progress_bars()


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory, hf_cache):
    """Files by split, as the library finds them in a folder."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in (("train", 2_500), ("test", 5)):
        lines = [
            json.dumps({"id": n, "translation": dict(zip(CODES, pair, strict=True))})
            for n, pair in enumerate(texts(count))
        ]
        (folder / f"{split}.jsonl").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
    return folder


def test_reading_hugging_face_hides_gpus(hf_folder, monkeypatch):
    """Whatever opens a data set hides the GPUs from a TensorFlow that is there."""
    calls = []
    monkeypatch.setattr(hub, "hide_gpus_from_tensorflow", lambda: calls.append(1))
    list(load(f"hf:{hf_folder}/test", *CODES))
    assert calls


def test_a_folder_of_hugging_face(hf_folder):
    """All records come in their order, in the direction that the languages say."""
    assert list(load(f"hf:{hf_folder}/train", "de", "en")) == texts(2_500)
    assert list(load(f"hf:{hf_folder}/test", "en", "de")) == [
        pair[::-1] for pair in texts(5)
    ]


def test_a_saved_data_set_of_hugging_face(tmp_path, hf_cache):
    """What `save_to_disk` wrote is read, with columns by language, and parquet too."""
    datasets = pytest.importorskip("datasets")
    german, english = zip(*texts(30), strict=True)
    whole = datasets.Dataset.from_dict(
        {"n": list(range(30)), "de": list(german), "en": list(english)}
    )
    datasets.DatasetDict(train=whole, valid=whole.select(range(3))).save_to_disk(
        tmp_path / "dict"
    )
    whole.save_to_disk(tmp_path / "one")
    (tmp_path / "parquet").mkdir()
    whole.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    for name in ("dict/train", "one/train", "parquet/train"):
        assert list(load(f"hf:{tmp_path}/{name}", *CODES)) == texts(30)
    assert list(load(f"hf:{tmp_path}/dict/valid", *CODES)) == texts(3)
    refuse(
        f"hf:{tmp_path}/dict/vali",
        r"no split 'vali': there are train, valid; did you mean valid\?",
    )
    refuse(
        f"hf:{tmp_path}/dict/train",
        r"record 0: no language 'fr': the fields are n, de, en",
        ("de", "fr"),
    )


def test_broken_folders_of_hugging_face(tmp_path, hf_cache, caplog):
    """One line and nothing from the library's own log."""
    (tmp_path / "empty").mkdir()
    refuse(
        f"hf:{tmp_path}/empty/train",
        r"^cannot read hf:.*data files; mend the files in .*/empty",
    )
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.jsonl").write_text('{"de": "a", "en": "b"}\n{"de": \n')
    refuse(
        f"hf:{tmp_path}/bad/train",
        r"^cannot read hf:.*JSON.*; mend the files in .*/bad",
    )
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "train.jsonl").write_text(
        '{"de": "a", "en": "b"}\n{"de": "a", "en": null}\n'
    )
    refuse(f"hf:{tmp_path}/null/train", r"record 1: field 'en' holds NoneType")
    assert not caplog.records


def test_a_name_that_cannot_be_fetched(hf_cache, tmp_path):
    """Without a network the error says what to do."""
    code = (
        "from jaxformer.data import load; from jaxformer.errors import InputError\n"
        "try: list(load('hf:nobody/nothing#de-en/train', 'de', 'en'))\n"
        "except InputError as error: print(error)"
    )
    found = run(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert found.stdout.startswith(
        "cannot read hf:nobody/nothing#de-en/train: there is no folder nobody/nothing"
        " here, and the hub says: Couldn't reach 'nobody/nothing'"
    )
    assert found.stdout.endswith(
        "check the name and the network, or give a local folder\n"
    )
    assert found.stderr == ""


@pytest.mark.parametrize("folder", ["./nope", "{0}/nope", "~/nope"])
def test_a_folder_that_is_not_there(tmp_path, monkeypatch, folder):
    """What can only be a folder is not looked for on the hub."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = folder.format(tmp_path)
    refuse(f"hf:{folder}/train", f"^cannot read hf:{folder}/train: no folder {folder}$")


@pytest.mark.parametrize(
    ("rest", "parts"),
    [
        ("wmt/wmt14#de-en/train", ("wmt/wmt14", "de-en", "train")),
        ("opus_books#de-en/train", ("opus_books", "de-en", "train")),
        ("/data/corpus/test", ("/data/corpus", None, "test")),
    ],
)
def test_the_parts_of_a_name_of_hugging_face(rest, parts):
    assert hub.split_hf(rest) == parts


@pytest.mark.parametrize(
    "name", ["hf:corpus", "hf:corpus/", "hf:/train", "hf:#de-en/train"]
)
def test_hugging_face_needs_a_split(name):
    refuse(name, r"must end with a split: hf:NAME/SPLIT")
