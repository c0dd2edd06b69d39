"""What the pages show of the commands of a run has the form that these commands print.

Numbers and names aside, each shown line is one that a small run printed, and each
object has the keys of the real one, in their order.
"""

import contextlib
import re
import shutil

import jax
import pytest
from pages import all_blocks

import runs

BLOCKS = {
    (block.page, block.text.split()[0]): block.text
    for block in all_blocks()
    if block.kind in ("text", "json")
}
README = BLOCKS["README.md", "model:"]
NAME = r"(?:bundled:|text:|runs/)[^\s,]+(?:,[^\s,]+\.de)?"
NUMBER = r"(?<![a-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?::\d\d)*"


def mask(line: str) -> str:
    """Return a line without what differs from run to run: sentences, names, numbers and
    widths of columns.
    """
    line = re.sub(r"^(  (?:source|translation)) .*", r"\1", line)
    line = re.sub(NUMBER, "0", re.sub(NAME, "NAME", line))
    return re.sub(r"(?<=\S) +|^ {8,}", " ", line.rstrip(" ."))


def checks(text: str) -> dict[str, str]:
    """Return the expectation of each check; a page may break and shorten lines."""
    found = {}
    for line in re.sub(r"\n {20,}", " ", text).splitlines():
        if match := re.match(r"(?:wrong|look|ok) +(\S+(?: \S+)*?) {2,}", line):
            _, _, expected = line.partition(" | expected: ")
            found[match[1]] = mask(expected.partition(" | ")[0])
    return found


def unseen(text: str) -> list[str]:
    """Return the checks that the doctor could not make."""
    return [
        name
        for names in re.findall(r"^unseen  (.+?): ", text, flags=re.MULTILINE)
        for name in names.split(", ")
    ]


def verdicts(text: str) -> int:
    """Count the checks by the doctor's last line."""
    found = re.search(
        r"^(\d+) wrong, (\d+) to look at, (\d+) ok, (\d+) unseen",
        text,
        flags=re.MULTILINE,
    )
    assert found is not None
    return sum(map(int, found.groups()))


def keys(text: str) -> list[str]:
    """Return the keys of an object in their order."""
    return re.findall(r'"(\w+)": ', text)


