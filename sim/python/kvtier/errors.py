"""The errors of kvtier. Each carries every problem that was found."""

from collections.abc import Iterable


class Error(Exception):
    """A run that could not be done; `problems` has a line for each reason."""

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        return type(self), (self.problems,)


class ConfigError(Error):
    """Bad input: a config, a sweep, a trace, a policy's declaration."""


class DeviceError(Error):
    """A file or device failed: full disk, no permission, a worker that was lost."""


class InternalError(Error):
    """A check of kvtier's own, or of a policy's bookkeeping, failed."""
