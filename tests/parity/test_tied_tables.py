"""Files with several tables where the settings tie them, read as by transformers."""

# pyright: reportOptionalMemberAccess=false

import itertools

import numpy as np
import pytest
from interop import folders

from jaxformer.errors import InputError
from jaxformer.interop import huggingface

try:
    import transformers
except ModuleNotFoundError:  # collected all the same, so that they can be counted
    transformers = None

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(transformers is None, reason="needs the extra `parity`"),
]

SIDES = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
NAMES = ["model.shared.weight", *SIDES, "lm_head.weight"]
DRAWN = np.random.RandomState(0).randn(4, folders.SIZE, folders.WIDTH).astype("f4")


def patterns():
    """Give every choice of names, each with every way in which some are equal."""
    for count in range(1, 5):
        for names in itertools.combinations(NAMES, count):
            for values in itertools.product(range(count), repeat=count):
                if all(x <= max((-1, *values[:i])) + 1 for i, x in enumerate(values)):
                    yield dict(zip(names, values, strict=True))


def number(tables):
    """Return which of the drawn tables each is; None: transformers drew it anew."""
    same = [[np.array_equal(x, own) for own in DRAWN] for x in tables]
    return [row.index(True) if any(row) else None for row in same]


def theirs(folder, family):
    model = getattr(transformers, folders.CLASSES[family]).from_pretrained(folder)
    inner = model.model
    modules = inner.encoder.embed_tokens, inner.decoder.embed_tokens, model.lm_head
    return number([each.weight.detach().numpy() for each in modules])


def ours(folder):
    found = huggingface.read(folder)
    if found.config.tied_embeddings == "all":
        return number([found.params["embedding"]["table"]] * 3)
    both = [found.params[f"{x}_embedding"]["table"] for x in ("source", "target")]
    return number([*both, found.params.get("output", both[1])])


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("bart", {}),
        ("bart", {"tie_word_embeddings": False}),
        ("marian", {"share_encoder_decoder_embeddings": False}),
    ],
)
def test_every_choice_of_tables(tmp_path, family, settings):
    """Where transformers has all three tables from the file, ours are the same. Where
    it would draw one, ours is refused, or is the shared table that it was before 5.
    """
    tensors, read = folders.draw_tensors(family), 0
    del tensors["model.shared.weight"]
    for pattern in patterns():
        given = tensors | {name: DRAWN[i] for name, i in pattern.items()}
        folders.make_folder(tmp_path, family, given, **settings)
        expected = theirs(tmp_path, family)
        try:
            found = ours(tmp_path)
        except InputError:
            assert None in expected, pattern
            continue
        read += 1
        shared = pattern.get(NAMES[0])
        assert found == [shared if x is None else x for x in expected], pattern
    assert read > 20
