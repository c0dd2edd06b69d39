"""Every optimizer against its paper written down in NumPy, and what clipping, decay
and freezing do to it.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training.little import assert_trees_close, assert_trees_equal

from jaxformer.errors import InputError
from jaxformer.runs.training import TrainingConfig
from jaxformer.training.optimizer import (
    decay_mask,
    make_optimizer,
    update_average,
)
from jaxformer.training.schedules import paper_schedule
from jaxformer.training.state import create_state

D_MODEL = 64
# Names and shapes as the model has them: two of them are matrices to Adafactor, and the
# bias is none although it has two axes.
SHAPES = {
    "embedding/table": (48, 40),
    "encoder/attention/query/kernel": (40, 2, 33),
    "encoder/attention/query/bias": (2, 33),
    "encoder/attention/output/kernel": (2, 21, 40),
    "encoder/feed_forward/inner/kernel": (40, 6),
    "encoder/norm/scale": (40,),
}
DECAYED = [path for path in SHAPES if path.endswith(("table", "kernel"))]


def nested(flat):
    tree = {}
    for path, value in flat.items():
        *folders, name = path.split("/")
        folder = tree
        for part in folders:
            folder = folder.setdefault(part, {})
        folder[name] = np.asarray(value, np.float32)
    return tree


def flat(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def draw(seed, count=1):
    """Draw trees of the little shapes, rounded to float32 so that both sides begin
    with the same numbers.
    """
    normal = np.random.default_rng(seed).normal
    shapes = [SHAPES.items()] * count
    return [
        {path: normal(size=shape).astype(np.float32) for path, shape in each}
        for each in shapes
    ]


def adam_direction(config, gradient, memory, step):
    """Kingma and Ba 2015, algorithm 1."""
    b1, b2 = config.adam_b1, config.adam_b2
    memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * gradient
    memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * gradient**2
    first, second = memory["m"] / (1 - b1**step), memory["v"] / (1 - b2**step)
    return first / (np.sqrt(second) + config.adam_epsilon)


def lion_direction(config, gradient, memory, step):
    """Chen et al. 2023, program 1."""
    m = memory.get("m", np.zeros_like(gradient))
    memory["m"] = config.adam_b2 * m + (1 - config.adam_b2) * gradient
    return np.sign(config.adam_b1 * m + (1 - config.adam_b1) * gradient)


def adafactor_direction(config, gradient, memory, step):
    """Shazeer and Stern 2018, algorithms 4 and 5 with an absolute step size;
    matrices are those of 32 x 32 and more.
    """
    decay = 1 - step**-0.8
    square = gradient**2 + 1e-30
    axes = np.argsort(gradient.shape)[-2:]
    if gradient.ndim > 1 and min(gradient.shape[axis] for axis in axes) >= 32:
        for axis in axes:
            mean = square.mean(axis=axis, keepdims=True)
            memory[axis] = decay * memory.get(axis, 0.0) + (1 - decay) * mean
        rows, columns = (memory[axis] for axis in axes)
        second = rows * columns / rows.mean(axis=axes[1], keepdims=True)
    else:
        second = memory["v"] = decay * memory.get("v", 0.0) + (1 - decay) * square
    update = gradient / np.sqrt(second)
    return update / max(1.0, np.sqrt((update**2).mean()))


def sgd_direction(config, gradient, memory, step):
    """Polyak 1964, as torch.optim.SGD."""
    memory["m"] = config.momentum * memory.get("m", 0.0) + gradient
    return memory["m"]


def muon_direction(config, gradient, memory, step):
    """Jordan et al. 2024 with the momentum of Dozat 2016; 40 is the width of the model,
    and a kernel's other axes are heads and their width.
    """
    beta = config.momentum
    memory["m"] = beta * memory.get("m", 0.0) + (1 - beta) * gradient
    ahead = beta * memory["m"] / (1 - beta ** (step + 1))
    x = ahead + (1 - beta) * gradient / (1 - beta**step)
    x = x.reshape((40, -1) if len(x) == 40 else (-1, 40))
    x = x / np.linalg.norm(x)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return 0.2 * np.sqrt(max(x.shape)) * x.reshape(gradient.shape)


DIRECTIONS = {
    "adam": adam_direction,
    "adamw": adam_direction,
    "lion": lion_direction,
    "adafactor": adafactor_direction,
    "sgd": sgd_direction,
    "muon": muon_direction,
}


def by_hand(config, params, gradients):
    """Make the updates in float64: clip, find the direction, decay, and step at the
    rate of equation 3.
    """
    params = {path: np.asarray(value, np.float64) for path, value in params.items()}
    memories = {path: {} for path in params}
    for step, tree in enumerate(gradients, start=1):
        tree = {path: np.asarray(leaf, np.float64) for path, leaf in tree.items()}
        norm = np.sqrt(sum((gradient**2).sum() for gradient in tree.values()))
        clip = min(1.0, (config.gradient_clip or np.inf) / norm)
        rate = min(step**-0.5, step * config.warmup_steps**-1.5)
        rate *= config.learning_rate * D_MODEL**-0.5
        for path, gradient in tree.items():
            tables = config.optimizer == "muon" and not path.endswith("kernel")
            direct = DIRECTIONS["adam" if tables else config.optimizer]
            direction = direct(config, clip * gradient, memories[path], step)
            decay = config.weight_decay if path in DECAYED else 0.0
            params[path] = params[path] - rate * (direction + decay * params[path])
    return params


def run_optimizer(config, params, gradients):
    """Make the updates by the optimizer, in one compiled function as a step does; a
    broken gradient of a bad step changes no count and no moment.
    """
    optimizer = make_optimizer(config, D_MODEL)

    @jax.jit
    def update(gradient, state, params, good):
        updates, state = optimizer.update(gradient, state, params, good=good)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(params)
    for gradient in gradients:
        params, state = update(gradient, state, params, np.bool_(True))
        broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), gradient)
        _, after = update(broken, state, params, np.bool_(False))
        jax.tree.map(np.testing.assert_array_equal, after, state)
    return params, state


def moments(state):
    """Return the arrays of an optimizer's state that are no counts."""
    return [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]


