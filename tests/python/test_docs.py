import json
import re

import pytest

import kvtier
from conftest import ROOT, RUN


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_examples_run(page, tmp_path, monkeypatch, sweep_file, cluster):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-run.json").write_text(json.dumps(RUN))
    blocks = python_blocks(page)
    assert blocks
    for block in blocks:
        # A smaller sweep, which ends soon.
        exec(block.replace("configs/sweeps/systems.json", sweep_file.name), {})
    if "my_lru" in kvtier.policies()["eviction"]:
        kvtier.unregister_eviction_policy("my_lru")


def test_presets_and_headers_come_with_the_package():
    from pathlib import Path

    assert (Path(kvtier.config_dir()) / "models/llama2-13b.json").is_file()
    assert (Path(kvtier.include_dir()) / "sim/policy/plugin.hpp").is_file()
    assert (Path(kvtier.include_dir()) / "sim/core/assert.hpp").is_file()
