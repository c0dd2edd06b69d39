"""Models with blocks later than the paper: what they promise like every other."""

import numpy as np
import pytest
from models.little import LATER, make_model, make_sentences, run, same

from jaxformer import InputError
from jaxformer.interop import ctranslate2
from jaxformer.interop.huggingface import families
from jaxformer.models import stack_layers
from jaxformer.models.config import later_blocks
from jaxformer.nn.backend import choose_backend

SOURCE, TARGET = make_sentences(1, [6, 2]), make_sentences(2, [3, 7])


@pytest.mark.parametrize("name", LATER)
def test_positions_are_seen_and_the_future_is_not(name):
    """Two words that change places change the logits after them, and none before."""
    model, params = make_model(0, **LATER[name])
    _, _, logits, weights = run(model, params, SOURCE, TARGET)
    other = TARGET.copy()
    other[1, [2, 3]] = TARGET[1, [3, 2]]
    changed = np.abs(run(model, params, SOURCE, other)[2] - logits).max(-1)[1]
    assert (changed[:3] == 0).all()
    assert changed[4] > 1e-4
    if model.config.attention_window:
        distance = np.abs(np.subtract.outer(np.arange(7), np.arange(7)))
        assert (np.asarray(weights.decoder[0])[:, :, distance >= 3] == 0).all()
        distance = distance[:6, :6]
        assert (np.asarray(weights.encoder[0])[:, :, distance >= 3] == 0).all()
        assert (np.asarray(weights.encoder[0])[0, :, 0, 1] > 0).all()


@pytest.mark.parametrize(("kind", "scan"), [("dots", False), ("layer", True)])
def test_a_shared_bias_has_its_gradient_through_recomputed_layers(kind, scan):
    settings = LATER["relative bias, gated"] | {"num_decoder_layers": 2}
    plain, params = make_model(0, **settings)
    how = {"rematerialization": kind, "scan_layers": scan}
    model, _ = make_model(0, **settings, **how)
    _, expected, *_ = run(plain, params, SOURCE, TARGET)
    given = stack_layers(params) if scan else params
    _, found, *_ = run(model, given, SOURCE, TARGET)
    for side in ("encoder", "decoder"):
        table = expected[side]["position_bias"]["table"]
        same(found[side]["position_bias"]["table"], table)
        assert np.abs(table).max() > 1e-3


def test_kernels_of_a_device_are_not_taken():
    """A bias and a window are refused by name; shared keys are not."""
    tpu = type("Device", (), {"platform": "tpu"})
    for settings in LATER.values():
        windowed = "attention_window" in settings
        taken = "window of attention" if windowed else "bias on scores"
        model = make_model(0, **settings)[0].copy(device=tpu)
        assert choose_backend(model, "auto", 1024, train=False) == "plain"
        with pytest.raises(InputError, match=f"=pallas has no {taken}"):
            choose_backend(model, "pallas", 8, train=False)
    model, _ = make_model(0, num_key_value_heads=1, positions="rotary")
    model = model.copy(device=tpu)
    assert choose_backend(model, "auto", 1024, train=False) == "pallas"


@pytest.mark.parametrize("name", LATER)
def test_exports_refuse_them_by_name(name, tmp_path):
    config = make_model(0, **LATER[name])[0].config
    later = later_blocks(config)
    exempt = {"num_heads", "d_k", "d_v", "norm_order", "embedding_norm"}
    assert set(later) == set(LATER[name]) - exempt - {"scale_embedding"}
    first, value = next(iter(later.items()))
    tokens = [f"t{i}" for i in range(config.vocabulary_size)]
    tokens = ctranslate2.Tokens(tokens, tokens, 1, 2)
    with pytest.raises(InputError, match=f"without model.{first}={value}: such a"):
        ctranslate2.save(tmp_path / "model", config, {}, tokens)
    differ = families.differences(config, families.FAMILIES["bart"])
    assert later.keys() <= differ.keys()
    with pytest.raises(InputError, match=f"has model.{first} "):
        families.check_fits(config, "bart", {first: differ[first]})
