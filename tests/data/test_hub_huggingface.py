import json

import pytest
from pairs import CODES, refuse, run, texts

from jaxformer.data import hub
from jaxformer.data.sources import load


@pytest.fixture(scope="session")
def hf_cache(tmp_path_factory):
    datasets = pytest.importorskip("datasets")
    cache = tmp_path_factory.mktemp("hf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", str(cache))
        datasets.disable_progress_bars()
        yield cache
        datasets.enable_progress_bars()


def test_a_folder_of_hugging_face(tmp_path, hf_cache, monkeypatch):
    """What `save_to_disk` wrote is read, with columns by language, and parquet and
    JSONL by split, in the order of the records and the direction of the languages.
    Opening hides the GPUs from TensorFlow.
    """
    calls = []
    monkeypatch.setattr(hub, "hide_gpus_from_tensorflow", lambda: calls.append(1))
    datasets = pytest.importorskip("datasets")
    german, english = map(list, zip(*texts(30), strict=True))
    whole = datasets.Dataset.from_dict(
        {"n": list(range(30)), "de": german, "en": english}
    )
    splits = datasets.DatasetDict(train=whole, valid=whole.select(range(3)))
    splits.save_to_disk(tmp_path / "dict")
    whole.save_to_disk(tmp_path / "one")
    (tmp_path / "parquet").mkdir()
    whole.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    records = (dict(zip(CODES, pair, strict=True)) for pair in texts(2_500))
    lines = [json.dumps({"id": "x", "translation": one}) + "\n" for one in records]
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "train.jsonl").write_text("".join(lines))
    assert list(load(f"hf:{tmp_path}/json/train", *CODES)) == texts(2_500)
    assert calls
    for name in ("dict/train", "one/train", "parquet/train"):
        assert list(load(f"hf:{tmp_path}/{name}", *CODES)) == texts(30)
    backward = list(load(f"hf:{tmp_path}/one/train", "en", "de"))
    assert backward == [pair[::-1] for pair in texts(30)]
    assert list(load(f"hf:{tmp_path}/dict/valid", *CODES)) == texts(3)
    message = r"no split 'vali': there are train, valid; did you mean valid\?"
    refuse(f"hf:{tmp_path}/dict/vali", message)
    message = "record 0: no language 'fr': the fields are n, de, en"
    refuse(f"hf:{tmp_path}/dict/train", message, ("de", "fr"))
    monkeypatch.setenv("HOME", str(tmp_path))
    refuse("hf:~/no/train", "^cannot read hf:~/no/train: no folder ~/no$")


def test_broken_folders_of_hugging_face(tmp_path, hf_cache, caplog):
    """One line and nothing from the library's own log."""
    good = '{"de": "a", "en": "b"}\n'
    for name, content, message in (
        ("empty", None, "^cannot read hf:.*data files; mend the files in .*/empty"),
        ("bad", '{"de": \n', "^cannot read hf:.*JSON.*; mend the files in .*/bad"),
        ("null", '{"de": "a", "en": null}\n', "record 1: field 'en' holds NoneType"),
    ):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "train.jsonl").write_text(good + content)
        refuse(f"hf:{tmp_path}/{name}/train", message)
    assert not caplog.records


def test_a_name_that_cannot_be_fetched(hf_cache, tmp_path):
    """As without a network."""
    code = (
        "from jaxformer.data.sources import load\n"
        "from jaxformer.errors import InputError\n"
        "try: list(load('hf:nobody/nothing#de-en/train', 'de', 'en'))\n"
        "except InputError as error: print(error)"
    )
    found = run(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    assert found.stdout.startswith(
        "cannot read hf:nobody/nothing#de-en/train: there is no folder nobody/nothing"
        " here, and the hub says: Couldn't reach 'nobody/nothing'"
    )
    assert found.stdout.endswith("the name and the network, or give a local folder\n")
    assert found.stderr == ""


def test_a_name_of_hugging_face_ends_with_a_split():
    for name in ("hf:corpus", "hf:corpus/", "hf:#de-en/train"):
        refuse(name, "must end with a split: hf:NAME/SPLIT")