RECIPES = [
    {"optimizer": "adam", "gradient_clip": 5.0},
    {"optimizer": "adamw", "weight_decay": 0.3, "adam_b1": 0.8, "adam_b2": 0.95}
    | {"adam_epsilon": 0.3},
    {"optimizer": "lion", "weight_decay": 0.2, "adam_b1": 0.95},
    {"optimizer": "adafactor", "weight_decay": 0.1, "gradient_clip": 5.0},
    {"optimizer": "sgd", "weight_decay": 0.1, "momentum": 0.8},
    {"optimizer": "muon", "weight_decay": 0.1, "momentum": 0.95},
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe["optimizer"])
def test_equals_its_paper_in_float64(recipe):
    """Four updates are those of the algorithm, with bad steps in between; decay is
    decoupled and spares biases and norms. Moments are float32. Adafactor keeps a row
    and a column of each matrix, an attention kernel's for each head.
    """
    config = TrainingConfig(warmup_steps=3, learning_rate=0.5, **recipe)
    params, *gradients = draw(1, 5)
    # The norms lie on both sides of the clip.
    gradients = [
        {path: scale * value for path, value in gradient.items()}
        for scale, gradient in zip(
            np.float32([0.01, 1.0, 0.05, 3.0]), gradients, strict=True
        )
    ]
    found, state = run_optimizer(config, nested(params), map(nested, gradients))
    expected = by_hand(config, params, gradients)
    assert_trees_close(flat(found), expected, rtol=2e-5, atol=2e-6)
    assert {leaf.dtype for leaf in moments(state)} == {jnp.dtype("float32")}
    if recipe["optimizer"] == "adafactor":
        kept = state[1][0]
        for path, shapes in (
            ("embedding/table", [(40,), (48,)]),
            ("encoder/attention/query/kernel", [(2, 33), (40, 2)]),
        ):
            vectors = [flat(part)[path].shape for part in (kept.v_row, kept.v_col)]
            assert sorted(vectors) == shapes
            assert flat(kept.v)[path].shape == (1,)


@pytest.mark.parity
def test_sgd_is_that_of_pytorch():
    """Updates under a constant rate are those of torch.optim.SGD."""
    torch = pytest.importorskip("torch", reason="needs the extra `parity`")
    params, *gradients = draw(8, 5)
    theirs = {path: torch.nn.Parameter(torch.tensor(params[path])) for path in params}
    optimizer = torch.optim.SGD(theirs.values(), lr=0.3, momentum=0.7)
    for gradient in gradients:
        for path, value in theirs.items():
            value.grad = torch.tensor(gradient[path])
        optimizer.step()
    recipe = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.3}
    config = TrainingConfig(optimizer="sgd", momentum=0.7, **recipe)
    found, _ = run_optimizer(config, nested(params), map(nested, gradients))
    expected = {path: value.detach().numpy() for path, value in theirs.items()}
    assert_trees_close(flat(found), expected, rtol=1e-6, atol=1e-6)


