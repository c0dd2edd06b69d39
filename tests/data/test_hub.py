import contextlib
import http.server
import io
import json
import logging
import os
import subprocess
import sys
import tarfile
import threading
import types

import pytest

from jaxformer.data import hub, load
from jaxformer.errors import InputError

CODES = ("de", "en")


def texts(count):
    return [(f"Satz {n} über\u2028Äpfel", f"sentence {n}\x85 on apples") for n in range(count)]


def refuse(name, message, languages=CODES):
    with pytest.raises(InputError, match=message) as error:
        list(load(name, *languages))
    assert "\n" not in str(error.value)


def run(code, **environment):
    """Run a program in a process of its own, as variables that packages read at import need it."""
    environment = {**os.environ, "PYTHONWARNINGS": "error", **environment}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found


# TensorFlow.


def test_gpus_are_hidden_from_tensorflow(monkeypatch):
    """Where TensorFlow is loaded it sees no GPU (statement 72)."""
    calls = []
    config = types.SimpleNamespace(set_visible_devices=lambda devices, kind: calls.append((devices, kind)))
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    hub.hide_gpus_from_tensorflow()
    assert calls == [([], "GPU")]


def test_tensorflow_that_came_first_is_reported(monkeypatch):
    """What can no longer be hidden is said (statement 72)."""

    def refuse_to(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    config = types.SimpleNamespace(set_visible_devices=refuse_to)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    with pytest.warns(UserWarning, match="TensorFlow already uses the GPUs"):
        hub.hide_gpus_from_tensorflow()


def test_tensorflow_is_not_imported_to_hide_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    hub.hide_gpus_from_tensorflow()
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("scheme", ["tfds", "hf"])
def test_readers_hide_gpus(monkeypatch, request, scheme):
    """Whatever opens a data set hides the GPUs from a TensorFlow that is there (statement 72)."""
    folder = request.getfixturevalue({"tfds": "tfds_folder", "hf": "hf_folder"}[scheme])
    calls = []
    monkeypatch.setattr(hub, "hide_gpus_from_tensorflow", lambda: calls.append(1))
    list(load({"tfds": "tfds:little_corpus/de-en/test", "hf": f"hf:{folder}/test"}[scheme], *CODES))
    assert calls


def test_importing_the_data_room_imports_no_hub():
    """Neither the package nor its data room loads TensorFlow, TFDS, `datasets` or torch (statement 73)."""
    heavy = "('tensorflow', 'tensorflow_datasets', 'torch', 'datasets', 'sacrebleu', 'pyarrow')"
    code = f"import sys, jaxformer, jaxformer.data.hub; print([name for name in {heavy} if name in sys.modules])"
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("tfds:a/b/train", "tensorflow_datasets", "tfds"),
        ("hf:a/train", "datasets", "hf"),
        ("sacrebleu:wmt14", "sacrebleu", "train"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, name, package, extra):
    for module in (package, f"{package}.dataset", f"{package}.translate"):
        monkeypatch.setitem(sys.modules, module, None)
    refuse(name, rf"needs the package {package}, .*pip install 'jaxformer\[{extra}\]'")


# TFDS.


@pytest.fixture(scope="session")
def tfds():
    return pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="session")
def little_corpus(tfds):
    """A builder written with TFDS's own tools, of the form of its translations."""

    class LittleCorpus(tfds.core.GeneratorBasedBuilder):
        code_path = None  # it stands in no package, where TFDS would look for its checksums
        VERSION = tfds.core.Version("1.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en"), tfds.core.BuilderConfig(name="many")]  # noqa: RUF012

        def _info(self):
            if self.builder_config.name == "many":
                languages = tfds.features.TranslationVariableLanguages(languages=["de", "en", "fr"])
                features = tfds.features.FeaturesDict({"talk": tfds.features.Text(), "translations": languages})
            else:
                features = tfds.features.Translation(languages=CODES)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(200), "test": self._generate_examples(5)}

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
        little_corpus(config=config, data_dir=folder, file_format="array_record").download_and_prepare()
    return folder


@pytest.fixture
def tfds_folder(monkeypatch, prepared_folder):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared_folder))
    return prepared_folder


def test_tfds_in_both_directions(tfds_folder):
    """All records come, in one order, as text, in the direction that the languages say."""
    forward = list(load("tfds:little_corpus/de-en/train", "de", "en"))
    backward = list(load("tfds:little_corpus/de-en/train", "en", "de"))
    assert sorted(forward) == sorted(texts(200))
    assert backward == [(english, german) for german, english in forward]
    assert list(load("tfds:little_corpus/de-en:1.0.0/train[:10]", "de", "en")) == forward[:10]


