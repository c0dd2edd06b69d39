"""Every public name says what it does, what shapes it takes, and where it is from."""

import ast
import re

import pytest
from documented_names import documented_names, names_of

NAMES = documented_names()
ARRAY_ROOMS = tuple(
    f"jaxformer.{room}."
    for room in ("functional", "nn", "models", "search", "translation")
)

# What the paper defines, and where; the docstring of the name or of its module says so.
PAPER = {
    "functional.attention.dot_product_attention": r"equation 1\b",
    "functional.attention.multi_head_attention": r"section 3\.2\.2",
    "functional.attention.project_keys_values": r"section 3\.2\.2",
    "functional.layers.feed_forward": r"equation 2\b",
    "functional.layers.layer_norm": r"Ba et al\. 2016",
    "functional.layers.embed": r"section 3\.4",
    "functional.layers.project_to_vocabulary": r"section 3\.4",
    "functional.losses.cross_entropy": r"section 5\.4",
    "functional.losses.smoothed_probabilities": r"section 5\.4",
    "functional.masks.causal_mask": r"section 3\.2\.3",
    "functional.positions.sinusoidal": r"section 3\.5",
    "functional.positions.learned": r"section 3\.5",
    "nn.attention.MultiHeadAttention": r"section 3\.2\.2",
    "nn.blocks.FeedForward": r"section 3\.3",
    "nn.blocks.Residual": r"section 3\.1.*5\.4",
    "nn.blocks.EncoderLayer": r"section 3\.1",
    "nn.blocks.DecoderLayer": r"section 3\.1",
    "nn.embedding.Embedding": r"section 3\.4",
    "nn.embedding.Positions": r"section 3\.5",
    "nn.stacks.Encoder": r"section 3\.1",
    "nn.stacks.Decoder": r"section 3\.1",
    "models.config.TransformerConfig": r"table 3",
    "models.seq2seq.Transformer": r"Vaswani et al\. 2017",
    "models.seq2seq.shift_right": r"section 3\.1\b",
    "training.schedules.paper_schedule": r"equation 3\b",
    "training.optimizer.make_optimizer": r"section 5\.3",
    "checkpoints.average.average": r"section 6\.1",
    "search.config.DecodingConfig": r"section 6\.1",
    "search.scoring.length_penalty": r"Wu et al\. 2016",
    "search.scoring.coverage_penalty": r"Wu et al\. 2016",
    "search.single.keep_top_k": r"Fan et al\. 2018",
    "search.single.keep_top_p": r"Holtzman et al\. 2020",
    "search.single.keep_epsilon": r"Hewitt et al\. 2022",
    "search.constraints.ban_repeated_ngrams": r"Paulus et al\. 2018",
    "search.constraints.penalise_repetition": r"Keskar et al\. 2019",
    "search.constraints.require_phrases": r"Post and Vilar 2018",
    "translation.rerank.choose": r"\d{4}",
    "evaluation.significance.compare_bootstraps": r"Koehn.*2004",
    "evaluation.significance.randomize": r"\d{4}",
}

SHAPE = re.compile(
    r"\[[^\]]*\]|\bshape|\bscalar|\bpytree|\btree|\barray of\b|\baxis\b|\baxes\b"
)
SHAPED = {"Float", "Bool", "Int", "UInt32", "Shaped", "Key"}
BARE = {"Array", "PyTree", "ndarray"}


def says_a_sentence(docstring: str) -> bool:
    """Whether a docstring begins with a sentence: a capital letter, and a full stop
    or colon where it ends.
    """
    first = docstring.strip().split("\n\n")[0].strip()
    return bool(re.match(r"[A-Z`:\"]", first)) and first.endswith(
        (".", ":", "?", ".)", '."')
    )


def bare_arrays(node: ast.expr | None) -> list[str]:
    """Name the arrays of an annotation that come without their axes."""
    if node is None:
        return []
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in SHAPED
    ):
        return []
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return [name] if name in BARE else []
    return [
        name
        for child in ast.iter_child_nodes(node)
        if isinstance(child, ast.expr)
        for name in bare_arrays(child)
    ]


def lacks_shapes(name) -> bool:
    """Whether a function takes or gives an array of which neither the annotation nor
    the docstring says the shape.
    """
    node = name.node
    if isinstance(node, ast.ClassDef):
        return False
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    bare = [
        kind for argument in arguments for kind in bare_arrays(argument.annotation)
    ] + bare_arrays(node.returns)
    return (
        bool(bare)
        and not SHAPE.search(name.docstring)
        and not SHAPE.search(name.module)
    )


def unsaid_errors(name) -> set[str]:
    """Name the errors that a function raises itself, by their class, and says
    nothing of.
    """
    said = name.docstring.partition("Raises:")[2].replace(
        "InputError", "InputError LineError"
    )
    raised, waiting = (
        set(),
        [] if isinstance(name.node, ast.ClassDef) else list(name.node.body),
    )
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if (
            isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and isinstance(node.exc.func, ast.Name)
        ):
            raised.add(node.exc.func.id)
        waiting += ast.iter_child_nodes(node)
    return {error for error in raised if error[0].isupper() and error not in said}


def test_every_public_name_has_a_docstring():
    """Every public function, class and method has a docstring that begins with a
    sentence.
    """
    assert [name.path for name in NAMES if not says_a_sentence(name.docstring)] == []


def test_arrays_come_with_their_shapes():
    """In the rooms of arrays each argument and result has its axes in its type, or
    in the docstring.
    """
    assert [
        name.path
        for name in NAMES
        if name.path.startswith(ARRAY_ROOMS) and lacks_shapes(name)
    ] == []


def test_errors_are_said():
    """What a function raises itself stands under ``Raises``; a line error is an
    input error.
    """
    assert {
        name.path: errors for name in NAMES if (errors := unsaid_errors(name))
    } == {}


@pytest.mark.parametrize("path", PAPER)
def test_what_papers_define_names_them(path):
    """What the paper or another defines says in which section, or by whom."""
    found = [name for name in NAMES if name.path == f"jaxformer.{path}"]
    assert len(found) == 1, f"{path} is no longer there"
    assert re.search(
        PAPER[path], f"{found[0].docstring} {found[0].module}".replace("\n", " ")
    )


def test_the_checks_can_fail():
    """A missing docstring, a fragment, and an array without a shape are found; what
    is right is let pass.
    """
    source = '''
def a(x: Array) -> None:
    """Take something."""
def b(x: Array) -> None:
    """Take something [B, T].

    Raises:
        KeyError: it does.
    """
    if x:
        raise ValueError(x)
    raise KeyError(x)
def c(x: Float[Array, "B"]) -> dict[str, jax.Array]:
    """of a fragment"""
def _d(): pass
def e(x: Float[Array, "B"]) -> tuple[Int[Array, "B"], int]: pass
class F:
    """A class."""
    def g(self): pass
'''
    names = names_of("m", source)
    assert [name.path for name in names] == ["m.a", "m.b", "m.c", "m.e", "m.F", "m.F.g"]
    assert [name.path for name in names if not says_a_sentence(name.docstring)] == [
        "m.c",
        "m.e",
        "m.F.g",
    ]
    assert [name.path for name in names if lacks_shapes(name)] == ["m.a", "m.c"]
    assert [unsaid_errors(name) for name in names] == [
        set(),
        {"ValueError"},
        set(),
        set(),
        set(),
        set(),
    ]
