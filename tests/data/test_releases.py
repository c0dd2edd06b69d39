import importlib.util
import re
import warnings
from pathlib import Path

import pytest

from jaxformer.data.archives import Files, Memory, Table
from jaxformer.data.releases import find_task, task_names
from jaxformer.errors import InputError

TASKS = [find_task(name) for name in task_names()]
TRAIN = {release.file.name: release.file for task in TASKS for release in task.train}


def test_the_papers_tasks():
    """WMT 2014 with its three corpora for German and two more for French,
    newstest2013 and newstest2014.
    """
    german, french = find_task("wmt14.en-de"), find_task("wmt14.en-fr")
    assert [release.name for release in german.train] == [
        "europarl-v7",
        "commoncrawl",
        "news-commentary-v9",
    ]
    assert [release.name for release in french.train[3:]] == ["un", "giga-fren"]
    for task in (german, french):
        assert [release.name for release in task.valid + task.test] == [
            "newstest2013",
            "newstest2014",
        ]
    assert (german.source_language, german.target_language) == ("en", "de")


def test_every_name_is_a_task_of_its_own():
    assert [task.name for task in TASKS] == task_names()
    assert {"wmt13.en-de", "wmt14.en-de", "wmt14.fr-en", "wmt19.de-en"} <= set(
        task_names()
    )
    for task in TASKS:
        languages = {task.source_language, task.target_language}
        for releases in task.splits.values():
            names = [release.name for release in releases]
            assert len(set(names)) == len(names)
            assert not any("." in name or "/" in name for name in names)
            for release in releases:
                sides = {Files: "members", Table: "columns", Memory: "languages"}[
                    type(release.form)
                ]
                assert set(getattr(release.form, sides)) == languages


def test_one_name_is_one_file():
    """Archives of several tasks can lie in one folder."""
    files = {}
    for task in TASKS:
        for releases in task.splits.values():
            for release in releases:
                assert files.setdefault(release.file.name, release.file) == release.file
                assert re.fullmatch(
                    r"(sha256:[0-9a-f]{64}|md5:[0-9a-f]{32})", release.file.checksum
                )
                assert all(
                    address.startswith(("https://", "http://"))
                    for address in release.file.addresses
                )
                assert release.file.addresses[0].startswith("https://")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wmt14.ende", r"did you mean wmt14\.en-de"),
        ("wmt14", r"did you mean wmt14"),
        ("wmt14.en-cs", r"did you mean .*wmt14\.en-"),
        ("iwslt", r"there are wmt13\.en-de, wmt13\.de-en"),
        ("", r"there are wmt13\.en-de"),
    ],
)
def test_an_unknown_task_names_the_nearest(name, message):
    with pytest.raises(InputError, match=message) as error:
        find_task(name)
    assert "\n" not in str(error.value)


def without_protocol(address):
    return address.removeprefix("https://").removeprefix("http://").removeprefix("www.")


def test_training_archives_are_those_of_tensorflow_datasets():
    """Addresses, sizes and digests as in its records."""
    package = importlib.util.find_spec("tensorflow_datasets")
    if package is None or package.origin is None:
        pytest.skip("tensorflow-datasets is not installed")
    records = {}
    for path in (Path(package.origin).parent / "url_checksums").glob(
        "wmt1*_translate.txt"
    ):
        for line in path.read_text().splitlines():
            address, size, digest, *_ = line.split("\t")
            records[without_protocol(address)] = (int(size), f"sha256:{digest}")
    assert records
    for file in TRAIN.values():
        for address in file.addresses:
            assert records[without_protocol(address)] == (file.size, file.checksum)


def test_training_members_are_those_of_tensorflow_datasets():
    """The same corpora for each task, under the same names in the same archives."""
    pytest.importorskip("tensorflow_datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorflow_datasets.translate import (
            wmt,
            wmt13,
            wmt14,
            wmt15,
            wmt16,
            wmt17,
            wmt18,
            wmt19,
        )
    builders = dict(
        zip(
            range(13, 20),
            (wmt13, wmt14, wmt15, wmt16, wmt17, wmt18, wmt19),
            strict=True,
        )
    )
    for task in TASKS:
        year, other = (
            int(task.name[3:5]),
            (set(task.name[6:].split("-")) - {"en"}).pop(),
        )
        module = builders[year]
        names = getattr(module, f"Wmt{year}Translate")._subsets.fget(None)["train"]
        theirs = {}
        for name in names:
            subset = wmt.DATASET_MAP[name]
            if (
                other in subset.sources
                and subset.target == "en"
                and not subset.get_manual_dl_files(other)
            ):
                theirs[without_protocol(subset.get_url(other)[0])] = set(
                    subset.get_path(other)
                )
        ours = {}
        for release in task.train:
            inside = (
                set(release.form.members.values())
                if isinstance(release.form, Files)
                else {""}
            )
            ours[without_protocol(release.file.addresses[0])] = inside
        assert ours == theirs


def test_test_sets_are_those_that_sacrebleu_scores():
    """Address, digest and members of each direction, so that scores compare."""
    datasets = pytest.importorskip("sacrebleu.dataset").DATASETS
    for task in TASKS:
        pair = f"{task.source_language}-{task.target_language}"
        for release in task.valid + task.test:
            year = release.name.removeprefix("newstest20")
            theirs = datasets["wmt14/full" if year == "14" else f"wmt{year}"]
            assert [without_protocol(address) for address in theirs.data] == [
                without_protocol(release.file.addresses[0])
            ]
            assert [f"md5:{md5}" for md5 in theirs.md5] == [release.file.checksum]
            members = release.form.members
            assert [
                members[task.source_language],
                members[task.target_language],
            ] == theirs.langpairs[pair]
