"""What is published where: the parallel corpora and news test sets of the WMT, 2013 to
2019.

``wmt14.en-de`` is the task of 2014 from English to German. Training archives with their
sizes and SHA-256 are those that TensorFlow Datasets 4.9.10 fetches
(``url_checksums/wmt13_translate.txt`` to ``wmt19_translate.txt``), the test sets with
their MD5 those on which sacreBLEU 2.6.0 scores (``sacrebleu.dataset.DATASETS``): text
and scores compare with both. Of 2014 it is the full test set of 3,003 segments,
sacreBLEU's ``wmt14/full``.

Why not the library mtdata: its index (0.5.1) has News Commentary from version 13 on and
lacks the French-English 10^9 corpus and the United Nations corpus of 2013, so that no
task of 2013 to 2017 can be put together from it; it holds no checksums; and what it
fetches begins anew when broken off, without a certificate where that does not hold.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from jaxformer.data.archives import Files, Form, Memory, Table
from jaxformer.data.download import RemoteFile
from jaxformer.errors import InputError


@dataclass(frozen=True)
class Release:
    """A corpus as it was published.

    Attributes:
        name: what its files are called; without a dot, so that ``train.*.en`` and
            ``train.*.de`` sort alike.
        file: the archive.
        form: how the archive holds the text.
    """

    name: str
    file: RemoteFile
    form: Form


@dataclass(frozen=True)
class Task:
    """A direction of translation and the corpora of each split."""

    name: str
    source_language: str
    target_language: str
    train: tuple[Release, ...]
    valid: tuple[Release, ...]
    test: tuple[Release, ...]

    @property
    def splits(self) -> dict[str, tuple[Release, ...]]:
        """The corpora by split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}


def task_names() -> list[str]:
    """Name all tasks: ``wmt13.en-de`` and its kin."""
    return list(_names())


def find_task(name: str) -> Task:
    """Find a task by its name.

    Raises:
        InputError: there is none, with the nearest names that are.
    """
    names = _names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"there are {', '.join(names)}"
        )
        raise InputError(f"no published task {name!r}: {hint}")
    year, source, target = names[name]
    train = tuple(_train(year, source if target == "en" else target))
    return Task(
        name,
        source,
        target,
        train,
        (_news(year - 1, source, target),),
        (_news(year, source, target),),
    )


def _names() -> dict[str, tuple[int, str, str]]:
    """Map each name to its year and its direction."""
    return {
        f"wmt{year}.{source}-{target}": (year, source, target)
        for year, other in _TASKS
        for source, target in (("en", other), (other, "en"))
    }


def _statmt(path: str, size: int | None, checksum: str, name: str = "") -> RemoteFile:
    """Describe a file on a host of statmt.org, which answers on both protocols."""
    return RemoteFile(
        name or path.rsplit("/", 1)[1],
        (f"https://{path}", f"http://{path}"),
        checksum,
        size,
    )


def _amazon(path: str, size: int, checksum: str) -> RemoteFile:
    return RemoteFile(path.rsplit("/", 1)[1], (f"https://{path}",), checksum, size)


# fmt: off
_COMMON_CRAWL = _statmt("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz", 918_311_367,
    "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5")
_EUROPARL_7 = _statmt("www.statmt.org/wmt13/training-parallel-europarl-v7.tgz", 657_632_379,
    "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7")
_EUROPARL_9 = _statmt("www.statmt.org/europarl/v9/training/europarl-v9.de-en.tsv.gz", 204_454_328,
    "sha256:c2aef75d81bf06b22e4a9237319c1d53ba9668a13cb155c6b1361182cd3abc84")
_GIGA_FREN = _statmt("www.statmt.org/wmt10/training-giga-fren.tar", 2_595_102_720,
    "sha256:3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a")
_PARACRAWL_1 = _amazon("s3.amazonaws.com/web-language-models/paracrawl/release1/"
    "paracrawl-release1.en-de.zipporah0-dedup-clean.tgz", 1_918_708_277,
    "sha256:435ce65e26ed2d44dd0d627f0b558d25bfe31d9ccb35caef050938745c23ea8c")
_PARACRAWL_3 = _amazon(
    "s3.amazonaws.com/web-language-models/paracrawl/release3/en-de.bicleaner07.tmx.gz", 9_091_373_722,
    "sha256:fbeef288e4f1d294534be3afbf43469cf59938553436108d717873c1c50d34c7")
_RAPID_2016 = _statmt("data.statmt.org/wmt18/translation-task/rapid2016.tgz", 161_050_516,
    "sha256:41557dd5d8f0ed3a6d98bce3b798b1a9d3b68361eb99d902329ddbb943a6b55a")
_RAPID_2019 = _amazon("s3-eu-west-1.amazonaws.com/tilde-model/rapid2019.de-en.zip", 111_888_392,
    "sha256:ed5a10e57092715020334b918f6e114e5b6c7206bee3e956f2a1e2937c59c2e7")
_UNITED_NATIONS = _statmt("www.statmt.org/wmt13/training-parallel-un.tgz", 2_365_634_246,
    "sha256:29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47")
_WIKI_TITLES_1 = _statmt("data.statmt.org/wikititles/v1/wikititles-v1.de-en.tsv.gz", 17_919_359,
    "sha256:24b0222ee87b6b8b3142c92f1b6f3c49374503fb066c46f190f00bf717a67102")

