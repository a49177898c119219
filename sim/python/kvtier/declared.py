"""Declarations of policies written in Python."""

import dataclasses
import re
from collections.abc import Iterable

from . import _core


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a policy. Configs set it with {"policy": NAME, PARAMETER: VALUE}. The
    constructor of the class gets it as a keyword argument only if a config sets it."""

    name: str
    documentation: str
    unit: str
    minimum: float
    maximum: float
    default: float | None = None


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A registered policy: its class and its description."""

    kind: str
    name: str
    policy: type
    base: type
    summary: str
    source: str
    knowledge: str
    parameters: tuple[Parameter, ...]
    parts_of_entries: bool


# Policies that configs of this process and of its sweeps' workers can name, by kind and name.
_declarations: dict[tuple[str, str], Declaration] = {}

# The methods that have no default.
_REQUIRED = {"eviction": ("on_insert", "on_remove", "choose"), "admission": ("admits",),
             "prefetch": ("next_fetch",), "order": ("next",), "routing": ("choose",)}

_KNOWLEDGE = ("online", "look_ahead", "oracle")


def register(kind: str, base: type, name: str, policy: type, summary: str | None, source: str,
             knowledge: str, parameters: Iterable[Parameter], parts_of_entries: bool) -> None:
    """Registers a policy of the kind, a subclass of `base`."""
    if not (isinstance(policy, type) and issubclass(policy, base)):
        raise TypeError(f"expected a subclass of kvtier.{base.__name__}, got {policy!r}")
    missing = [method for method in _REQUIRED[kind]
               if getattr(policy, method) is getattr(base, method)]
    if missing:
        raise TypeError(f"{policy.__name__}: expected a method {', '.join(missing)}")
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError(f"expected a name of small letters, digits and underscores, got {name!r}")
    if name in _core.policies([], [])[kind]:
        article = "an" if kind[0] in "aeiou" else "a"
        raise ValueError(f"kvtier has {article} {kind} policy of the name {name!r} already")
    if knowledge not in _KNOWLEDGE:
        raise ValueError(f"knowledge: expected one of {', '.join(_KNOWLEDGE)}, got {knowledge!r}")
    text = summary or (policy.__doc__ or name).strip().splitlines()[0]
    _declarations[kind, name] = Declaration(kind, name, policy, base, text, source, knowledge,
                                            tuple(parameters), parts_of_entries)


def unregister(kind: str, name: str) -> None:
    """Removes a registered policy."""
    del _declarations[kind, name]


def declarations() -> list[Declaration]:
    """All registered policies, in order of registration."""
    return list(_declarations.values())
