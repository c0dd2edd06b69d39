"""One comparison of arguments with the shapes that a signature states."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Float, jaxtyped

from jaxformer.errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Arrays: TypeAlias = Iterable[tuple[str, Iterable[Any], Any]]


def check_shapes(**parameters: Mapping[str, Any]) -> Callable[[_Function], _Function]:
    """Refuse arrays of other axes or another kind of number than their annotations, in
    one line that names both; and what is no array or no function where one is needed.

    Args:
        parameters: the axes of each array in an argument that is a dict, such as
            ``params={"inner": {"kernel": "D F", "bias": "F"}}``. A bias may be absent,
            and what ends with ``?``.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        annotations = functools.cache(lambda: typing.get_type_hints(function))

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            arrays = _given(given, annotations(), parameters)
            compare(f"{function.__name__} takes", arrays)
            return function(*args, **kwargs)

        return typing.cast(_Function, checked)

    return decorate


def compare(title: str, arrays: _Arrays) -> None:
    """Compare arrays with their annotations, whose axes are the same in all.

    Args:
        title: the beginning of the line of an error, such as ``linear takes``.
        arrays: name, annotations and value of each.

    Raises:
        InputError: an array that has none of its annotations.
    """
    others, unknown = "", dict[Any, int]()
    with jaxtyped("context"):
        for name, annotations, value in arrays:
            kinds = tuple(x.dtype[Any, x.dim_str] for x in annotations)
            wanted = " or ".join(f"{x.dtype.__name__}[{x.dim_str}]" for x in kinds)
            if not hasattr(value, "dtype"):
                raise InputError(
                    f"{title} {name}: {wanted}, not {type(value).__name__}"
                )
            found = f"{value.dtype}{list(value.shape)}"
            if not isinstance(_form(value, unknown), kinds):
                raise InputError(f"{title} {name}: {wanted}, not {found}{others}")
            others += f", for {name}: {wanted} of {found}"


def _given(
    given: Mapping[str, Any],
    annotations: Mapping[str, Any],
    parameters: Mapping[str, Any],
) -> _Arrays:
    """Yield name, annotations and value of each array; the dicts last, which have the
    axes of the inputs.
    """
    for name, value in given.items():
        kinds = annotations[name]
        kinds = kinds.__args__ if isinstance(kinds, types.UnionType) else (kinds,)
        arrays = [kind for kind in kinds if hasattr(kind, "dim_str")]
        if type(value) in kinds:  # such as None, or a SegmentMask
            continue
        if arrays:
            yield name, arrays, value
        elif not callable(value) and Callable in [*map(typing.get_origin, kinds)]:
            raise InputError(f"{name} is a function of an array, not {value!r}")
    for name, axes in parameters.items():
        yield from _leaves(name, axes, given[name])


def _leaves(name: str, axes: Mapping[str, Any] | str, value: Any) -> _Arrays:
    if isinstance(axes, str):
        if hasattr(value, "dtype"):  # int8 weights have other axes
            yield name, (Float[Any, axes],), value
        return
    for key, more in axes.items():
        needed, key = not key.endswith("?") and key != "bias", key.removesuffix("?")
        if isinstance(value, Mapping) and key in value:
            yield from _leaves(f"{name}[{key!r}]", more, value[key])
        elif needed:
            raise InputError(
                f"{name} has no {key!r}: it takes {', '.join(axes)}, where ? is for"
                " those that may be absent"
            )


def _form(value: Any, unknown: dict[Any, int]) -> jax.ShapeDtypeStruct:
    """Return shape and kind of number: integers of every size are one. Each axis of no
    known size, as in an exported program, gets a number of its own.
    """
    whole = jnp.issubdtype(value.dtype, jnp.integer)
    shape = tuple(
        size if isinstance(size, int) else unknown.setdefault(size, 4096 + len(unknown))
        for size in value.shape
    )
    return jax.ShapeDtypeStruct(shape, jnp.int32 if whole else value.dtype)