def test_the_default_is_adam_of_the_paper():
    """By default the optimizer is optax.adam under equation 3, bit for bit, its
    state too.
    """
    params, *gradients = map(nested, draw(2, 2))
    plain = optax.adam(paper_schedule(D_MODEL, 4_000), b1=0.9, b2=0.98, eps=1e-9)
    found, expected = (
        jax.jit(lambda given, of=of: of.update(given, of.init(params), params))(
            gradients[0]
        )
        for of in (make_optimizer(TrainingConfig(), D_MODEL), plain)
    )
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_what_decays_in_a_model(make_model):
    """Kernels and embeddings decay, and biases and norms do not, of whatever
    dimension they are.
    """
    for changes in ({}, {"tied_embeddings": "none", "positions": "learned"}):
        params = jax.eval_shape(
            functools.partial(create_state, make_model(**changes), TrainingConfig())
        ).params
        names = {True: set(), False: set()}
        for path, decays in jax.tree_util.tree_leaves_with_path(decay_mask(params)):
            names[decays].add(path[-1].key)
        assert names[False] == {"bias", "scale"}
        assert names[True] == {"kernel", "table"} | ({"output"} if changes else set())


@pytest.mark.parametrize("optimizer", ["adam", "adafactor"])
def test_frozen_parameters_are_as_if_they_were_not_there(optimizer):
    """They keep every bit, have no moments and do not count in the norm; the others
    are trained as if alone.
    """
    config = {"optimizer": optimizer, "gradient_clip": 3.0, "warmup_steps": 2}
    trained = ("encoder/feed_forward/inner/kernel", "encoder/norm/scale")
    params, *gradients = draw(5, 3)
    frozen = TrainingConfig(**config, frozen="embedding/*, encoder/att*")
    found, state = run_optimizer(frozen, nested(params), map(nested, gradients))
    others, *gradients = (
        nested({path: tree[path] for path in trained}) for tree in (params, *gradients)
    )
    expected, alone = run_optimizer(TrainingConfig(**config), others, gradients)
    for path, value in flat(found).items():
        like = flat(expected) if path in trained else params
        np.testing.assert_array_equal(value, like[path])
    for mine, theirs in zip(moments(state), moments(alone), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ("encoder/*,embeding/*", r"'embeding/\*'; the nearest is embedding/\*$"),
        ("encoder/atention/*", r"'encoder/atention/\*'; .* is encoder/attention/\*$"),
        ("encoder/norm/Scale", r"'encoder/norm/Scale'; .* is encoder/norm/scale$"),
        ("encoder/*,", r"no parameter matches ''; the nearest is "),
        ("encoder/*,embedding/*", r"every parameter.* such as encoder/norm/scale$"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(patterns, message):
    """A pattern without a parameter, and patterns that leave nothing to train, end
    in one line before any update.
    """
    optimizer = make_optimizer(TrainingConfig(frozen=patterns), D_MODEL)
    with pytest.raises(InputError) as refusal:
        jax.eval_shape(optimizer.init, nested(draw(7)[0]))
    # and not `match`, which reads the notes that JAX adds, too
    assert re.search(message, str(refusal.value))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9999])
def test_an_average_equals_its_definition_in_float64(decay):
    """Each parameter's weight is what the decays of all later updates leave of it. The
    average of what does not change is it, bit for bit. After many updates the share of
    the newest is 1 - decay to six digits, not float32's 1 - 0.9999.
    """
    steps = np.random.default_rng(0).normal(size=(61, 6))
    path = steps.cumsum(axis=0).astype(np.float32)
    average, expected = {"kernel": path[0]}, path[0].astype(np.float64)
    update = jax.jit(update_average, static_argnames="decay")
    for made, params in enumerate(path[1:]):
        average = update(average, {"kernel": params}, decay, np.int32(made))
        kept = min(decay, (1 + made) / (10 + made))
        expected = kept * expected + (1 - kept) * params
        np.testing.assert_allclose(average["kernel"], expected, rtol=2e-6, atol=2e-6)
    assert average["kernel"].dtype == jnp.float32
    with jax.numpy_dtype_promotion("strict"):
        assert_trees_equal(update(average, average, decay, np.int32(10**5)), average)
        moved = update_average(np.zeros(()), np.ones(()), decay, updates=10**7)
    assert float(moved) == pytest.approx(1.0 - decay, rel=1e-6)
