"""A run that was imported is trained in part, and goes to transformers."""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false

import json

import jax
import numpy as np
import pytest
import tokenizer_folders
from flax.traverse_util import flatten_dict
from parity.imported_models import imported_case, torch, transformers
from training.little import score

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
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
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
