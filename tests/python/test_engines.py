"""The programs of tests/engines, as far as they need no engine."""

import argparse
import gzip
import json
import subprocess
import sys

import pytest

from conftest import ROOT

FOLDER = ROOT / "tests" / "engines"
sys.path.insert(0, str(FOLDER))

import check_engines
import oracle_files
import unit_tables


def test_all_tables_of_units_hold_on_the_models():
    result = subprocess.run([sys.executable, FOLDER / "unit_tables.py"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 differ\n" in result.stdout


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_names_of_tables_are_unique(engine):
    tables = json.loads((ROOT / f"configs/engines/{engine}_unit.json").read_text())["tables"]
    assert len({table["name"] for table in tables}) == len(tables)


def test_a_wrong_result_is_found():
    # 4 blocks of 16 tokens for 55 tokens, so 3 cannot be right.
    table = {"name": "wrong", "source": "none", "system": {"kind": "gpu", "block_tokens": 16, "gpu_blocks": 10},
             "calls": [{"call": "request", "request": "r0", "prompt": [["a", 55]]},
                       {"call": "allocate", "request": "r0", "tokens": 55, "expect": {"fits": True, "new_blocks": 3}}]}
    assert unit_tables.run_table(unit_tables.MODELS, table) == ["call 1 (allocate): new_blocks is 4, expected 3"]


def test_an_unknown_result_is_no_success():
    table = {"name": "unknown", "source": "none", "system": {"kind": "gpu", "block_tokens": 16, "gpu_blocks": 10},
             "calls": [{"call": "check", "expect": {"fre_blocks": 10}}]}
    with pytest.raises(unit_tables.TableError, match="nothing is known of fre_blocks"):
        unit_tables.run_table(unit_tables.MODELS, table)


def test_oracle_files_are_named_after_trace_and_sizes():
    assert oracle_files.trace_name("data/mooncake_1000.jsonl.gz") == "mooncake1000"
    assert oracle_files.trace_name("mooncake_conversation.jsonl") == "conversation"
    assert oracle_files.trace_name("my-trace.jsonl") == "mytrace"
    assert [oracle_files.size_name(size) for size in (5 << 20, 1 << 18, None)] == ["5Mi", "256Ki", "inf"]
    assert oracle_files.tier_sizes_name(1 << 20, 0) == "g1Mi_c0Mi"
    assert oracle_files.tier_sizes_name(1 << 18, 1 << 20) == "g256Ki_c1024Ki"


def test_a_cut_trace_is_named_after_its_length(tmp_path):
    cut = oracle_files.cut_trace(ROOT / "tests/data/mooncake_1000.jsonl.gz", 7, tmp_path)
    assert oracle_files.trace_name(cut) == "mooncake10007"
    requests = oracle_files.read_trace(cut)
    assert len(requests) == 7
    assert len(requests[6].prompt()) == requests[6].prompt_length


def test_written_oracles_read_back_and_have_the_same_bytes(tmp_path):
    columns = [("req", [0, 1]), ("hit_1Mi", [0, 512])]
    for name in ("a.csv.gz", "b.csv.gz"):
        oracle_files.write_columns(tmp_path / name, columns)
    assert oracle_files.read_columns(tmp_path / "a.csv.gz") == dict(columns)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()) == b"req,hit_1Mi\n0,0\n1,512\n"


def test_differing_rows_are_told(tmp_path, capsys):
    made, recorded = tmp_path / "made", tmp_path / "recorded"
    for folder, hits in ((made, [0, 512, 512]), (recorded, [0, 512, 1024, 7])):
        folder.mkdir()
        oracle_files.write_columns(folder / "x.csv.gz", [("req", list(range(len(hits)))), ("hit_gpu", hits)])
    assert not check_engines.compare_with_recorded(made, recorded)
    assert capsys.readouterr().out == ("recorded: x.csv.gz: 3 rows, 1 different\n"
                                       "    request 2: hit_gpu 512, recorded 1024\n")


def test_an_engine_that_cannot_be_installed_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("PIP_RETRIES", "0")
    engine = check_engines.Engine("vllm", "0.0.0.dev0", [], disk=0)
    with pytest.raises(check_engines.Failure, match="pip could not install vllm==0.0.0.dev0; is PyPI within reach?"):
        check_engines.install(engine, tmp_path / "venv")


def test_an_engine_needs_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(check_engines, "make_venv", lambda venv: venv.mkdir())
    monkeypatch.setattr(check_engines, "installed_version", lambda venv, package: None)
    with pytest.raises(check_engines.Failure, match="vllm needs about .* GiB of disk"):
        check_engines.install(check_engines.Engine("vllm", "", [], disk=1 << 60), tmp_path / "venv")


def test_engines_and_versions_are_chosen():
    chosen = argparse.Namespace(engines="lmcache,sglang", vllm="", sglang="0.5.23,0.5.10", lmcache="")
    engines = check_engines.engines_of(chosen)
    assert [engine.requirement() for engine in engines] == ["sglang==0.5.23", "sglang==0.5.10", "lmcache"]
    # One virtual environment with torch serves both.
    assert len({engine.venv for engine in engines}) == 1
    chosen.engines = "sglang,tgi"
    with pytest.raises(check_engines.Failure, match="no engine tgi; there are: vllm, sglang, lmcache"):
        check_engines.engines_of(chosen)


def test_needs_are_installed_in_the_versions_that_an_engine_requires():
    lines = ["torch_memory_saver>=0.0.9", "torch==2.14.1", "numpy", 'psutil>=5; extra == "metrics"']
    assert check_engines.chosen_requirement("torch", lines) == "torch==2.14.1"
    assert check_engines.chosen_requirement("numpy", lines) == "numpy"
    assert check_engines.chosen_requirement("psutil", lines) == "psutil"


def test_an_installed_torch_stays(tmp_path, monkeypatch):
    installed = {"torch": "2.9.1"}
    monkeypatch.setattr(check_engines, "installed_version", lambda venv, name: installed.get(name))
    monkeypatch.setattr(check_engines, "python_of", lambda venv: sys.executable)
    engine = check_engines.Engine("no-such-engine", "", [], ["numpy", "torch"])
    assert check_engines.requirements(tmp_path, engine) == ["numpy"]
    installed.clear()
    assert check_engines.requirements(tmp_path, engine) == ["numpy", "torch"]


def test_sglang_with_hiradix_has_cases_of_its_own(tmp_path):
    assert check_engines.sglang_cases(tmp_path) is check_engines.SGLANG_CASES
    folder = tmp_path / "lib/python3.11/site-packages/sglang/srt/mem_cache"
    folder.mkdir(parents=True)
    (folder / "hiradix_cache.py").touch()
    assert check_engines.sglang_cases(tmp_path) is check_engines.SGLANG_HIRADIX_CASES


@pytest.mark.parametrize("cases", ["VLLM_CASES", "SGLANG_CASES", "SGLANG_HIRADIX_CASES", "LMCACHE_CASES"])
def test_names_of_cases_are_unique(cases):
    names = [name for name, _ in getattr(check_engines, cases)]
    assert len(set(names)) == len(names)


STAND_IN_PROGRAM = """
import stand_ins
stand_ins.install("engine", ["engine.models"])
stand_ins.skip_init("engine")
from engine import cache
print(cache.Cache().find(), cache.decorated(3), cache.Kernel.block)
try:
    import missing_elsewhere
except ImportError:
    print("not found")
"""


def test_only_an_engine_gets_stand_ins(tmp_path):
    engine = tmp_path / "engine"
    (engine / "models").mkdir(parents=True)
    (engine / "__init__.py").write_text("raise RuntimeError('not needed')")
    (engine / "models/__init__.py").write_text("raise RuntimeError('not needed')")
    (engine / "cache.py").write_text("""
import missing_kernels.triton as triton
from engine.models.llama import Llama
from missing_kernels import Base

class Cache(Base):
    def find(self):
        return "found"

class Kernel(Base, frozen=True):
    block = 16

@triton.autotune(configs=[])
def decorated(value):
    return value
""")
    result = subprocess.run([sys.executable, "-c", STAND_IN_PROGRAM], capture_output=True, text=True,
                            env={"PYTHONPATH": f"{FOLDER}:{tmp_path}"})
    assert result.stdout == "found 3 16\nnot found\n", result.stderr


def test_a_failing_case_leaves_the_others(tmp_path, monkeypatch, capsys):
    good = "import json; print(json.dumps({'totals': [{'n': 3, 'hit_rate': 0.5}]}))"
    engine = check_engines.Engine("vllm", "1", [("one", ["-c", "raise SystemExit(3)"]), ("two", ["-c", good])])
    monkeypatch.setattr(check_engines, "install", lambda engine, venv: "1")
    monkeypatch.setattr(check_engines, "python_of", lambda venv: sys.executable)
    options = argparse.Namespace(out=tmp_path, cases="", jobs=2)
    folder, chosen, failed = check_engines.make_oracles(engine, options, ROOT / "tests/data/mooncake_1000.jsonl.gz")
    assert (chosen, failed) == (2, 1)
    output = capsys.readouterr().out
    assert "vllm 1: one: FAILED: ended with 3" in output
    assert "vllm 1: two: 3 requests, hit rates 0.5000" in output
    assert gzip.decompress((folder / "summary.jsonl.gz").read_bytes()) == b'{"n": 3, "hit_rate": 0.5}\n'


def test_a_kvtier_that_cannot_be_run_is_told(tmp_path, capsys):
    assert not check_engines.compare_with_kvtier(tmp_path / "kvtier", "trace.jsonl", tmp_path)
    assert "No such file or directory; build it by make program" in capsys.readouterr().err
