"""A run that was imported is trained, in part or by adapters, and goes to other
systems.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false

import json

import jax
import numpy as np
import pytest
import tokenizer_folders
from flax.traverse_util import flatten_dict
from parity.imported_models import imported_case, torch, transformers
from parity.test_exports import check_greedy, ctranslate2
from safetensors.numpy import load_file
from training.little import score

import runs
from jaxformer.checkpoints import folder
from jaxformer.cli import config_file
from jaxformer.errors import InputError
from jaxformer.interop import export
from jaxformer.models.seq2seq import Transformer
from jaxformer.runs import config as configuration
from jaxformer.training.train import train
from jaxformer.translation.batch import pad
from jaxformer.translation.translator import Translator

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        None in (transformers, ctranslate2), reason="needs the extra `parity`"
    ),
    pytest.mark.filterwarnings("ignore:.*sacremoses"),
]
# Sinusoids and norms before the layers, without one of the embedding; learned positions
# and norms after. Other families combine these, and differ in the tokens around a text:
# test_imported_runs compares losses and gradients of all, test_exports what is written.
KINDS = "nllb", "bart"
PAIRS = [text for text in tokenizer_folders.sentences() if len(text) < 60][:24]
SETTINGS = {
    "data.tokens_per_batch": 2000,
    "data.num_buckets": 1,
    "data.max_length": 64,
    "training.engine": "jit",
    "training.steps": 6,
    "training.warmup_steps": 1,
    "training.learning_rate": 1e-2,
    "training.log_every": 1,
    "training.evaluate_every": 6,
    "training.checkpoint_every": 3,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write a few pairs; return the setting that names them."""
    files = [tmp_path_factory.mktemp("corpus") / side for side in ("one", "two")]
    for file, texts in zip(files, (PAIRS[::2], PAIRS[1::2]), strict=True):
        file.write_text("".join(f"{text}\n" for text in texts))
    return f"text:{files[0]},{files[1]}"


def tune(case, corpus, run, *changes):
    """Train a few steps from the run of a case; return the losses of the steps."""
    splits = {f"data.{split}": corpus for split in ("train", "valid", "test")}
    flags = splits | SETTINGS | dict(change.split("=") for change in changes)
    flags = [f"--config.{name}={value}" for name, value in flags.items()]
    config = configuration.parse(config_file.read(f"finetune:{case.run}", flags))
    with jax.numpy_dtype_promotion("standard"):
        assert train(config, run, score).finished
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if "train/loss" in line]


def write_for_transformers(translator, out):
    out.mkdir()
    assert export.write(out, "huggingface", translator, translator.decoding) == []
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(out).eval()


def their_logits(model, pair):
    source, inputs = (torch.tensor(np.asarray(ids), dtype=torch.long) for ids in pair)
    mask = source != model.config.pad_token_id
    with torch.no_grad():
        found = model(input_ids=source, attention_mask=mask, decoder_input_ids=inputs)
    return found.logits.numpy()


def draw_pair(translator):
    """Return sources and targets as tokens, padded."""
    pad_id = translator.model.config.pad_id
    sides = (
        translator.codec.encode_sources(PAIRS[:6:2]),
        translator.codec.encode_targets(PAIRS[1:6:2]),
    )
    return [pad(rows, 3, max(map(len, rows)), pad_id) for rows in sides]


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_is_trained_in_part(corpus, tmp_path, name):
    """The loss falls, frozen parameters stay bit for bit, and the logits of the folder
    for transformers are those of the run. Another vocabulary is refused.
    """
    case = imported_case(name)
    losses = tune(case, corpus, tmp_path / "run", "training.frozen=encoder/*")
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.1
    tuned = Translator.load(tmp_path / "run")
    before, after = (flatten_dict(x.params) for x in (case.translator, tuned))
    same = {path: np.array_equal(x, before[path]) for path, x in after.items()}
    assert all(same[path] for path in same if path[0] == "encoder")
    assert not any(
        same[path] for path in same if path[-1] == "kernel" and path[0] == "decoder"
    )
    source, target = draw_pair(tuned)
    config = tuned.model.config
    shape = Transformer(config)
    found = jax.jit(shape.apply)({"params": tuned.params}, source, target)
    inputs = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=config.bos_id)
    model = write_for_transformers(tuned, tmp_path / "out")
    expected = their_logits(model, (source, inputs))
    real = target != config.pad_id
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=2e-5)

    with pytest.raises(InputError, match=r"data\.vocabulary_size is 900 and"):
        tune(case, corpus, tmp_path / "other", "data.vocabulary_size=900")
    assert not (tmp_path / "other").exists()


