"""Folders of BERT and GPT become runs of the objective of their head, whole or not at
all, and other objectives begin with them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tokenizer_folders
from kinds import write_data

from jaxformer.checkpoints import folder as checkpoint
from jaxformer.checkpoints.saved import SavedCheckpoints
from jaxformer.cli import config_file
from jaxformer.cli.main import main
from jaxformer.data.frame import make_frame
from jaxformer.data.vocabulary import Vocabularies, Vocabulary
from jaxformer.errors import InputError
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface import one_stack_settings as conversion
from jaxformer.interop.huggingface.run import import_run
from jaxformer.interop.huggingface.tokenizers import read_vocabularies
from jaxformer.models.config import TransformerConfig
from jaxformer.models.make import abstract_parameters
from jaxformer.runs import config as configuration
from jaxformer.training.objectives import make_objective
from jaxformer.training.train import train
from jaxformer.training.warm_start import load_initial
from jaxformer.translation.generator import Generator

SURPLUS = 3  # rows of the table without a piece
MAKERS = {
    "bert": tokenizer_folders.bert,
    "distilbert": tokenizer_folders.bert,
    "roberta": tokenizer_folders.roberta,
    "gpt2": tokenizer_folders.gpt2,
    "openai-gpt": tokenizer_folders.gpt,
}
SIZES = {
    **dict.fromkeys(("hidden_size", "dim", "n_embd"), 8),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer"), 1),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head"), 2),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), 12),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 40),
}
OBJECTIVES = {
    "ForMaskedLM": ("masked", "masked", "words"),
    "ForPreTraining": ("masked", "masked", "words_and_next"),
    "Model": ("masked", "masked", "pooled"),
    "ForSequenceClassification": ("classification", "labelled", "classification"),
    "ForTokenClassification": ("tagging", "tagged", "tagging"),
    "ForQuestionAnswering": ("span", "spans", "span"),
    "LMHeadModel": ("causal", "text", "none"),
}
LABELS = {"2": "a", "0": "c, d", "1": "b"}


def make_folder(path: Path, kind: str, end: str, **settings) -> Path:
    """Write a little model of a class, without torch."""
    path.mkdir()
    MAKERS[kind](path)
    found = conversion.KINDS[kind]
    sizes = {name: size for name, size in SIZES.items() if name in found.settings}
    given: dict[str, Any] = sizes
    text = read_text(path, kind)
    given |= {"model_type": kind, "architectures": [f"{found.name}{end}"]}
    given |= {"vocab_size": text.size + SURPLUS, "type_vocab_size": 1}
    given |= {"type_vocab_size": 2} if kind == "bert" else {}
    given |= {"pad_token_id": text.pad_id} if text.pad_id < text.size else {}
    if "Classification" in end:
        given["id2label"] = LABELS
    head = OBJECTIVES[end][2]
    config = conversion.to_config(given | settings, head)
    huggingface.write(path, config, draw(config), settings=given | settings)
    return path


def read_text(path: Path, kind: str) -> Vocabulary:
    return read_vocabularies(path, {"model_type": kind}).source


def draw(config: TransformerConfig) -> dict:
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(np.float32),
        abstract_parameters(config),
    )


def import_folder(tmp_path: Path, kind: str, end: str, **settings) -> Path:
    given = make_folder(tmp_path / "given", kind, end, **settings)
    import_run(given, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        *(("bert", end) for end in OBJECTIVES if end != "LMHeadModel"),
        *(("roberta", "ForMaskedLM"), ("distilbert", "ForQuestionAnswering")),
        *(("gpt2", "LMHeadModel"), ("openai-gpt", "LMHeadModel")),
    ],
)
def test_a_run_of_each_head(tmp_path, kind, end):
    """Its objective, its kind of data, its ids and its labels; its one checkpoint has
    the parameters of the folder.
    """
    run = import_folder(tmp_path, kind, end)
    config = configuration.load(run / "config.json")
    found = config.training.objective, config.data.kind, config.model.head
    assert found == OBJECTIVES[end]
    given = huggingface.read(tmp_path / "given")
    vocabularies = Vocabularies.load(run / "vocabulary")
    text = vocabularies.source
    assert config.data.vocabulary_size == text.size
    assert config.model.text_vocabulary_size == text.size + SURPLUS
    assert (config.model.pad_id, config.model.bos_id) == (text.pad_id, text.bos_id)
    if config.model.num_encoder_layers:
        ids = config.model.eos_id, config.model.mask_id
        assert ids == (text.eos_id, text.mask_id)
    if "Classification" in end:
        assert vocabularies.labels is not None
        assert vocabularies.labels.labels == ("c, d", "b", "a")
    like = abstract_parameters(config.model)
    saved = SavedCheckpoints(run / "checkpoints").restore(0, params=like)["params"]
    jax.tree.map(np.testing.assert_array_equal, saved, given.params)


@pytest.mark.parametrize(
    ("kind", "before", "between"),
    [("bert", 1, 1), ("roberta", 1, 2), ("gpt2", 0, None)],
)
def test_frames(tmp_path, kind, before, between):
    """One text, and two: RoBERTa has two ends between them, and GPT-2 no beginning."""
    end = "LMHeadModel" if kind == "gpt2" else "ForMaskedLM"
    run = import_folder(tmp_path, kind, end)
    vocabularies = Vocabularies.load(run / "vocabulary")
    frame, text = make_frame(vocabularies, ("en", "de")), vocabularies.source
    assert frame.source_before == (text.bos_id,) * before
    assert frame.source_after == (text.eos_id,)
    ends = None if between is None else (text.eos_id,) * between
    assert frame.source_between == ends
    assert frame.target_before == ()
    assert frame.end == text.eos_id


SETTINGS = {"use_cache": True, "output_attentions": False, "max_length": 9}


@pytest.mark.parametrize(
    ("search", "beams"), [(None, 1), (SETTINGS, 1), ({"num_beams": 3}, 3)]
)
def test_a_language_model_is_searched_greedily(tmp_path, search, beams):
    """Unless its folder names a beam. Only settings that change a search are named.
    Prompts keep their blanks.
    """
    given = make_folder(tmp_path / "given", "gpt2", "LMHeadModel")
    if search:
        (given / "generation_config.json").write_text(json.dumps(search))
    config, ignored = import_run(given, tmp_path / "run")
    assert config.decoding.beam_size == beams
    assert ignored == ["max_length=9"] * (search is SETTINGS)
    if search is None:
        assert Generator.load(tmp_path / "run").shown("the cat ") == "the cat "


def test_the_end_of_a_text_is_no_padding(tmp_path):
    """Though a folder pads by it, as many of GPT-2 do: the end is to be learnt."""
    run = import_folder(tmp_path, "gpt2", "LMHeadModel", pad_token_id=0)
    text = Vocabularies.load(run / "vocabulary").source
    pad_id = configuration.load(run / "config.json").model.pad_id
    assert text.eos_id == 0
    assert pad_id == text.pad_id == text.size


def test_regression_says_so(tmp_path):
    run = import_folder(
        tmp_path,
        "bert",
        "ForSequenceClassification",
        problem_type="regression",
        id2label={"0": "LABEL_0"},
    )
    config = configuration.load(run / "config.json")
    assert (config.training.objective, config.data.kind) == ("regression", "scored")
    assert config.model.vocabulary_size == 1


@pytest.mark.parametrize(
    ("kind", "end", "settings", "line"),
    [
        ("gpt2", "LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "be false"),
        (
            "gpt2",
            "LMHeadModel",
            {"n_layer": 1.5},
            "n_layer in config.json must be a wh",
        ),
        ("bert", "ForMaskedLM", {"is_decoder": True}, "must be false, not true"),
        (
            "bert",
            "ForMaskedLM",
            {"position_embedding_type": "relative_key"},
            'must be "absolute", not "relative_key"',
        ),
        ("bert", "ForMaskedLM", {"pad_token_id": 3}, "pad is id 0 of the source"),
        (
            "bert",
            "ForMaskedLM",
            {"architectures": ["BertForMultipleChoice"]},
            "not BertForMultipleChoice, which has another head",
        ),
        (
            "bert",
            "ForSequenceClassification",
            {"problem_type": "multi_label_classification"},
            "problem_type in config.json is multi_label_classification",
        ),
        (
            "bert",
            "ForSequenceClassification",
            {"problem_type": "regression"},
            "the classifier has 3 outputs and config.json has problem_type",
        ),
        (
            "bert",
            "ForTokenClassification",
            {"id2label": {"0": "a", "1": "a", "2": "b"}},
            "must name a label for each number from 0 on, each once",
        ),
        (
            "bert",
            "ForMaskedLM",
            {"architectures": ["BertForQuestionAnswering"]},
            "lacks the tensor qa_outputs.weight, the head of its class: give the"
            " tensors of the whole model, or name BertModel in architectures of config",
        ),
    ],
)
def test_refusals(tmp_path, kind, end, settings, line):
    """One line, and nothing is written."""
    given = make_folder(tmp_path / "given", kind, end)
    path = given / "config.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | settings))
    with pytest.raises(InputError) as caught:
        import_run(given, tmp_path / "run")
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_languages_are_refused(tmp_path):
    given = make_folder(tmp_path / "given", "bert", "ForMaskedLM")
    with pytest.raises(InputError, match="--from and --to are for models that"):
        import_run(given, tmp_path / "run", target_language="de")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--format=ctranslate2"], "--format=ctranslate2 is for models that translate"),
        (
            ["--format=huggingface", "--beam_size=2"],
            "--beam_size is for translations",
        ),
    ],
)
def test_exports_of_translation_are_refused(tmp_path, capsys, options, line):
    run = import_folder(tmp_path, "gpt2", "LMHeadModel")
    out = tmp_path / "out"
    assert main(["export", f"--workdir={run}", f"--out={out}", *options]) != 0
    assert line in capsys.readouterr().err
    assert not out.exists()


FINE = {
    "training": {"steps": 2, "evaluate_every": 2, "checkpoint_every": 2},
    "data": {"max_length": 24, "tokens_per_batch": 100, "num_buckets": 1, "workers": 1},
}


def finetune(run, kind, name, objective, head, **training):
    """Return the configuration of another objective that begins with a run."""
    values = config_file.read(f"finetune:{run}", [])
    values["training"] |= FINE["training"] | {"objective": objective} | training
    given = dict.fromkeys(("train", "valid", "test"), name)
    values["data"] |= FINE["data"] | given | {"kind": kind}
    values["model"]["head"] = head
    return configuration.parse(values)


def test_another_objective_draws_its_head(tmp_path, capsys):
    """A classifier begins with an imported encoder: its head is newly drawn, and the
    log and the checkpoint say so; all else is what the file has. It is exported, though
    the run that it began with had a bias of words.
    """
    run = import_folder(tmp_path, "bert", "ForMaskedLM")
    names = write_data(tmp_path)
    config = finetune(run, "labelled", names["labelled"], *["classification"] * 2)
    frozen = "embedding/*,positions/*,segment_embedding/*,embedding_norm/*,encoder/*"
    training = dataclasses.replace(config.training, frozen=frozen, engine="jit")
    config = dataclasses.replace(config, training=training)
    with jax.numpy_dtype_promotion("standard"):  # optax counts in integers
        train(config, tmp_path / "mine")
    assert "newly drawn: pooler, classifier" in capsys.readouterr().err
    path = tmp_path / "mine" / "checkpoints" / "2"
    assert checkpoint.read_record(path)["drawn"] == ["pooler", "classifier"]
    saved = configuration.load(tmp_path / "mine" / "config.json").model
    params = checkpoint.restore(path, {"params": abstract_parameters(saved)})["params"]
    given = huggingface.read(tmp_path / "given").params
    assert params["encoder"].keys() == given["encoder"].keys()
    for part in ("embedding", "positions", "encoder"):
        jax.tree.map(np.testing.assert_array_equal, params[part], given[part])
    arguments = f"--workdir={tmp_path / 'mine'}", f"--out={tmp_path / 'out'}"
    assert main(["export", *arguments, "--format=huggingface"]) == 0
    settings = json.loads((tmp_path / "out" / "config.json").read_bytes())
    assert settings["architectures"] == ["BertForSequenceClassification"]


def test_an_encoder_is_trained_on_with_a_head_of_words(tmp_path):
    """That of BERT, with its bias: newly drawn, and known to transformers."""
    run = import_folder(tmp_path, "bert", "Model")
    values = config_file.read(f"finetune:{run}", [])
    values["data"] |= dict.fromkeys(("train", "valid", "test"), "text:a")
    config = configuration.parse(values)
    assert config.training.objective == "masked"
    model = configuration.load(run / "config.json").model
    model = dataclasses.replace(
        model, head=config.model.head, output_bias=config.model.output_bias
    )
    assert conversion.differences(model, "bert") == {}
    make_objective(model, config.training)
    hash_ = Vocabularies.load(run / "vocabulary").hash
    found = load_initial(config.training, hash_, abstract_parameters(model), None)
    assert {*found.drawn} == {"word_transform", "logits"}


def test_a_head_that_fits_is_kept(tmp_path):
    """That of the same labels, and a pooler that another head reads."""
    run = import_folder(tmp_path, "bert", "ForSequenceClassification")
    config = configuration.load(run / "config.json")
    training = dataclasses.replace(config.training, initial_run=str(run))
    hash_ = Vocabularies.load(run / "vocabulary").hash
    like = abstract_parameters(config.model)
    assert load_initial(training, hash_, like, None).drawn == ()
    model = dataclasses.replace(config.model, vocabulary_size=4)
    found = load_initial(training, hash_, abstract_parameters(model), None)
    assert found.drawn == ("classifier",)
    assert "pooler" in found.params
    adapted = dataclasses.replace(training, lora_rank=2)
    with pytest.raises(InputError, match="lora_rank=2 needs a head that is trained"):
        load_initial(adapted, hash_, abstract_parameters(model), None)
    with pytest.raises(InputError, match="has another vocabulary"):
        load_initial(training, "0" * 64, like, None)


@pytest.mark.parametrize("head", ["none", "pooled"])
def test_nothing_predicts_without_a_head(tmp_path, head):
    run = import_folder(tmp_path, "bert", "Model")
    config = configuration.load(run / "config.json")
    model = dataclasses.replace(config.model, head=head)
    with pytest.raises(InputError, match=f"model.head={head} predicts no words"):
        make_objective(model, config.training)
