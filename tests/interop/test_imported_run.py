"""A folder of Hugging Face becomes the directory of a run, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizer_folders

import runs
from jaxformer.checkpoints.parameters import find_parameters
from jaxformer.data import sources
from jaxformer.data.frame import Template
from jaxformer.data.vocabulary import Vocabularies
from jaxformer.errors import InputError
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface.run import import_run
from jaxformer.models.config import TransformerConfig
from jaxformer.models.transformer import Transformer
from jaxformer.runs import config as configuration
from jaxformer.runs.records import fingerprint
from jaxformer.translation.shortlist import Shortlist
from jaxformer.translation.translator import Translator

SURPLUS = 5  # rows of the table without a piece
GENERATION = {
    "num_beams": 3,
    "length_penalty": 0.7,
    "max_length": 20,
    "min_length": 2,
    "no_repeat_ngram_size": 4,
    "forced_eos_token_id": 2,
    "bad_words_ids": [[1], [7], [8, 9]],
    "do_sample": True,
}


def random_params(config: TransformerConfig) -> dict:
    rng, token = np.random.default_rng(0), jax.ShapeDtypeStruct((1, 1), np.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), token, token)

    def draw(path, x):
        noise = 0.3 * rng.standard_normal(x.shape)
        return ((path[-1].key == "scale") + noise).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes["params"])


@runs.made_once
def folder(path: Path) -> None:
    """Write a little M2M-100 without torch."""
    path.mkdir(exist_ok=True)
    tokenizer_folders.m2m100(path)
    pieces = json.loads((path / "vocab.json").read_bytes())
    config = TransformerConfig(
        vocabulary_size=len(pieces) + 100 + SURPLUS,
        d_model=16,
        d_ff=24,
        num_heads=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        norm_order="pre",
        norm_epsilon=1e-5,
        positions="sinusoidal_halves",
        position_offset=2,
        max_length=128,
        pad_id=1,
        bos_id=2,
    )
    huggingface.write(
        path,
        config,
        random_params(config),
        settings={"model_type": "m2m_100", "eos_token_id": 2},
        generation={"decoder_start_token_id": 2, **GENERATION},
    )


@runs.made_once
def imported(path: Path) -> None:
    path.rmdir() if path.exists() else None
    import_run(folder(), path, source_language="en", target_language="de")


def with_search(tmp_path: Path, **search) -> Path:
    """Copy the folder with other settings of the search."""
    copy = shutil.copytree(folder(), tmp_path / "folder")
    path = copy / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | search))
    return copy


def test_a_run_has_the_search_and_the_frame_of_the_folder():
    """Settings that are not taken are named, and parameters are those of the file."""
    run = imported()
    config = configuration.load(run / "config.json")
    expected = {
        "beam_size": 3,
        "alpha": 0.7,
        "length_penalty": "average",
        "max_target_length": 19,  # there the first input counts
        "min_length": 2,
        "no_repeat_ngram": 4,
        "end_at_limit": True,
        "early_stopping": "length",
        "rank_unfinished": True,
        "renormalize": False,
    }
    found = dataclasses.asdict(config.decoding)
    assert {name: found[name] for name in expected} == expected
    assert (config.data.languages, config.data.language_tags) == (("en", "de"), True)
    vocabularies = Vocabularies.load(run / "vocabulary")
    assert vocabularies.template == Template(
        ("{source}", "{text}", "{eos}"),
        ("{target}", "{text}", "{eos}"),
        "{eos}",
        ((7,), (8, 9)),
    )
    assert config.model.vocabulary_size == vocabularies.target.size + SURPLUS
    given = huggingface.read(folder()).params
    saved = find_parameters(run, "best", "bleu")
    assert (saved.name, saved.vocabulary) == (0, vocabularies.hash)
    jax.tree.map(np.testing.assert_array_equal, saved.load(given), given)


def test_the_command_imports_and_others_read_the_run(tmp_path):
    """Translations depend on both languages, and unknown ones name the nearest."""
    run = tmp_path / "runs" / "new"
    options = folder(), f"--workdir={run}", "--from=en", "--to=de"
    outcome = runs.call("import", *options)
    assert outcome.code == 0
    assert json.loads(outcome.out)["target_language"] == "de"
    assert "not taken from the folder: do_sample=True" in outcome.err
    given, text = f"--workdir={run}", b"Two words.\n\nThree more words.\n"
    found = [
        runs.call("translate", given, *flags, stdin=text).lines
        for flags in ([], ["--to=fr"], ["--from=es"], ["--from=es", "--to=fr"])
    ]
    assert len(set(map(tuple, found))) > 1
    assert all(len(lines) == 3 and lines[1] == "" for lines in found)
    said = runs.call("translate", given, "--from=EN", "--to=pt-br", stdin=text).err
    assert said.splitlines() == ["there is no pt-br: pt is used"]
    error = runs.call("translate", given, "--to=frx", stdin=text).error
    assert "no language 'frx'; the nearest of its 100 are fr, " in error
    info = json.loads(runs.call("info", given).out)
    assert "damaged" not in info
    assert info["checkpoints"] == {"0": {}}
    assert info["imported"] == folder().name
    assert info["config"]["training"] == {"objective": "translation"}
    error = runs.call("average", given).error
    assert error == f"{run} has one checkpoint: nothing to average"
    assert runs.call("average", given, "--last=1").code == 0
    error = runs.call("evaluate", given).error
    assert "has no test set: give --dataset, or --source and --reference" in error


@runs.made_once
def _three_languages(path: Path) -> None:
    path.mkdir(exist_ok=True)
    texts = {"eng": "Open {}.", "deu": "{} öffnen.", "fra": "Ouvrir {}."}
    rows = [{code: text.format(x) for code, text in texts.items()} for x in "ab"]
    (path / "three.jsonl").write_text("\n".join(map(json.dumps, rows)))


def trilingual() -> str:
    """Name a data set whose codes are not the model's."""
    return f"jsonl:{_three_languages() / 'three.jsonl'}"


