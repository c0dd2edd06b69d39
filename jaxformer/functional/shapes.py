"""One comparison of arguments with the shapes that a signature states."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import AbstractArray, Float, jaxtyped

from jaxformer.errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Kinds: TypeAlias = tuple[type[AbstractArray], ...]


def check_shapes(**parameters: Mapping[str, Any]) -> Callable[[_Function], _Function]:
    """Refuse arrays of other axes or another kind of number than their annotations, in
    one line that names both.

    Args:
        parameters: the axes of each array in an argument that is a dict, such as
            ``params={"inner": {"kernel": "D F", "bias": "F"}}``. A bias may be absent,
            and what ends with ``?``.
    """

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)

        @functools.cache
        def annotations() -> dict[str, Any]:
            return typing.get_type_hints(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            arrays = []
            with jaxtyped("context"):
                for name, kinds, value in _arrays(given, annotations(), parameters):
                    found = f"{value.dtype}{list(value.shape)}"
                    wanted = " or ".join(
                        f"{kind.dtype.__name__}[{kind.dim_str}]" for kind in kinds
                    )
                    if not isinstance(_form(value), kinds):
                        others = "".join(f", for {array}" for array in arrays)
                        raise InputError(
                            f"{function.__name__} takes {name}: {wanted}, not"
                            f" {found}{others}"
                        )
                    arrays.append(f"{name}: {wanted} of {found}")
            return function(*args, **kwargs)

        return typing.cast(_Function, checked)

    return decorate


def _arrays(
    given: Mapping[str, Any],
    annotations: Mapping[str, Any],
    parameters: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, _Kinds, Any]]:
    """Yield name, annotation and value of each array; the dicts last, which have the
    axes of the inputs.
    """
    for name, value in given.items():
        if hasattr(value, "dtype"):
            kinds = typing.get_args(annotations[name]) or (annotations[name],)
            kinds = tuple(
                kind.dtype[Any, kind.dim_str]
                for kind in kinds
                if isinstance(kind, type) and issubclass(kind, AbstractArray)
            )
            if kinds:
                yield name, kinds, value
    for name, axes in parameters.items():
        yield from _leaves(name, axes, given[name])


def _leaves(
    name: str, axes: Mapping[str, Any] | str, value: Any
) -> Iterator[tuple[str, _Kinds, Any]]:
    if isinstance(axes, str):
        if hasattr(value, "dtype"):  # int8 weights have other axes
            yield name, (Float[Any, axes],), value
        return
    for key, more in axes.items():
        needed, key = not key.endswith("?") and key != "bias", key.removesuffix("?")
        if key in value:
            yield from _leaves(f"{name}[{key!r}]", more, value[key])
        elif needed:
            raise InputError(
                f"{name} has no {key!r}: it takes {', '.join(axes)}, where ? is for"
                " those that may be absent"
            )


def _form(value: Any) -> jax.ShapeDtypeStruct:
    """Return shape and kind of number: integers of every size are one."""
    whole = jnp.issubdtype(value.dtype, jnp.integer)
    return jax.ShapeDtypeStruct(value.shape, jnp.int32 if whole else value.dtype)
