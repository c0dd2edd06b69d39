import sys
import types
from unittest import mock

import pytest
from pairs import refuse

from jaxformer.data import hub


def test_gpus_are_hidden_from_a_tensorflow_that_is_loaded(monkeypatch):
    """If that is no longer possible, a warning says so."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    hub.hide_gpus_from_tensorflow()
    assert "tensorflow" not in sys.modules
    hide = mock.Mock(side_effect=[None, RuntimeError("after being initialized")])
    config = types.SimpleNamespace(set_visible_devices=hide)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    hub.hide_gpus_from_tensorflow()
    hide.assert_called_once_with([], "GPU")
    with pytest.warns(UserWarning, match="TensorFlow already uses the GPUs"):
        hub.hide_gpus_from_tensorflow()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("tfds:a/b/train", "tensorflow_datasets", "data"),
        ("hf:a/train", "datasets", "data"),
        ("sacrebleu:wmt14", "sacrebleu", "train"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, name, package, extra):
    for module in (package, f"{package}.dataset", f"{package}.translate"):
        monkeypatch.setitem(sys.modules, module, None)
    refuse(name, rf"needs the package {package}, .*pip install 'jaxformer\[{extra}\]'")