def test_the_direction_of_a_data_set_is_that_of_the_run(tmp_path):
    """Or the one asked for, under any codes; it has a result of its own, which is read
    again in its direction.
    """
    run, name = runs.copy(imported(), tmp_path / "run"), trilingual()
    given = f"--workdir={run}", f"--dataset={name}", "--metrics=chrf"
    for flags, found in (
        ([], ("en", "de")),
        (["--to=fra"], ("en", "fr")),
        (["--from=de_DE", "--to=fr"], ("de", "fr")),
        (["--to=eng_Latn"], ("de", "en")),
    ):
        record = json.loads(runs.call("evaluate", *given, *flags).out)
        languages = record["source_language"], record["target_language"]
        assert languages == found
        pairs = [(*texts,) for texts in sources.load(name, *found)]
        direct = fingerprint([a for a, _ in pairs], [[b for _, b in pairs]])
        assert record["text"] == direct
    entry = f"{name} target_language=fra"
    other = runs.copy(run, tmp_path / "other")
    compared = "compare", run, other, f"--dataset={entry}", "--metrics=chrf"
    assert runs.call(*compared).code == 0
    found = json.loads(runs.call("doctor", given[0], "--format=json").out)
    verdicts = {each["check"]: each["verdict"] for each in found["findings"]}
    assert verdicts["vocabulary"] == verdicts["readable"] == "ok"
    assert verdicts["selection"] == verdicts["optimizer"] == "unseen"
    assert verdicts["search"] == verdicts["architecture"] == "ok"  # the model's own
    assert verdicts["averaging"] == "unseen"
    cures = " ".join(each["cure"] for each in found["findings"])
    assert not [x for x in ("byte_fallback", "training", "paper") if x in cures]
    error = runs.call("evaluate", *given, "--to=es").error
    assert "no language 'es': the fields are eng, deu, fra" in error
    named = f"--dataset={name} [en>fr]"
    error = runs.call("evaluate", *given[::2], named, "--to=de").error
    assert "goes into fr, not into de: name a --dataset in that direction" in error


def test_a_reverse_run_takes_the_languages_of_the_lists_exchanged(tmp_path):
    """Its score is that of ``score`` in that direction."""
    run, lists = f"--workdir={imported()}", tmp_path / "lists.jsonl"
    text = b"Two words.\nThree more words.\n"
    options = "--from=es", "--to=fr", "--format=jsonl", f"--output={lists}"
    assert runs.call("translate", run, *options, "--n_best=2", stdin=text).code == 0
    given = f"--reverse={imported()}", f"--input={lists}", "--format=jsonl"
    found = [json.loads(line) for line in runs.call("rerank", *given).lines]
    every = [(own, each["source"]) for each in found for own in each["translations"]]
    names = [tmp_path / "source", tmp_path / "target"]
    names[0].write_text("".join(f"{own['text']}\n" for own, _ in every))
    names[1].write_text("".join(f"{source}\n" for _, source in every))
    files = f"--source={names[0]}", f"--target={names[1]}"
    for languages, equal in (["--from=fr", "--to=es"], True), ([], False):
        lines = runs.call("score", run, *files, *languages).lines
        means = [float(x.split("\t")[0]) / int(x.split("\t")[1]) for x in lines]
        scores = [own["scores"]["reverse"] for own, _ in every]
        assert np.allclose(scores, means, atol=1e-5) == equal


