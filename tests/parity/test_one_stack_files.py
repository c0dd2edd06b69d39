"""Files of BERT and GPT of every age are read, also by their old names."""

import jax
import numpy as np
import pytest
from parity.test_one_stack import draw, transformers

from jaxformer.errors import InputError
from jaxformer.interop.huggingface import one_stack

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]


def old_names(state):
    """Name norms as old files do: gamma and beta."""
    found = {}
    for name, tensor in state.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        found[name.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    return found


@pytest.mark.parametrize("name", ["BertForPreTraining", "GPT2LMHeadModel"])
@pytest.mark.parametrize("bare", [False, True])
def test_old_files(name, bare):
    model = draw(name)
    settings = model.config.to_dict() | {"architectures": [name]}
    state = {key: x.numpy() for key, x in model.state_dict().items()}
    prefix = "bert." if name.startswith("Bert") else "transformer."
    table = state[f"{prefix}{'wte' if 'GPT' in name else _WORDS}.weight"]
    tied = "lm_head.weight" if "GPT" in name else "cls.predictions.decoder.weight"
    old = old_names(state) | {
        f"{prefix}embeddings.position_ids": np.arange(48)[None],
        f"{prefix}h.0.attn.bias": np.ones((1, 1, 48, 48), np.float32),
        f"{prefix}h.0.attn.masked_bias": np.float32(-1e4),
        tied: table,
    }
    if bare:
        old = {key.removeprefix(prefix): x for key, x in old.items()}
    config, params = one_stack.from_state(settings, old)
    same, expected = one_stack.from_state(settings, state)
    assert config == same
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    with pytest.raises(InputError, match=f"{tied} differs from the table of words"):
        one_stack.from_state(settings, old | {tied: table + 1})


_WORDS = "embeddings.word_embeddings"