def test_tfds_with_many_languages(tfds_folder):
    """Of translations into many languages, the examples with both count."""
    assert sorted(load("tfds:little_corpus/many/train", "en", "de")) == sorted(
        (english, german) for german, english in texts(200)[1::2]
    )


def test_tfds_is_read_without_tensorflow(tfds_folder):
    """In a process of its own, from the files alone, TensorFlow is never imported (statement 73)."""
    code = (
        "import sys; from jaxformer.data import load; "
        "print(sum(1 for _ in load('tfds:little_corpus/de-en/train', 'de', 'en')), 'tensorflow' in sys.modules)"
    )
    assert run(code, TFDS_DATA_DIR=str(tfds_folder)).stdout.split() == ["200", "False"]


@pytest.mark.parametrize("year", range(13, 20))
def test_the_wmt_data_sets_of_tfds(tfds, tmp_path, monkeypatch, year):
    """The names of WMT 2013 to 2019 are known, and their records become pairs."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = f"tfds:wmt{year}_translate/de-en/train"
    refuse(name, rf"^tfds:wmt{year}_translate/de-en is not prepared in {tmp_path}.*file_format='array_record'\)\.down")
    with tfds.testing.mock_data(num_examples=3):
        forward, backward = list(load(name, "de", "en")), list(load(name, "en", "de"))
    assert len(forward) == 3
    assert all(pair.source and pair.target for pair in forward)
    assert [pair[::-1] for pair in forward] == backward


def test_the_command_that_prepares_is_python(tfds, tmp_path, monkeypatch):
    """The command that the error gives can be run as it stands."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(InputError) as error:
        load("tfds:wmt14_translate/de-en/train", *CODES)
    command = str(error.value).split('python -c "')[1].removesuffix('"')
    scope, called = {}, []
    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", lambda self: called.append(self))
    exec(command, scope)
    assert called[0].info.full_name == "wmt14_translate/de-en/1.0.0"
    assert called[0].info.file_format.value == "array_record"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("little_corpus/de-en/tran", r"Unknown split 'tran'.*did you mean train\?"),
        ("little_corpus/de-en", r"must end with a split: try tfds:little_corpus/de-en/train"),
        ("little_corpus/en-de/train", r"no config 'en-de': it has de-en, many; did you mean de-en\?.*direction"),
        ("little_corpus/mani/train", r"no config 'mani': it has de-en, many; did you mean many\?"),
        ("little_corpse/de-en/train", r"neither known to TFDS nor prepared in .*; did you mean little_corpus\?"),
        ("wmt41_translate/de-en/train", r"; did you mean wmt1\d_translate\?"),
        ("little_corpus", r"must end with a split, as in tfds:wmt14_translate/de-en/train"),
        ("../little_corpus/train", r"no data set tfds:\.\./little_corpus"),
    ],
)
def test_an_unknown_name_in_tfds(tfds_folder, name, message):
    refuse(f"tfds:{name}", message)


def test_an_unknown_language_in_tfds(tfds_folder):
    refuse("tfds:little_corpus/de-en/train", r"record 0: no language 'fr': the fields are de, en", ("de", "fr"))


def copy_without_shard(tfds_folder, tmp_path, monkeypatch):
    """Copy the prepared folder and give the path of its training shard there."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    target = tmp_path / "little_corpus" / "de-en" / "1.0.0"
    target.mkdir(parents=True)
    for path in (tfds_folder / "little_corpus" / "de-en" / "1.0.0").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return next(target.glob("*train.array_record*"))


def test_a_missing_or_damaged_shard_is_refused(tfds_folder, tmp_path, monkeypatch):
    """No record is lost in silence: not of a shard that is gone, cut off or changed (statement 65)."""
    shard = copy_without_shard(tfds_folder, tmp_path, monkeypatch)
    content = shard.read_bytes()
    changed = bytearray(content)
    changed[110] ^= 0xFF
    for broken in (b"", content[: len(content) // 2], content[:-10], bytes(changed)):
        shard.write_bytes(broken)
        refuse("tfds:little_corpus/de-en/train", r"^tfds:little_corpus/de-en/train, record \d+.*prepare it again")
    shard.unlink()
    refuse("tfds:little_corpus/de-en/train", r"record 0: .*No such file.*prepare it again")


def test_records_that_only_tensorflow_reads_are_refused(tfds_folder, tmp_path, monkeypatch):
    """TFDS's own default form is answered with the command for ours."""
    shard = copy_without_shard(tfds_folder, tmp_path, monkeypatch)
    for path in shard.parent.glob("*array_record*"):
        path.rename(path.with_name(path.name.replace("array_record", "tfrecord")))
    info = shard.parent / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    refuse("tfds:little_corpus/de-en/train", r"prepared as tfrecord, which only TensorFlow reads.*python -c")


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


