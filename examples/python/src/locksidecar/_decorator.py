"""`@locked("nightly-report", wait=0)`"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast

from ._model import Mode, Seconds

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
    wait: Seconds | None,
    owner: str | None,
    reentrant: bool,
    max_hold: Seconds | None,
    min_hold: Seconds | None,
    mode: Mode | str,
    limit: int | None,
) -> Callable[[F], F]:
    """See Client.locked. The client is asked for when the function is called, not when it is defined."""
    if not callable(resource) and not isinstance(resource, str):
        raise TypeError(f"@locked needs the name of a resource, or a function that makes it, and not {resource!r}")

    def lock(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
        name = resource if isinstance(resource, str) else resource(*args, **kwargs)
        return client().lock(
            name,
            wait=wait,
            owner=owner,
            reentrant=reentrant,
            max_hold=max_hold,
            min_hold=min_hold,
            mode=mode,
            limit=limit,
        )

    def decorate(*functions: F) -> F:
        if len(functions) != 1 or not callable(functions[0]):  # @locked without a name took the function for it
            raise TypeError('@locked needs the name of a resource: @locked("nightly-report")')
        function = functions[0]
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator does not run when it is called: take the lock inside of it")

        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                async with lock(args, kwargs):
                    return await cast(Any, function)(*args, **kwargs)

            return cast(F, run_async)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with lock(args, kwargs):
                result = function(*args, **kwargs)
                if inspect.isawaitable(result):
                    if inspect.iscoroutine(result):
                        result.close()
                    raise TypeError("what it returns would run without the lock: declare the function with async def")
                return result

        return cast(F, run)

    return decorate
