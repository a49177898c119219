"""The errors of kvtier. Each has a list of all problems found."""

from collections.abc import Iterable


class Error(Exception):
    """Base class of kvtier's errors. `problems` has a line for each problem."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        return type(self), (self.problems,)


class ConfigError(Error):
    """Invalid input: a config, a sweep, a trace, or a policy's declaration."""


class DeviceError(Error):
    """A file, a device or a worker failed, such as a full disk."""


class InternalError(Error):
    """An internal check of kvtier or of a policy's bookkeeping failed."""