def test_preparing_says_that_tensorflow_is_missing(tfds, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    def unpack(self):
        raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", unpack)
    with pytest.raises(InputError, match=r"No module named 'tensorflow'\): pip install tensorflow .*, or prepare it"):
        hub.prepare_tfds("wmt14_translate/de-en")


# Hugging Face.


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
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_folder_of_hugging_face(hf_folder):
    """All records come in their order, in the direction that the languages say."""
    assert list(load(f"hf:{hf_folder}/train", "de", "en")) == texts(2_500)
    assert list(load(f"hf:{hf_folder}/test", "en", "de")) == [pair[::-1] for pair in texts(5)]


def test_a_saved_data_set_of_hugging_face(tmp_path, hf_cache):
    """What `save_to_disk` wrote is read, with columns by language, and parquet too."""
    datasets = pytest.importorskip("datasets")
    german, english = zip(*texts(30), strict=True)
    whole = datasets.Dataset.from_dict({"n": list(range(30)), "de": list(german), "en": list(english)})
    datasets.DatasetDict(train=whole, valid=whole.select(range(3))).save_to_disk(tmp_path / "dict")
    whole.save_to_disk(tmp_path / "one")
    (tmp_path / "parquet").mkdir()
    whole.to_parquet(tmp_path / "parquet" / "train-00000-of-00001.parquet")
    for name in ("dict/train", "one/train", "parquet/train"):
        assert list(load(f"hf:{tmp_path}/{name}", *CODES)) == texts(30)
    assert list(load(f"hf:{tmp_path}/dict/valid", *CODES)) == texts(3)
    refuse(f"hf:{tmp_path}/dict/vali", r"no split 'vali': there are train, valid; did you mean valid\?")
    refuse(f"hf:{tmp_path}/dict/train", r"record 0: no language 'fr': the fields are n, de, en", ("de", "fr"))


def test_broken_folders_of_hugging_face(tmp_path, hf_cache, caplog):
    """One line and nothing from the library's own log (statement 65)."""
    (tmp_path / "empty").mkdir()
    refuse(f"hf:{tmp_path}/empty/train", r"^cannot read hf:.*data files; mend the files in .*/empty")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "train.jsonl").write_text('{"de": "a", "en": "b"}\n{"de": \n')
    refuse(f"hf:{tmp_path}/bad/train", r"^cannot read hf:.*JSON.*; mend the files in .*/bad")
    (tmp_path / "null").mkdir()
    (tmp_path / "null" / "train.jsonl").write_text('{"de": "a", "en": "b"}\n{"de": "a", "en": null}\n')
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
    assert found.stdout.startswith("cannot read hf:nobody/nothing#de-en/train: Couldn't reach 'nobody/nothing'")
    assert found.stdout.endswith("check the name and the network, or give a local folder\n")


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


@pytest.mark.parametrize("name", ["hf:corpus", "hf:corpus/", "hf:/train", "hf:#de-en/train"])
def test_hugging_face_needs_a_split(name):
    refuse(name, r"must end with a split: hf:NAME/SPLIT")


# sacreBLEU.


SGM = '<refset setid="s">\n<doc sysid="ref" docid="d" genre="news" origlang="de">\n<p>\n{}</p>\n</doc>\n</refset>\n'


def sgm(lines):
    return SGM.format("".join(f'<seg id="{n}">{line}</seg>\n' for n, line in enumerate(lines, 1))).encode()


def archive(german, english):
    """Pack a test set as WMT published it."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, lines in (("src.de", german), ("ref.en", english)):
            content = sgm(lines)
            entry = tarfile.TarInfo(f"test-full/newstest2014-deen-{name}.sgm")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


@contextlib.contextmanager
def serve(answers):
    """Serve bytes, or a status, by path on a free port of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path, 404)
            self.send_response(answer if isinstance(answer, int) else 200)
            content = b"" if isinstance(answer, int) else answer
            # More than will come: the connection breaks off.
            self.send_header("Content-Length", str(len(content) + 1000 * self.path.startswith("/short")))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def test_set(monkeypatch, tmp_path):
    """Point sacreBLEU's wmt14/full to an address and a folder of ours."""
    pytest.importorskip("sacrebleu")
    from sacrebleu.dataset import DATASETS

    known = DATASETS["wmt14/full"]
    monkeypatch.setattr(known, "_outdir", str(tmp_path / "wmt14/full"))
    monkeypatch.setattr(known, "_rawdir", str(tmp_path / "wmt14/full/raw"))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))

    def point(address, md5=None):
        monkeypatch.setattr(known, "data", [address])
        monkeypatch.setattr(known, "md5", md5 and [md5])

    return point


