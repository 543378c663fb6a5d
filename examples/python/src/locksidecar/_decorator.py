"""`@locked("nightly-report", wait=0)`"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from ._model import Mode

if TYPE_CHECKING:
    from ._client import Client
    from ._lock import Lock

F = TypeVar("F", bound=Callable[..., object])

# A name, or a function that makes one of the arguments of the call.
Resource = Union[str, Callable[..., str]]


def locked(
    client: Callable[[], Client],
    resource: Resource,
    *,
    wait: float | None,
    owner: str | None,
    reentrant: bool,
    max_hold: float | None,
    mode: Mode,
) -> Callable[[F], F]:
    """See Client.locked. The client is asked for when the function is called, not when it is defined."""

    def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
        name = resource if isinstance(resource, str) else resource(*args, **kwargs)
        return client().lock(name, wait=wait, owner=owner, reentrant=reentrant, max_hold=max_hold, mode=mode)

    def decorate(function: F) -> F:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator does not run when it is called: take the lock inside of it")

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with lock(args, kwargs):
                    return await function(*args, **kwargs)

            return cast(F, run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with lock(args, kwargs):
                return function(*args, **kwargs)

        return cast(F, run)

    return decorate