MODULES = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
LORA = ("training.lora_rank=2", "training.learning_rate=3e-2")
MODULES |= {"query": "q_proj", "value": "v_proj"}


def read_factors(path):
    shapes = folder.read_shapes(path, "params")
    found = flatten_dict(folder.restore(path, {"params": shapes})["params"])
    return {key: np.asarray(x, np.float64) for key, x in found.items()}


def each_adapted(model, factors):
    """Yield each adapted layer of a model in torch, with its factors."""
    for path in {path[:-1] for path in factors}:
        side, layer, attention, projection, _ = path
        found = getattr(model.model, side).layers[int(layer.removeprefix("layer_"))]
        for part in (attention, projection):
            found = getattr(found, MODULES[part])
        down, up = (torch.tensor(factors[*path, f"lora_{x}"]) for x in "ab")
        yield found, down, up.reshape(len(up), -1)


def merge(model, factors, scale):
    """Add ``scale x A B`` to the kernels, and round these to float32."""
    with torch.no_grad():
        for layer, down, up in each_adapted(model, factors):
            layer.weight.add_(scale * (down @ up).T)
            layer.weight.copy_(layer.weight.float())


def adapt(model, factors, scale):
    """Let each adapted layer of a model in torch add ``scale x A B`` to its output."""
    for layer, down, up in each_adapted(model, factors):
        layer.register_forward_hook(
            lambda _, inputs, out, down=down, up=up: (
                out + scale * (inputs[0] @ down) @ up
            )
        )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", KINDS)
def test_adapters_are_merged_in_every_export(corpus, tmp_path, name):
    """The loss falls; for transformers, CTranslate2 and as a program the run has the
    numbers of the base with adapters next to its layers, and so has an average.
    """
    case, run = imported_case(name), tmp_path / "run"
    losses = tune(case, corpus, run, *LORA)
    assert losses[-1] < losses[0] - 0.1
    tuned = Translator.load(run, "latest")
    pair = draw_pair(tuned)
    base, rounded = (
        type(case.model).from_pretrained(case.folder).eval().double() for _ in range(2)
    )
    factors = read_factors(run / "checkpoints" / "6")
    adapt(base, factors, 16 / 2)
    merge(rounded, factors, 16 / 2)
    model = write_for_transformers(tuned, tmp_path / "out").double()
    plain = their_logits(case.model.double(), pair)
    case.model.float()
    expected = their_logits(base, pair)
    assert np.abs(expected - plain).max() > 0.1
    # What float32 kernels cost at best: a model may magnify it.
    least = np.abs(their_logits(rounded, pair) - expected).max()
    assert least < 2e-5
    found = their_logits(model, pair)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3 * least)
    merged = dict(rounded.named_parameters())
    for key, kernel in model.named_parameters():
        np.testing.assert_allclose(
            kernel.detach(), merged[key].detach(), rtol=1e-6, atol=1e-6
        )

    check_greedy(tuned, tmp_path / "translated")
    program = tmp_path / "program"
    program.mkdir()
    export.write(program, "stablehlo", tuned, tuned.decoding)
    weights = load_file(program / "model.safetensors")
    for key, leaf in flatten_dict(tuned.params, sep="/").items():
        np.testing.assert_array_equal(weights[key], leaf)

    assert runs.call("average", f"--workdir={run}", "--last=2").code == 0
    found = flatten_dict(Translator.load(run, "average").params)
    both = [read_factors(run / "checkpoints" / step) for step in ("3", "6")]
    kernels = flatten_dict(case.translator.params)
    for path in {path[:-1] for path in both[0]}:
        down, up = (
            np.mean([each[*path, f"lora_{x}"] for each in both], 0) for x in "ab"
        )
        change = 16 / 2 * np.tensordot(down, up, 1)
        np.testing.assert_allclose(
            found[path], kernels[path] + change, rtol=1e-6, atol=1e-6
        )
