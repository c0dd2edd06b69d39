"""Text that the vocabulary does not know is said, whichever side and text it is in."""

import dataclasses
import re

import pytest
from kinds import run_config, write_data
from training.little import little_config

from jaxformer.data.corpus import TrainingText
from jaxformer.data.preparing import prepare
from jaxformer.data.records import Pair
from jaxformer.errors import InputError
from jaxformer.training.introduction import report_unknown
from jaxformer.training.run import open_run, validation_batches

KNOWN = ["a b c d e f g h", "h g f e d c b a"] * 20
# Each of one unknown piece among others.
SCRIPTS = (
    *(("привет", "'п', 'р', 'и'"), ("你好你", "'你', '好'")),
    *(("नमन", "'न', 'म'"), ("HELLO", "'L', 'H', 'E'")),
)


def write(folder, name, source, target):
    paths = [folder / f"{name}.{side}" for side in ("source", "target")]
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return f"text:{paths[0]},{paths[1]}"


def report(folder, text, valid, prepared=False, step=None):
    """Return what is said of these texts with the vocabulary of the known one."""
    known = write(folder, "known", KNOWN, KNOWN)
    names = {f"data.{name}": known for name in ("train", "valid", "test")}
    config = little_config(names, {"data.vocabulary_size": 20})
    run = open_run(config, folder / "run")
    given = dataclasses.replace(config.data, train=write(folder, "new", *text))
    if prepared:
        run.vocabularies.save(folder / "vocabulary")
        prepare(given, folder / "prepared", vocabulary=folder / "vocabulary")
        given = dataclasses.replace(given, train=f"prepared:{folder / 'prepared'}")
    opened = TrainingText.open(given)
    pairs = [Pair(*pair) for pair in zip(*valid, strict=True)]
    run = dataclasses.replace(run, text=opened, valid=pairs)
    if step is not None:
        (run.checkpoints / str(step)).mkdir(parents=True)
    data = opened.load(run.vocabularies, seed=0)
    said: list[str] = []
    report_unknown(run, data, validation_batches(run, data), said.append)
    return said


def texts_with(lines, place):
    """Return training and validation text, one side of which has these lines."""
    texts = [KNOWN, KNOWN, KNOWN, KNOWN]
    texts[place] = [*lines, *KNOWN][: len(KNOWN)]
    return texts[:2], texts[2:]


PLACES = ["train source", "train target", "valid source", "valid target"]
each = pytest.mark.parametrize("place", range(4), ids=PLACES)


@each
def test_a_side_of_another_script_is_refused(tmp_path, place):
    """With its three most frequent characters."""
    word, often = SCRIPTS[place]
    texts = texts_with([word] * len(KNOWN), place)
    text, side = PLACES[place].split()
    line = rf"% of the {side} tokens of data\.{text} are unknown .* often {often}: name"
    with pytest.raises(InputError, match=line):
        report(tmp_path, *texts)


@pytest.mark.parametrize("place", [0, 3])
def test_a_run_that_is_begun_continues(tmp_path, place):
    """Of a run that has saved a step, text of another script is warned of."""
    texts = texts_with(["привет"] * len(KNOWN), place)
    _, *warnings = report(tmp_path, *texts, step=10)
    text, side = PLACES[place].split()
    assert len(warnings) == 1
    assert f"of the {side} tokens of data.{text} are unknown" in warnings[0]


@each
def test_some_unknown_text_is_warned_of(tmp_path, place):
    word, often = SCRIPTS[place]
    share, *warnings = report(tmp_path, *texts_with([word] * 4, place))
    text, side = PLACES[place].split()
    (line,) = warnings
    assert line.startswith("warning: ")
    assert f"the {side} tokens of data.{text} are unknown" in line
    assert f"most often {often};" in line
    ((found, *where),) = re.findall(r"([\d.]+)% of data\.(\w+) \((\w+)\)", share)
    assert where == [text, side]
    assert float(found) > 1.0


def test_a_prepared_folder_has_no_characters(tmp_path):
    texts = texts_with(["привет"] * len(KNOWN), 1)
    line = r"of data\.train are unknown to the voc\w+: .* prepare's --vocabulary"
    with pytest.raises(InputError, match=line):
        report(tmp_path, *texts, prepared=True)


def test_few_unknown_tokens_are_counted_only(tmp_path):
    (line,) = report(tmp_path, *texts_with(["привет"], 3))
    assert re.fullmatch(r"unknown tokens: 0\.[1-9]\d% of data\.valid \(target\)", line)
    assert report(tmp_path, (KNOWN, KNOWN), (KNOWN, KNOWN)) == []


@pytest.mark.parametrize("kind", ["text", "masked", "labelled", "tagged", "documents"])
def test_labels_are_no_text(tmp_path, kind):
    """Of other kinds only the text is looked at, and nothing in it is unknown."""
    run = open_run(run_config(kind, write_data(tmp_path)[kind]), tmp_path / "run")
    data = run.text.load(run.vocabularies, seed=0)
    said: list[str] = []
    report_unknown(run, data, validation_batches(run, data), said.append)
    assert said == []