def test_only_runs_whose_input_names_its_language_take_it():
    run = f"--workdir={runs.random_run()}"
    error = runs.call("translate", run, "--from=de", stdin=b"a\n").error
    assert error.startswith("--from=de is for an imported model")


BOTH = ("en", "de")


@pytest.mark.parametrize(
    ("languages", "changes", "line"),
    [
        (("en", "xx"), {}, "the vocabulary has no language 'xx'; the nearest"),
        (
            (None, "de"),
            {},
            "the model has 100 languages: name one by --from, such as",
        ),
        (("en", None), {}, "the model has 100 languages: name one by --to, such as"),
        ((None, None), {}, "name them by --from and --to, such as af, am"),
        (BOTH, {"model.safetensors": None}, "has no model.safetensors"),
        (BOTH, {"sentencepiece.bpe.model": None}, "has no sentencepiece.bpe.model"),
        (
            BOTH,
            {"tokenizer_config.json": '{"tokenizer_class": "SMALL100Tokenizer"}'},
            "must be M2M100Tokenizer or NllbTokenizer, not SMALL100Tokenizer, which",
        ),
        (BOTH, {"vocab.json": '{"<s>": 0, "<pad>": 0}'}, "'<pad>' has the id 0, and"),
        (
            BOTH,
            {"sentencepiece.bpe.model": "\n\x05hello"},
            "not a SentencePiece model, or a",
        ),
        (BOTH, {"max_length": math.inf}, "whole number, not inf"),
        (BOTH, {"bad_words_ids": "a"}, "bad_words_ids must be a list of lists"),
        (BOTH, {"bad_words_ids": [[99_999]]}, "bad_words_ids must be a list of lists"),
        (BOTH, {"suppress_tokens": 7}, "suppress_tokens must be a list of token ids"),
        (BOTH, {"early_stopping": "no"}, 'early_stopping must be true, false or "nev'),
        (BOTH, {"num_beams": 2.7}, "num_beams must be a whole number, not 2.7"),
        (BOTH, {"num_beams": 101}, "num_beams must be at most 100, not 101: correct"),
        (BOTH, {"decoder_start_token_id": [2]}, "must be a token id, not"),
        (BOTH, {"renormalize_logits": 1}, "renormalize_logits must be true or false"),
        (BOTH, {"max_length": 0}, "leaves -1 tokens for a translation"),
    ],
)
def test_nothing_is_written_on_an_error(tmp_path, languages, changes, line):
    """What changes is a file of the folder, or a setting of its search."""
    files = {name: each for name, each in changes.items() if "." in name}
    search = {name: each for name, each in changes.items() if "." not in name}
    copy = with_search(tmp_path, **search)
    for name, content in files.items():
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_text(content)
    source, target = languages
    with pytest.raises(InputError) as error:
        import_run(
            copy,
            tmp_path / "a" / "b",
            source_language=source,
            target_language=target,
        )
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    with pytest.raises(InputError, match="is not an empty folder: choose another"):
        import_run(copy, copy)


def test_a_shortlist_of_an_imported_run(tmp_path):
    """It is learned from given text for a direction, whose language is forced within
    it; the run has no text of its own, and no list for another language.
    """
    run = runs.copy(imported(), tmp_path / "run")
    files = []
    for name, side in zip(
        ("en", "de"), zip(*runs.pairs()[:60], strict=True), strict=True
    ):
        files.append(tmp_path / name)
        files[-1].write_text("".join(f"{line}\n" for line in side))
    workdir = f"--workdir={run}"
    error = runs.call("shortlist", workdir).error
    assert error.endswith(
        "no text to learn from: give --source and --reference, or a --dataset"
    )
    text = [f"--source={files[0]}", f"--reference={files[1]}"]
    assert runs.call("shortlist", workdir, *text, "--first=5", "--best=2").code == 0
    found = Translator.load(run)
    listed = Shortlist.load(run / "shortlist.en-de.npz", found.vocabularies.hash)
    assert found.vocabularies.target.tag_id("de") in listed.first
    given = "translate", workdir, "--shortlist", "--beam_size=2"
    stdin = b"Insert a new table.\n"
    outcome = runs.call(*given, "--format=jsonl", stdin=stdin)
    (best,) = json.loads(outcome.out)["translations"]
    (ids,) = found.codec.encode_sources(["Insert a new table."])
    allowed = found.vocabularies.target.pieces(listed.tokens_of(ids))
    assert set(best["tokens"]) <= set(allowed)
    assert len(allowed) < found.vocabularies.target.size
    error = runs.call(*given, "--to=fr", stdin=stdin).error
    assert error.endswith(
        "no shortlist for en-fr, only shortlist.en-de.npz; make one: jaxformer"
        f" shortlist {workdir} --source=FILE --reference=FILE --from=en --to=fr"
    )