def test_a_test_set_of_sacrebleu_in_its_folder(tmp_path):
    """A folder that sacreBLEU filled before is read without a network, in both directions."""
    pytest.importorskip("sacrebleu")
    folder = tmp_path / "wmt14" / "full"
    folder.mkdir(parents=True)
    sides = dict(zip(CODES, zip(*texts(4), strict=True), strict=True))
    for pair in ("de-en", "en-de"):
        fields = dict(zip(("src", "ref"), (sides[code] for code in pair.split("-")), strict=True))
        for field in ("src", "ref", "docid", "genre", "origlang"):
            lines = fields.get(field, ["x"] * 4)
            (folder / f"wmt14_full.{pair}.{field}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    code = (
        "from jaxformer.data import load\n"
        "for pair in (('de', 'en'), ('en', 'de')): print(list(map(tuple, load('sacrebleu:wmt14/full', *pair))))"
    )
    found = run(code, SACREBLEU=str(tmp_path))
    assert found.stdout.splitlines() == [str(texts(4)), str([pair[::-1] for pair in texts(4)])]


def test_a_test_set_of_sacrebleu_is_fetched_once(test_set):
    """From the address to pairs; afterwards from the folder."""
    german, english = ["Eins", "zwei &amp; drei"], ["One", "two &amp; three"]
    with serve({"/test-full.tgz": archive(german, english)}) as address:
        test_set(f"{address}/test-full.tgz")
        assert list(load("sacrebleu:wmt14/full", *CODES)) == list(zip(german, english, strict=True))
    assert len(list(load("sacrebleu:wmt14/full", *CODES))) == 2


@pytest.mark.parametrize(
    ("path", "md5", "message"),
    [
        ("/missing.tgz", None, r"HTTP Error 404"),
        ("/broken.tgz", 500 * "0", r"HTTP Error 500"),
        ("/short.tgz", None, r"IncompleteRead"),
        ("/page.tgz", None, r"could not be opened"),
        ("/page.tgz", "0" * 32, r"wrong checksum or certificate"),
    ],
)
def test_a_test_set_that_cannot_be_fetched(test_set, tmp_path, capfd, caplog, path, md5, message):
    """One line with the test set, the address and the cure; nothing from sacreBLEU's own log."""
    with serve({"/broken.tgz": 500, "/short.tgz": b"half", "/page.tgz": b"<html>sorry</html>"}) as address:
        test_set(address + path, md5)
        refuse(
            "sacrebleu:wmt14/full",
            rf"^cannot get sacrebleu:wmt14/full from {address}{path} \(.*{message}.*\): .*remove {tmp_path}/wmt14/full",
        )
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_server_that_is_gone_and_what_it_leaves(test_set, tmp_path):
    """A refused connection, then the cure: with the folder removed, or never filled, the next attempt succeeds."""
    with serve({}) as address:
        pass
    test_set(f"{address}/test-full.tgz")
    level = logging.getLogger("sacrebleu").level
    refuse("sacrebleu:wmt14/full", r"Connection refused")
    assert logging.getLogger("sacrebleu").level == level
    with serve({"/test-full.tgz": archive(["a"], ["b"])}) as address:
        test_set(f"{address}/test-full.tgz")
        assert list(load("sacrebleu:wmt14/full", *CODES)) == [("a", "b")]


def test_a_test_set_with_unequal_sides_is_refused(test_set):
    """No pairing by the shorter file (statement 65)."""
    with serve({"/test-full.tgz": archive(["a", "b", "c"], ["d", "e"])}) as address:
        test_set(f"{address}/test-full.tgz")
        refuse("sacrebleu:wmt14/full", r"\.src has 3 lines and .*\.ref has 2")


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("wmt14/ful", CODES, r"no test set 'wmt14/ful'; did you mean wmt14/full\?"),
        ("newstest", CODES, r"`sacrebleu --list` shows them"),
        ("wmt14", ("de", "sv"), r"does not go from 'de' to 'sv': it has cs-en, en-cs, de-en, en-de"),
        ("multi30k/2016", ("de", "en"), r"does not go from 'de' to 'en': it has en-fr, en-de, en-cs"),
    ],
)
def test_an_unknown_test_set_or_direction(name, languages, message):
    pytest.importorskip("sacrebleu")
    with pytest.raises(InputError, match=message):
        load(f"sacrebleu:{name}", *languages)


def test_waiting_has_an_end(test_set, monkeypatch):
    """A server that accepts and never answers is given up, and the setting of the process comes back."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        test_set(f"http://127.0.0.1:{server.getsockname()[1]}/test-full.tgz")
        monkeypatch.setattr(hub, "_SACREBLEU_SECONDS", 0.2)
        refuse("sacrebleu:wmt14/full", r"timed out")
    assert socket.getdefaulttimeout() is None
