"""Every public name says what it does, its shapes and its source."""

import ast
import re

from documented_names import documented_names

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
    "models.transformer.Transformer": r"Vaswani et al\. 2017",
    "models.base.shift_right": r"section 3\.1\b",
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


def says_a_sentence(docstring):
    """Return whether a docstring begins with a sentence."""
    first = docstring.strip().split("\n\n")[0].strip()
    ends = (".", ":", "?", ".)", '."')
    return bool(re.match(r"[A-Z`:\"]", first)) and first.endswith(ends)


def bare_arrays(node):
    """Name the arrays of an annotation that come without their axes."""
    if node is None:
        return []
    if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in SHAPED:
        return []
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return [name] if name in BARE else []
    children = [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr)]
    return [name for child in children for name in bare_arrays(child)]


def lacks_shapes(name):
    """Return whether neither annotations nor docstring say the shape of an array."""
    node = name.node
    if isinstance(node, ast.ClassDef):
        return False
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    annotations = [*(argument.annotation for argument in arguments), node.returns]
    bare = any(map(bare_arrays, annotations))
    return bare and not SHAPE.search(f"{name.docstring} {name.module}")


def unsaid_errors(name):
    """Name the errors that a function raises itself and says nothing of."""
    said = name.docstring.partition("Raises:")[2]
    if name.path.startswith("jaxformer.diagnosis.checks."):
        said += "UnseenError"  # the docstring of the package says it
    said = said.replace("InputError", "InputError LineError")
    raised = set()
    waiting = [] if isinstance(name.node, ast.ClassDef) else list(name.node.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            raised.add(getattr(node.exc.func, "id", ""))
        waiting += ast.iter_child_nodes(node)
    return {error for error in raised if error[:1].isupper() and error not in said}


def test_every_public_name_has_a_docstring():
    """Arrays come with their shapes, and errors that a function raises are listed."""
    assert [one.path for one in NAMES if not says_a_sentence(one.docstring)] == []
    arrays = [one for one in NAMES if one.path.startswith(ARRAY_ROOMS)]
    assert [one.path for one in arrays if lacks_shapes(one)] == []
    assert {one.path: found for one in NAMES if (found := unsaid_errors(one))} == {}


def test_what_papers_define_names_them():
    """In which section, or by whom."""
    found = {
        one.path: f"{one.docstring} {one.module}".replace("\n", " ") for one in NAMES
    }
    sources = {path: found.get(f"jaxformer.{path}", "") for path in PAPER}
    assert [
        path for path, text in sources.items() if not re.search(PAPER[path], text)
    ] == []
