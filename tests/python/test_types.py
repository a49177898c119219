import pathlib
import subprocess
import sys

import pytest

import kvtier

pytest.importorskip("mypy")


def test_the_stubs_are_those_of_the_module(tmp_path):
    # The classes of pybind11 have a metaclass and an __init__ of its own.
    known = tmp_path / "known"
    classes = "|".join(name for name, value in vars(kvtier._core).items() if isinstance(value, type))
    known.write_text(rf"kvtier\._core\.({classes})(\.__init__)?" "\n")
    done = subprocess.run([sys.executable, "-m", "mypy.stubtest", "kvtier._core", "--allowlist",
                           known],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed(tmp_path):
    user = tmp_path / "user.py"
    user.write_text("import kvtier\n"
                    "rate: float = kvtier.simulate('run.json')['metrics']['turns']\n"
                    "names: dict[str, list[str]] = kvtier.policies()\n"
                    "kvtier.simulate(7)\n")
    assert (pathlib.Path(kvtier.__file__).parent / "py.typed").exists()
    done = subprocess.run([sys.executable, "-m", "mypy", user], capture_output=True, text=True,
                          check=False, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1 and "user.py:4" in errors[0], done.stdout