# News Commentary by version: the archive and the folder of its members.
_NEWS_COMMENTARY = {
    8: (_statmt("www.statmt.org/wmt13/training-parallel-nc-v8.tgz", 92_821_866,
        "sha256:df5801d6776190ea48e7241ee97100d81e2f89d7c352c9cd11432c8855c73c28"), "training/"),
    9: (_statmt("www.statmt.org/wmt14/training-parallel-nc-v9.tgz", 80_418_416,
        "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485"), "training/"),
    10: (_statmt("www.statmt.org/wmt15/training-parallel-nc-v10.tgz", 125_136_590,
        "sha256:11e053e7ea29e87e69a1ad05e61cb559820947ecec144ea8c1d6cf05017c9602"), ""),
    11: (_statmt("data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz", 75_178_032,
        "sha256:cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a"), "training-parallel-nc-v11/"),
    12: (_statmt("data.statmt.org/wmt17/translation-task/training-parallel-nc-v12.tgz", 168_591_139,
        "sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2"), "training/"),
    13: (_statmt("data.statmt.org/wmt18/translation-task/training-parallel-nc-v13.tgz", 113_157_482,
        "sha256:17992b7e919cfb754c60f4e754148bc23b80706ad0ed7b34150831a554b40c91"), "training-parallel-nc-v13/"),
}
_NEWS_COMMENTARY_14 = _statmt(
    "data.statmt.org/news-commentary/v14/training/news-commentary-v14.de-en.tsv.gz", 39_390_551,
    "sha256:8aaa98a77d38bd39dcbdbcb775f3b6c633700e4c10fd915cf3dc6b9bfd0f2dca")

# The news test sets by year: the archive (all are called test.tgz there) and what its
# members begin with.
_NEWS = {
    12: ("statmt.org/wmt12/test.tgz", "608232d34ebc4ba2ff70fead45674e47", "test"),
    13: ("statmt.org/wmt13/test.tgz", "48eca5d02f637af44e85186847141f67", "test"),
    14: ("statmt.org/wmt14/test-full.tgz", "a8cd784e006feb32ac6f3d9ec7eb389a", "test-full"),
    15: ("statmt.org/wmt15/test.tgz", "67e3beca15e69fe3d36de149da0a96df", "test"),
    16: ("data.statmt.org/wmt16/translation-task/test.tgz", "3d809cd0c2c86adb2c67034d15c4e446", "test"),
    17: ("data.statmt.org/wmt17/translation-task/test.tgz", "86a1724c276004aa25455ae2a04cef26", "test"),
    18: ("data.statmt.org/wmt18/translation-task/test.tgz", "f996c245ecffea23d0006fa4c34e9064", "test"),
    19: ("data.statmt.org/wmt19/translation-task/test.tgz", "84de7162d158e28403103b01aeefc39a", "sgm"),
}
# fmt: on

# Year and the language beside English; each in both directions.
_TASKS = (
    (13, "de"),
    (14, "de"),
    (14, "fr"),
    (15, "de"),
    (16, "de"),
    (17, "de"),
    (18, "de"),
    (19, "de"),
)


def _train(year: int, other: str) -> list[Release]:
    """List the training corpora of a task, as the workshop gave them out for it."""
    both = (other, "en")

    def sides(pattern: str) -> Files:
        return Files({language: f"{pattern}.{language}" for language in both})

    crawl = Release("commoncrawl", _COMMON_CRAWL, sides(f"commoncrawl.{other}-en"))
    if year == 19:
        return [
            Release("europarl-v9", _EUROPARL_9, Table(both)),
            Release("paracrawl-v3", _PARACRAWL_3, Memory(both)),
            crawl,
            Release("news-commentary-v14", _NEWS_COMMENTARY_14, Table(both)),
            Release("wikititles-v1", _WIKI_TITLES_1, Table(both)),
            Release("rapid-2019", _RAPID_2019, sides("rapid2019.de-en")),
        ]
    version = year - 5
    archive, folder = _NEWS_COMMENTARY[version]
    news = sides(f"{folder}news-commentary-v{version}.{other}-en")
    releases = [
        Release("europarl-v7", _EUROPARL_7, sides(f"training/europarl-v7.{other}-en")),
        crawl,
        Release(f"news-commentary-v{version}", archive, news),
    ]
    if other == "fr":
        giga = Files(
            {language: f"giga-fren.release2.fixed.{language}.gz" for language in both}
        )
        releases.append(Release("un", _UNITED_NATIONS, sides("un/undoc.2000.fr-en")))
        releases.append(Release("giga-fren", _GIGA_FREN, giga))
    if year >= 17:
        releases.append(Release("rapid-2016", _RAPID_2016, sides("rapid2016.de-en")))
    if year == 18:
        releases.append(
            Release(
                "paracrawl-v1",
                _PARACRAWL_1,
                sides("paracrawl-release1.en-de.zipporah0-dedup-clean"),
            )
        )
    return releases


def _news(year: int, source: str, target: str) -> Release:
    """Describe a news test set in the direction in which it is scored."""
    path, md5, folder = _NEWS[year]
    name = f"newstest20{year}"
    if year <= 13:  # one text in many languages, each the source
        members = {
            language: f"{folder}/{name}-src.{language}.sgm"
            for language in (source, target)
        }
    else:
        pair = (
            f"{source}{target}"
            if year > 14
            else f"{source if target == 'en' else target}en"
        )
        members = {
            source: f"{folder}/{name}-{pair}-src.{source}.sgm",
            target: f"{folder}/{name}-{pair}-ref.{target}.sgm",
        }
    return Release(
        name, _statmt(path, None, f"md5:{md5}", f"{name}.tgz"), Files(members)
    )
