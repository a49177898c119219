#!/usr/bin/env python3
"""Packs a build and gpu_check.py into a folder for a machine that has a GPU, but no compiler and no packages.

  gpu_carry.py --build build/cuda --out build/gpu [--flashinfer MODULE]

The folder gets gpu_check.py, gpu_page.py and programs.tar.gz. The archive has the stripped programs, the CUDA module, the shared
libraries that a bare Ubuntu lacks, the configs, and source.json with the commit. FlashInfer's kernels are in a module of their own,
which only the measurement of attention uses."""

import argparse
import datetime
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
import gpu_check

PROGRAMS = {"bin/kvtier": "kvtier", "bin/kvtier_attention_bench": "kvtier_attention_bench",
            "bin/kvtier_device_probe": "kvtier_device_probe",
            "tests/tests_hw_device_cuda_device_test": "device_tests"}
MODULE = "lib/kvtier/kvtier_cuda.so"
# Libraries of every Ubuntu, and those of CUDA and its driver.
THERE = re.compile(r"^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|cuda|cudart|cublas|cublasLt))\.so")
LIMIT_BYTES = 40 << 20


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def libraries(files):
    """Name to path of each library that must travel."""
    found = {}
    for file in files:
        for line in output("ldd", str(file)).splitlines():
            parts = line.split()
            if THERE.match(pathlib.PurePath(parts[0]).name):
                continue
            if "=>" not in parts or parts[2] == "not":
                sys.exit(f"gpu_carry: {file}: {line.strip()}")
            found[parts[0]] = parts[2]
    return found


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="folder of a build with CUDA")
    parser.add_argument("--flashinfer", type=pathlib.Path, metavar="MODULE", help="a CUDA module with FlashInfer's kernels")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the folder to make")
    options = parser.parse_args()
    modules = {"": options.build / MODULE, **({"flashinfer": options.flashinfer} if options.flashinfer else {})}
    with tempfile.TemporaryDirectory() as temporary:
        top = pathlib.Path(temporary)
        for folder in ("bin", "so", "share/kvtier"):
            (top / folder).mkdir(parents=True)
        files = [options.build / program for program in PROGRAMS]
        for file, name in zip(files, PROGRAMS.values()):
            output("strip", "-o", str(top / "bin" / name), str(file))
        for folder, module in modules.items():
            (top / folder / MODULE).parent.mkdir(parents=True)
            output("strip", "--strip-unneeded", "-o", str(top / folder / MODULE), str(module))
        if options.flashinfer:
            (top / "flashinfer/bin").mkdir()
            shutil.copy(top / "bin/kvtier_attention_bench", top / "flashinfer/bin")
        for name, path in libraries([*files, *modules.values()]).items():
            shutil.copy(path, top / "so" / name)
        shutil.copytree(root / "configs", top / "share/kvtier/configs")
        commit = gpu_check.revision(root)
        made = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        (top / "source.json").write_text(json.dumps({"commit": commit, "made": made}, indent=2) + "\n")
        options.out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(options.out / "programs.tar.gz", "w:gz") as archive:
            for entry in sorted(top.iterdir()):
                archive.add(entry, arcname=entry.name)
    for script in ("gpu_check.py", "gpu_page.py"):
        shutil.copy(root / "tests/gpu" / script, options.out / script)
    size = sum(file.stat().st_size for file in options.out.iterdir() if file.is_file())
    print(f"{options.out}: {size / (1 << 20):.1f} MiB of commit {commit}\nRun there: python3 {options.out}/gpu_check.py --out OUT")
    if size > LIMIT_BYTES:
        sys.exit(f"gpu_carry: the folder is larger than {LIMIT_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