def is_part(part: list[str], whole: list[str]) -> bool:
    """Return whether one list is part of the other, in its order."""
    rest = iter(whole)
    return all(item in rest for item in part)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Train a small model on two files by the command line; return what each command
    printed.
    """
    folder = tmp_path_factory.mktemp("shown")
    for part, pairs in (
        ("train", runs.pairs()),
        ("valid", runs.pairs()[:40]),
        ("test", runs.pairs()[40:80]),
    ):
        (folder / f"{part}.en").write_text(
            "".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8"
        )
        (folder / f"{part}.de").write_text(
            "".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8"
        )
    values = {
        "data.vocabulary_size": 400,
        "data.tokens_per_batch": 512,
        "data.num_buckets": 2,
        **{
            f"data.{part}": f"text:{part}.en,{part}.de"
            for part in ("train", "valid", "test")
        },
        "model.d_model": 32,
        "model.d_ff": 64,
        "model.num_heads": 4,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "training.engine": "jit",
        "training.log_every": 10,
        "training.steps": 60,
        "training.warmup_steps": 25,
        "training.evaluate_every": 20,
        "training.checkpoint_every": 20,
        "decoding.max_extra_length": 8,
        "decoding.beam_size": 1,
    }
    changes = [f"--config.{key}={value}" for key, value in values.items()]
    workdir = "--workdir=runs/mine"

    def run(name, *words):
        with (
            contextlib.chdir(folder),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
        ):
            done = runs.call(name, *words)
        assert done.code == 0 or name == "doctor", done.err
        return done.err if name == "train" else done.out.decode()

    found = {
        "train": run(
            "train",
            f"--config={runs.ROOT / 'configs' / 'quickstart.py'}",
            workdir,
            *changes,
        )
    }
    found["evaluate"] = run("evaluate", workdir)
    (hypotheses,) = (folder / "runs" / "mine").glob("hypotheses.*.txt")
    shutil.copy(hypotheses, folder / "greedy.de")
    shutil.copy(folder / "test.de", folder / "beam.de")
    found["score"] = run(
        "score", workdir, "--source=test.en", "--target=test.de", "--summary"
    )
    found["doctor"] = run("doctor", workdir)
    found["compare"] = run(
        "compare",
        "--reference=test.de",
        "greedy.de",
        "beam.de",
        "--resamples=100",
        "--trials=100",
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("train", README[: README.index("{")]),
        ("train", BLOCKS["docs/train.md", "training"]),
        ("compare", BLOCKS["docs/evaluation.md", "500"]),
    ],
    ids=["readme", "train", "compare"],
)
def test_shown_lines_are_printed(command, shown, printed):
    """Each line is one that the command prints."""
    real = {mask(line) for line in printed[command].splitlines()}
    assert [
        line for line in shown.splitlines() if line != "..." and mask(line) not in real
    ] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("evaluate", README[README.index("{") : README.rindex("}")]),
        ("evaluate", BLOCKS["docs/train.md", '{"dataset":']),
        ("score", BLOCKS["docs/evaluation.md", '{"sentences":']),
    ],
    ids=["readme", "train", "score"],
)
def test_shown_objects_are_printed(command, shown, printed):
    """The keys are those of the real object, all of them without an ellipsis."""
    assert is_part(keys(shown), keys(printed[command]))
    assert "..." in shown or keys(shown) == keys(printed[command])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/train.md", "docs/why-is-my-bleu-lower.md"])
def test_shown_findings_are_printed(page, printed):
    """Each check has the name and the expectation that the doctor prints, and the count
    is complete.
    """
    shown = next(
        text
        for (name, word), text in BLOCKS.items()
        if name == page and word in ("wrong", "look")
    )
    real = {**checks(printed["doctor"]), **dict.fromkeys(unseen(printed["doctor"]))}
    said = checks(shown)
    assert (
        len(said)
        == len(re.findall(r"^(?:wrong|look|ok) ", shown, flags=re.MULTILINE))
        > 2
    )
    assert set(said) <= set(real)
    seen = {
        name: (text, real[name])
        for name, text in said.items()
        if real[name] is not None
    }
    assert len(seen) > 2
    assert {
        name: both for name, both in seen.items() if not both[1].startswith(both[0])
    } == {}
    assert verdicts(shown) == verdicts(printed["doctor"])


def test_a_changed_line_is_seen():
    """Words, keys and their order count; numbers, names and sentences do not."""
    assert mask("step 100/600  loss 6.672  lr 3.1e-3  left 1:01") == mask(
        "step 9/60  loss 1.5  lr 1e-4  left 0:01:59"
    )
    assert (
        mask("  source      Two modules.")
        == mask("  source Another.")
        != mask("  translation Two modules.")
    )
    assert (
        mask("finished at step 6: runs/a")
        == mask("finished at step 10: runs/mine")
        != mask("ended at step 6: runs/a")
    )
    assert is_part(["a", "c"], ["a", "b", "c"])
    assert not is_part(["c", "a"], ["a", "b", "c"])
    assert not is_part(["a", "d"], ["a", "b", "c"])
    text = (
        f"ok      one check  fine | expected: x of 5\nlook    two  5 of\n{24 * ' '}6 |"
        " expected: y | cure: z\n"
    )
    assert checks(text) == {"one check": "x of 0", "two": "y"}
    assert unseen(f"{text}unseen  three, the fourth: too few\n") == [
        "three",
        "the fourth",
    ]
    assert verdicts("1 wrong, 2 to look at, 37 ok, 0 unseen; more\n") == 40
