"""BERT, RoBERTa, DistilBERT, GPT and GPT-2 compute what transformers computes, from
every kind of file that is found, and go back to it.

Biases are random too: one that is lost would not be seen otherwise.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizer_folders

from jaxformer.cli.main import main
from jaxformer.errors import InputError
from jaxformer.interop import huggingface
from jaxformer.interop.huggingface import one_stack
from jaxformer.interop.huggingface.seq2seq import from_model
from jaxformer.models.make import make_model
from jaxformer.runs import config as configuration

try:
    import torch
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    torch = transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]

VOCABULARY, WIDTH, LENGTH = 41, 16, 12
BERT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 48,
}
OPTIONS = {
    "Bert": BERT,
    "Roberta": {
        **BERT,
        "max_position_embeddings": 50,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    },
    "DistilBert": {
        "dim": WIDTH,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 24,
        "max_position_embeddings": 48,
    },
    "GPT2": {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 48},
    "OpenAIGPT": {"n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 48},
}
OPTIONS["GPT2"]["n_inner"] = 24
ENDS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
CASES = [
    *(f"{name}{end}" for name in ("Bert", "Roberta", "DistilBert") for end in ENDS),
    *(f"{name}ForQuestionAnswering" for name in ("Bert", "Roberta", "DistilBert")),
    *("BertForPreTraining", "BertModel", "RobertaModel", "DistilBertModel"),
    *("GPT2LMHeadModel", "OpenAIGPTLMHeadModel"),
]
DECODERS = CASES[-2:]


def family(name):
    return next(each for each in OPTIONS if name.startswith(each))


def draw(name, *, vocabulary=VOCABULARY, deviation=0.4, **options: Any):
    """Build a model of a class with drawn parameters."""
    kind = family(name)
    config = getattr(transformers, f"{kind}Config")
    more = {"bos_token_id": 2, "eos_token_id": 2} if kind == "GPT2" else {}
    options = {"vocab_size": vocabulary, **OPTIONS[kind], **more, **options}
    if "Classification" in name and "id2label" not in options:
        options["num_labels"] = 5
    model = getattr(transformers, name)(config(**options))
    generator = torch.Generator().manual_seed(0)
    for part, values in model.named_parameters():
        values.data.normal_(generator=generator).mul_(deviation)
        norm = "norm" in part.lower() or ".ln_" in part
        if norm and part.endswith("weight"):
            values.data.add_(1)
    return model.eval()


def batch(name, config, lengths=(LENGTH, LENGTH // 2, 7)):
    """Draw rows of tokens and of kinds of segments, and say which are real."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, VOCABULARY, (len(lengths), max(lengths)))
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    if name in DECODERS:
        real = np.ones_like(real)
    types = rng.integers(0, max(config.segment_types, 1), tokens.shape) * real
    return np.where(real, tokens, config.pad_id), types, real


def theirs_of(model, name, tokens, types, real):
    given = {"input_ids": tokens, "attention_mask": real.astype(int)}
    if family(name) == "Bert":
        given["token_type_ids"] = types
    with torch.no_grad():
        out = model(**{key: torch.tensor(values) for key, values in given.items()})
    if name.endswith("ForPreTraining"):
        return [out.prediction_logits, out.seq_relationship_logits]
    if name.endswith("ForQuestionAnswering"):
        return [torch.stack([out.start_logits, out.end_logits], -1)]
    if not name.endswith("Model") or name in DECODERS:
        return [out.logits]
    pooled = [out.pooler_output] if family(name) == "Bert" else []
    return [out.last_hidden_state, *pooled]


def ours_of(config, params, tokens, types) -> Any:
    """Return what the head of a model gives."""
    tokens, types = jnp.asarray(tokens), jnp.asarray(types)
    params = jax.tree.map(jnp.asarray, params)
    model = make_model(config)
    if not config.num_encoder_layers:
        return [model.apply({"params": params}, tokens, method="read")]

    def run(module):
        x, _ = module.hidden(tokens, types if config.segment_types else None)
        return {
            "none": lambda: [x],
            "pooled": lambda: [x, module.pool(x)],
            "words": lambda: [module.words(x)],
            "words_and_next": lambda: [module.words(x), module.next(x)],
            "classification": lambda: [module.classify(x)],
            "tagging": lambda: [module.tag(x)],
            "span": lambda: [module.find_span(x)],
        }[config.head]()

    return model.apply({"params": params}, method=run)


def compare(name, model, config, params, tolerance=2e-5):
    tokens, types, real = batch(name, config)
    expected = theirs_of(model, name, tokens, types, real)
    found = ours_of(config, params, tokens, types)
    for other, own in zip(expected, found, strict=True):
        other, own = other.numpy(), np.asarray(own)
        if own.ndim == 3:
            other, own = other[real], own[real]
        np.testing.assert_allclose(own, other, rtol=0, atol=tolerance)
        assert abs(other).max() > 0.5


