"""The tokens around the text of a sentence pair."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from jaxformer.data.config import DataConfig
from jaxformer.data.encoding import Tokenizer, encode
from jaxformer.data.frame import FILE, Frame, Template, make_frame
from jaxformer.data.records import Pair
from jaxformer.data.vocabulary import Vocabularies, Vocabulary

LANGUAGES = "en", "de_DE"
TEMPLATES = {
    "m2m": Template(
        ("{source}", "{text}", "{eos}"), ("{target}", "{text}", "{eos}"), "{eos}"
    ),
    "mbart": Template(("{text}", "{eos}", "{source}"), ("{text}", "{eos}"), "{target}"),
    "marian": Template(("{target}", "{text}", "{eos}"), start="{pad}"),
    "bart": Template(
        ("{bos}", "{text}", "{eos}"), ("{bos}", "{text}", "{eos}"), "{eos}"
    ),
}


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary.train(["a b c d e f"] * 9, 16, tags=LANGUAGES)


def both(name: str | None = None) -> Vocabularies:
    template = None if name is None else TEMPLATES[name]
    return Vocabularies(vocabulary(), vocabulary(), template)


def test_without_a_template_a_run_has_its_own_frame():
    """A tag if it has several languages, and the end of sentence if it is asked for."""
    pad, bos, eos = (
        getattr(vocabulary(), f"{name}_id") for name in ("pad", "bos", "eos")
    )
    assert make_frame(both(), LANGUAGES) == Frame((), (eos,), (), bos, eos)
    found = make_frame(both(), LANGUAGES, source_eos=False, tag="de_DE")
    assert found == Frame((vocabulary().tag_id("de_DE"),), (), (), bos, eos)
    assert pad not in (bos, eos)


@pytest.mark.parametrize(
    ("name", "source", "target", "start"),
    [
        ("m2m", "S text eos", "T text eos", "eos"),
        ("mbart", "text eos S", "text eos", "T"),
        ("marian", "T text eos", "text eos", "pad"),
        ("bart", "bos text eos", "bos text eos", "eos"),
    ],
)
def test_a_template_frames_both_sides(name, source, target, start):
    """Also in a chunk of training text, of which only pairs without text are empty. The
    code of a language may leave out what no other code has.
    """
    sides = vocabulary()
    ids = {key: getattr(sides, f"{key}_id") for key in ("pad", "bos", "eos")}
    ids |= {"S": sides.tag_id("en"), "T": sides.tag_id("de_DE")}
    pairs = [Pair("a b", "c d e"), Pair("\x07", "c"), Pair("f", "\x07")]
    frame = make_frame(both(name), ("en", "de"))
    assert frame.start == ids[start]
    expected = []
    for text, parts in ((pairs[0].source, source), (pairs[0].target, target)):
        own = {**{key: [id_] for key, id_ in ids.items()}, "text": sides.encode(text)}
        expected.append([token for part in parts.split() for token in own[part]])
    encoded = encode(pairs, both(name), source_eos=True, languages=("en", "de"))
    assert [encoded.source[0].tolist(), encoded.target[0].tolist()] == expected
    assert len(encoded.source[1]) == frame.added
    piece = Tokenizer(both(name), DataConfig(), LANGUAGES)(pairs)
    assert [list(piece.pairs.source[0]), list(piece.pairs.target[0])] == expected
    assert len(piece.pairs) == 1
    assert piece.counts.dropped["empty"] == 2


def test_the_template_is_kept_with_its_vocabularies(tmp_path):
    """It is a part of their hash; folders without one keep theirs."""
    template = dataclasses.replace(TEMPLATES["m2m"], banned=((3,), (4, 5)))
    given = Vocabularies(vocabulary(), vocabulary(), template)
    given.save(tmp_path)
    assert Vocabularies.load(tmp_path) == given
    assert Vocabularies.load(tmp_path).hash == given.hash
    assert len({both().hash, both("m2m").hash, both("bart").hash, given.hash}) == 4
    (tmp_path / FILE).unlink()
    assert Vocabularies.load(tmp_path).hash == both().hash
