"""What the pages show of the commands of a run is what these commands print."""

import contextlib
import re
import shutil

import jax
import pytest
from pages import all_blocks
from training.little import LITTLE_RUN

import runs

COMMAND = re.compile(r"^\$ (?:.*\\\n)*.*\n", re.MULTILINE)
BLOCKS = {
    (block.page, text.split()[0]): text
    for block in all_blocks()
    if block.kind in ("text", "console")
    for text in COMMAND.split(block.text)
    if text.strip()
}
NAME = r"(?:bundled:|text:|runs/)[^\s,]+(?:,[^\s,]+\.de)?"
NUMBER = r"(?<![a-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?::\d\d)*"


def mask(line):
    """Return a line without sentences, names, numbers and widths of columns."""
    line = re.sub(r"^(  (?:source|translation)) .*", r"\1", line)
    line = re.sub(NUMBER, "0", re.sub(NAME, "NAME", line))
    return re.sub(r"(?<=\S) +|^ {8,}", " ", line.rstrip(" ."))


def checks(text):
    """Return the expectation of each check; a page may break and shorten lines."""
    found = {}
    for line in re.sub(r"\n {10,}", " ", text).splitlines():
        if match := re.match(r"(?:wrong|look|ok) +(\S+(?: \S+)*?) {2,}", line):
            expected = line.partition(" | expected: ")[2]
            found[match[1]] = mask(expected.partition(" | ")[0])
    return found


def unseen(text):
    """Return the checks that the doctor could not make."""
    lines = re.findall(r"^unseen  (.+?): ", text, flags=re.MULTILINE)
    return [name for names in lines for name in names.split(", ")]


def verdicts(text):
    """Count the checks by the doctor's last line."""
    line = r"^(\d+) wrong, (\d+) to look at, (\d+) ok, (\d+) unseen"
    return sum(map(int, re.search(line, text, flags=re.MULTILINE).groups()))


def keys(text):
    return re.findall(r'(?:"|^)(\w+)(?:": |  )', text, flags=re.MULTILINE)


def is_part(part, whole):
    """Return whether one list is part of the other, in its order."""
    rest = iter(whole)
    return all(item in rest for item in part)


LITTLE = {key: LITTLE_RUN[key] for key in LITTLE_RUN if key.startswith("model.num_")}
LITTLE |= {"model.d_model": 32, "model.d_ff": 64, "training.engine": "jit"}
LITTLE |= {"data.vocabulary_size": 400, "data.tokens_per_batch": 512}
LITTLE |= {"data.num_buckets": 2, "training.steps": 60, "training.log_every": 10}
LITTLE |= {"training.warmup_steps": 25, "training.evaluate_every": 20}
LITTLE |= {"training.checkpoint_every": 20, "decoding.max_extra_length": 8}
LITTLE |= {"decoding.beam_size": 1}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Train a small model by the command line; return what each command printed."""
    folder = tmp_path_factory.mktemp("shown")
    changes = dict(LITTLE)
    parts = {"train": slice(None), "valid": slice(40), "test": slice(40, 80)}
    for part, chosen in parts.items():
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in runs.pairs()[chosen])
            (folder / f"{part}.{language}").write_text(lines, encoding="utf-8")
        changes[f"data.{part}"] = f"text:{part}.en,{part}.de"

    def run(name, *words):
        with (
            contextlib.chdir(folder),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            done = runs.call(name, *words)
        assert done.code == 0 or name == "doctor", done.err
        return done.err if name == "train" else done.out.decode()

    workdir, config = "--workdir=runs/mine", runs.ROOT / "configs" / "quickstart.py"
    words = [f"--config.{key}={value}" for key, value in changes.items()]
    found = {"train": run("train", f"--config={config}", workdir, *words)}
    found["evaluate"] = run("evaluate", workdir, "--format=table")
    (hypotheses,) = (folder / "runs" / "mine").glob("hypotheses.*.txt")
    shutil.copy(hypotheses, folder / "greedy.de")
    shutil.copy(folder / "test.de", folder / "beam.de")
    files = ("--source=test.en", "--target=test.de", "--summary")
    found["score"] = run("score", workdir, *files)
    found["doctor"] = run("doctor", workdir)
    files = ("--reference=test.de", "greedy.de", "beam.de")
    found["compare"] = run("compare", *files, "--resamples=100", "--trials=100")
    return found


LINES = {
    ("train", "train"): BLOCKS["docs/train.md", "training"],
    ("compare", "evaluation"): BLOCKS["docs/evaluation.md", "500"],
}
OBJECTS = {
    ("evaluate", "train"): BLOCKS["docs/train.md", "dataset"],
    ("score", "evaluation"): BLOCKS["docs/evaluation.md", '{"sentences":'],
}


@pytest.mark.slow
def test_shown_lines_and_objects_are_printed(printed):
    """Each line is one that the command prints; the keys are those of the real object,
    all of them without an ellipsis.
    """
    for (command, page), shown in LINES.items():
        real = {mask(line) for line in printed[command].splitlines()}
        lines = set(shown.splitlines()) - {"..."}
        assert [line for line in lines if mask(line) not in real] == [], page
    for (command, page), shown in OBJECTS.items():
        real = keys(printed[command])
        assert is_part(keys(shown), real), page
        assert "..." in shown or keys(shown) == real, page


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/train.md", "docs/why-is-my-bleu-lower.md"])
def test_shown_findings_are_printed(page, printed):
    """Each check has the name and the expectation that the doctor prints, and the count
    is complete.
    """
    blocks = (BLOCKS.get((page, word)) for word in ("ok", "look"))
    shown = next(filter(None, blocks))
    real = {**checks(printed["doctor"]), **dict.fromkeys(unseen(printed["doctor"]))}
    said = checks(shown)
    lines = re.findall(r"^(?:wrong|look|ok) ", shown, flags=re.MULTILINE)
    assert len(said) == len(lines) > 2
    assert set(said) <= set(real)
    seen = {name: text for name, text in said.items() if real[name] is not None}
    assert len(seen) > 2
    assert [
        name for name, text in seen.items() if not real[name].startswith(text)
    ] == []
    assert verdicts(shown) == verdicts(printed["doctor"])
