"""What is known of policies written in Python."""

import dataclasses
import re
from collections.abc import Iterable

from . import _core


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter of a policy; configs give it as {"policy": NAME, PARAMETER: VALUE}, and the class
    gets it as a keyword argument of its constructor if a config does."""

    name: str
    documentation: str
    unit: str
    minimum: float
    maximum: float
    default: float | None = None


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What kvtier knows of a policy."""

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

_KNOWLEDGE = ("online", "look_ahead", "oracle")


def register(kind: str, base: type, name: str, policy: type, summary: str | None, source: str,
             knowledge: str, parameters: Iterable[Parameter], parts_of_entries: bool) -> None:
    """Notes a policy of the kind, whose classes are subclasses of `base`."""
    if not (isinstance(policy, type) and issubclass(policy, base)):
        raise TypeError(f"expected a subclass of kvtier.{base.__name__}, got {policy!r}")
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
    """Forgets a policy that was registered."""
    del _declarations[kind, name]


def declarations() -> list[Declaration]:
    """What is registered, in order."""
    return list(_declarations.values())