@pytest.mark.parametrize(
    ("name", "setting", "given", "expected"),
    [
        ("BertForMaskedLM", "hidden_act", "gelu", "gelu_exact"),
        ("BertForMaskedLM", "hidden_act", "gelu_new", "gelu"),
        ("RobertaForMaskedLM", "hidden_act", "relu", "relu"),
        ("DistilBertForMaskedLM", "activation", "relu", "relu"),
        ("GPT2LMHeadModel", "activation_function", "gelu", "gelu_exact"),
        ("OpenAIGPTLMHeadModel", "afn", "gelu", "gelu"),
        ("OpenAIGPTLMHeadModel", "afn", "relu", "relu"),
    ],
)
def test_activations(name, setting, given, expected):
    """``gelu`` is exact in BERT and GPT-2, and approximate in GPT."""
    model = draw(name, **{setting: given})
    config, params = from_model(model)
    assert config.activation == expected
    compare(name, model, config, params)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("BertForMaskedLM", "layer_norm_eps"),
        ("RobertaForMaskedLM", "layer_norm_eps"),
        ("GPT2LMHeadModel", "layer_norm_epsilon"),
    ],
)
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 1e-3])
def test_epsilon(name, setting, epsilon):
    """Where variances are small, another epsilon would be seen."""
    model = draw(name, deviation=0.02, **{setting: epsilon})
    config, params = from_model(model)
    assert config.norm_epsilon == epsilon
    tokens, types, real = batch(name, config)
    (other,) = theirs_of(model, name, tokens, types, real)
    (own,) = ours_of(config, params, tokens, types)
    np.testing.assert_allclose(
        np.asarray(own)[real], other.numpy()[real], rtol=0, atol=2e-5
    )


def test_roberta_takes_512_tokens_and_no_more():
    """Its table has 514 rows, the first two of which are not of real tokens."""
    model = draw("RobertaModel", max_position_embeddings=514)
    config, params = from_model(model)
    assert (config.max_length, config.position_offset) == (512, 2)
    tokens = np.full((1, 513), 7)
    (own,) = ours_of(config, params, tokens[:, :512], tokens[:, :512] * 0)
    with torch.no_grad():
        other = model(torch.tensor(tokens[:, :512])).last_hidden_state
    np.testing.assert_allclose(own, other.numpy(), rtol=0, atol=2e-5)
    with pytest.raises(InputError, match="512"):
        ours_of(config, params, tokens, tokens * 0)


def losses(config, params, tokens, types, labels):
    """Return the mean loss of the labels that are not -100."""
    (logits,) = ours_of(config, params, tokens, types)
    real = (labels != -100).astype(jnp.float32)
    scores = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(scores, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    return -(real * chosen).sum() / real.sum()


@pytest.mark.parametrize(
    "name",
    [
        *("BertForMaskedLM", "RobertaForSequenceClassification"),
        *("DistilBertForTokenClassification", "GPT2LMHeadModel"),
    ],
)
def test_loss_and_gradients(name):
    """The gradients are converted as the parameters are, so a wrong transpose or a lost
    tie would be seen; labels of -100 count nowhere.
    """
    model = draw(name)
    config, params = from_model(model)
    tokens, types, real = batch(name, config)
    shape = tokens.shape[:1] if "Sequence" in name else tokens.shape
    rows = VOCABULARY if name.endswith(("MaskedLM", "LMHeadModel")) else 5
    labels = np.random.default_rng(1).integers(0, rows, shape)
    if labels.ndim == 2:
        labels = np.where(real & (np.arange(LENGTH) % 3 != 1), labels, -100)
    given = {"input_ids": tokens, "attention_mask": real.astype(int), "labels": labels}
    if config.segment_types == 2:
        given["token_type_ids"] = types
    loss = model(**{key: torch.tensor(each) for key, each in given.items()}).loss
    loss.backward()
    if name in DECODERS:  # which predict the next token there
        labels = np.pad(labels[:, 1:], ((0, 0), (0, 1)), constant_values=-100)
    own, gradients = jax.value_and_grad(
        lambda params: losses(config, params, tokens, types, jnp.asarray(labels))
    )(params)
    assert float(own) == pytest.approx(loss.item(), rel=1e-6)
    settings = model.config.to_dict()
    tensors = one_stack.to_state(config, settings, jax.tree.map(np.asarray, gradients))
    grads = {
        key: x.grad.numpy() for key, x in model.named_parameters() if key in tensors
    }
    assert len(grads) > 20
    for key, grad in grads.items():
        np.testing.assert_allclose(tensors[key], grad, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_there_and_back(tmp_path, name):
    """A run of a folder is exported as a folder of the same class, whose logits are the
    same bits, whose tensors are those of the file, and whose tokenizer is the same.
    """
    kind = family(name)
    makers = {"Bert": "bert", "DistilBert": "bert", "OpenAIGPT": "gpt"}
    given, run, out = (tmp_path / part for part in ("given", "run", "out"))
    given.mkdir()
    getattr(tokenizer_folders, makers.get(kind, kind.lower()))(given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given)
    labels = {number: f"label {5 - number}" for number in range(5)}
    options: dict[str, Any] = {"id2label": labels} if "Classification" in name else {}
    if kind == "GPT2":
        options |= dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
    model = draw(name, vocabulary=len(tokenizer) + 3, **options)
    model.save_pretrained(given)
    assert main(["import", str(given), f"--workdir={run}"]) == 0
    arguments = [f"--workdir={run}", f"--out={out}", "--format=huggingface"]
    assert main(["export", *arguments]) == 0
    again, report = getattr(transformers, name).from_pretrained(
        out, output_loading_info=True
    )
    dropped = ["pooler"] if name == "RobertaModel" else []
    missing = {key.split(".")[0] for key in report["missing_keys"]}
    assert missing == {*dropped}
    assert not report["unexpected_keys"]
    state = model.state_dict()
    for key, tensor in again.state_dict().items():
        if not any(part in key for part in dropped):
            assert torch.equal(tensor, state[key]), key
    if "Classification" in name:
        assert again.config.id2label == labels
    lines = tokenizer_folders.awkward_lines()[:200]
    back = transformers.AutoTokenizer.from_pretrained(out)
    assert back(lines)["input_ids"] == tokenizer(lines)["input_ids"]
    if tokenizer.cls_token is not None:
        two = lines[20:40], lines[40:60]
        assert back(*two)["input_ids"] == tokenizer(*two)["input_ids"]
    config = configuration.load(run / "config.json").model
    compare(name, again.eval(), config, huggingface.read(out).params)
