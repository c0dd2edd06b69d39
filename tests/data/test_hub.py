import sys
import types

import pytest
from pairs import refuse, run

from jaxformer.data import hub


def test_gpus_are_hidden_from_tensorflow(monkeypatch):
    """Where TensorFlow is loaded it sees no GPU."""
    calls = []
    config = types.SimpleNamespace(
        set_visible_devices=lambda devices, kind: calls.append((devices, kind))
    )
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    hub.hide_gpus_from_tensorflow()
    assert calls == [([], "GPU")]


def test_tensorflow_that_came_first_is_reported(monkeypatch):
    """What can no longer be hidden is said."""

    def refuse_to(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    config = types.SimpleNamespace(set_visible_devices=refuse_to)
    monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
    with pytest.warns(UserWarning, match="TensorFlow already uses the GPUs"):
        hub.hide_gpus_from_tensorflow()


def test_tensorflow_is_not_imported_to_hide_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    hub.hide_gpus_from_tensorflow()
    assert "tensorflow" not in sys.modules


def test_importing_the_data_room_imports_no_hub():
    """Neither the package nor its data room loads TensorFlow, TFDS, `datasets` or
    torch.
    """
    heavy = (
        "('tensorflow', 'tensorflow_datasets', 'torch', 'datasets', 'sacrebleu',"
        " 'pyarrow')"
    )
    code = (
        f"import sys, jaxformer, jaxformer.data.hub; print([name for name in {heavy} if"
        " name in sys.modules])"
    )
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("tfds:a/b/train", "tensorflow_datasets", "tfds"),
        ("hf:a/train", "datasets", "hf"),
        ("sacrebleu:wmt14", "sacrebleu", "train"),
    ],
)
def test_a_missing_package_names_its_extra(monkeypatch, name, package, extra):
    for module in (package, f"{package}.dataset", f"{package}.translate"):
        monkeypatch.setitem(sys.modules, module, None)
    refuse(name, rf"needs the package {package}, .*pip install 'jaxformer\[{extra}\]'")
