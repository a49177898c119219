"""Checks the machine code of the attention kernels and prints a table of what each one uses.

    machine_code.py MODULE [--cuobjdump PATH] [--markdown]

MODULE is the CUDA module, or any file that cuobjdump reads. Every kernel of every architecture in it
has to load keys and values by asynchronous copies of 16 bytes, multiply on tensor cores, leave its
registers out of memory, and keep enough bytes in flight on a multiprocessor. Kernels for a warpgroup
have code for sm_90a only.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IN_FLIGHT_MIN = 20 << 10
# Shared memory, warps and blocks of a multiprocessor of each architecture (CUDA C++ Programming Guide,
# compute capabilities). All have 65,536 registers, and keep 1 KiB of shared memory for each block,
# which the static shared memory of a kernel contains from sm_90 on.
PROCESSORS = {80: (164 << 10, 64, 32), 90: (228 << 10, 64, 32), 100: (228 << 10, 64, 32)}
REGISTERS = 65536
RESERVED = 1 << 10
# Of a kernel for a warpgroup: keys or values of a tile are 8 products, in a prologue, a loop and an end.
PRODUCTS = 32
WARPGROUP_ARCHITECTURE = 90
ELEMENTS = {"__half": "fp16", "__nv_bfloat16": "bf16"}


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def find_cuobjdump(given):
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for path in (given, shutil.which("cuobjdump"), os.path.join(home, "bin", "cuobjdump")):
        if path and os.path.exists(path):
            return path
    sys.exit("machine_code: cuobjdump is missing (make machine-code installs it)")


def tiles():
    """Sizes of the kernels by (kernel, head_dim, columns, kv_bytes)."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "tiles")
        source = os.path.join(ROOT, "tests", "kernels", "machine_code", "attention_tiles.cpp")
        run(os.environ.get("CXX", "c++"), "-std=c++20", "-I", ROOT, source, "-o", program)
        rows = json.loads(run(program))
    return {(r["kernel"], r["head_dim"], r["columns"], r["kv_bytes"]): r for r in rows}


class Kernel:
    """One attention kernel of one architecture; None as its template's name means another kernel."""

    PATTERN = re.compile(r"(decode|warpgroup_prefill|prefill)_kernel<([^<>]*)>")

    def __init__(self, architecture, symbol, name):
        self.architecture = architecture
        self.symbol = symbol
        self.template = None
        found = self.PATTERN.search(name.replace("(int)", ""))
        if found:
            numbers = [part.split("::")[-1].strip() for part in found[2].split(",")]
            self.template = found[1] + "_kernel"
            self.element = ELEMENTS[numbers[0]]
            self.float8 = len(numbers) > 1 and numbers[1] == "Float8"
            self.head_dim = int(numbers[2]) if len(numbers) > 2 else 128
            self.columns = int(numbers[3]) if len(numbers) > 3 else 0
        self.registers = self.stack = self.local = self.static = 0
        self.instructions = []

    @property
    def key(self):
        return (self.template, self.head_dim, self.columns, 1 if self.float8 else 2)

    def count(self, pattern):
        return sum(1 for one in self.instructions if re.match(pattern, one))

    @property
    def by_warpgroups(self):
        return self.template.startswith("warpgroup")

    def overlapped_exponentials(self):
        """Those between the wait for the scores and that for the sums."""
        count = None
        for one in self.instructions:
            if re.match(r"WARPGROUP\.DEPBAR", one):
                if count is not None:
                    return count
                count = 0 if one.rstrip().endswith("0x1") else None
            elif count is not None and one.startswith("MUFU.EX2"):
                count += 1
        return 0

    def blocks(self, size):
        shared, warps, blocks = PROCESSORS[self.architecture]
        warps_each = size["threads"] // 32
        by_registers = REGISTERS // (-(-self.registers * 32 // 256) * 256 * warps_each)
        kept = RESERVED if self.architecture < 90 else 0
        by_shared = shared // (size["shared"] + self.static + kept)
        return min(by_registers, by_shared, warps // warps_each, blocks)


def demangled(symbols):
    names = subprocess.run(["c++filt"], input="\n".join(symbols), check=True, capture_output=True,
                           text=True).stdout.splitlines()
    return dict(zip(symbols, names))


def read_kernels(cuobjdump, module):
    """The attention kernels of all architectures in the module."""
    usage = run(cuobjdump, "-res-usage", module)
    found = {}
    architecture = None
    for line in usage.splitlines():
        if match := re.match(r"arch = sm_(\d+)", line) or re.match(r".*for sm_(\d+)", line):
            architecture = int(match[1])  # sm_90a, too
        elif match := re.match(r"\s*Function (\S+?):", line):
            symbol = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            found[architecture, symbol] = [int(n) for n in match.groups()]
    names = demangled(sorted({symbol for _, symbol in found}))
    kernels = {}
    for (architecture, symbol), numbers in found.items():
        kernel = Kernel(architecture, symbol, names[symbol])
        if kernel.template and (not kernel.by_warpgroups or architecture == WARPGROUP_ARCHITECTURE):
            kernel.registers, kernel.stack, kernel.static, kernel.local = numbers
            kernels[architecture, symbol] = kernel
    current = None
    for line in run(cuobjdump, "-sass", module).splitlines():
        if match := re.match(r"\s*code for sm_(\d+)", line) or re.match(r"arch = sm_(\d+)", line):
            architecture = int(match[1])
        elif match := re.match(r"\s*Function : (\S+)", line):
            current = kernels.get((architecture, match[1]))
        elif current and (match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", line)):
            current.instructions.append(re.sub(r"^@!?U?P\w+\s+", "", match[1]))
    return list(kernels.values())


def problems_of(kernel, size):
    where = f"sm_{kernel.architecture} {kernel.template}<{kernel.element}, " \
            f"{'fp8' if kernel.float8 else kernel.element}, {kernel.head_dim}, {kernel.columns}>"
    if kernel.count(r"(STL|LDL)") or kernel.local:
        yield f"{where}: registers are spilled to memory"
    if kernel.by_warpgroups:
        # One at a time, each product would have its own wait.
        if kernel.count(r"HGMMA") != PRODUCTS or kernel.count(r"WARPGROUP.DEPBAR") > 4:
            yield f"{where}: {kernel.count('HGMMA')} products (HGMMA) with " \
                  f"{kernel.count('WARPGROUP.DEPBAR')} waits, {PRODUCTS} with 4 are expected"
        if kernel.overlapped_exponentials() < 64:
            yield f"{where}: {kernel.overlapped_exponentials()} exponentials of 64 are computed while " \
                  f"products are in flight"
    else:
        if not kernel.count(r"HMMA"):
            yield f"{where}: no product on tensor cores (HMMA)"
        if not kernel.count(r"LDSM"):
            yield f"{where}: no ldmatrix (LDSM)"
    if not kernel.count(r"LDGSTS.*\.128"):
        yield f"{where}: no asynchronous copy of 16 bytes (LDGSTS)"
    blocks = kernel.blocks(size)
    if blocks * size["in_flight"] < IN_FLIGHT_MIN:
        yield f"{where}: {blocks * size['in_flight']} bytes in flight on a multiprocessor, " \
              f"{IN_FLIGHT_MIN} are needed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module")
    parser.add_argument("--cuobjdump")
    parser.add_argument("--markdown", action="store_true", help="one element, as on its page of docs/results")
    arguments = parser.parse_args()
    sizes = tiles()
    kernels = read_kernels(find_cuobjdump(arguments.cuobjdump), arguments.module)
    problems = []
    architectures = sorted({kernel.architecture for kernel in kernels})
    for architecture in architectures:
        there = [k for k in kernels if k.architecture == architecture]
        for element in ELEMENTS.values():
            for key in sizes:
                if key[0].startswith("warpgroup") and architecture != WARPGROUP_ARCHITECTURE:
                    continue
                if not any(k.key == key and k.element == element for k in there):
                    problems.append(f"sm_{architecture}: there is no {key} in {element}")
    if not architectures:
        problems.append("the module has no attention kernels")
    columns = ("arch", "kernel", "head dim", "rows", "KV", "registers", "shared KiB", "blocks/SM",
               "in flight KiB/SM", "HMMA", "HGMMA", "LDSM", "LDGSTS.128")
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    order = sorted(kernels, key=lambda k: (k.architecture, k.template, k.element, k.head_dim, k.columns,
                                           k.float8))
    for kernel in order:
        size = sizes[kernel.key]
        problems += problems_of(kernel, size)
        if arguments.markdown and kernel.element != "bf16":
            continue
        blocks = kernel.blocks(size)
        rows = kernel.columns or (128 if kernel.head_dim <= 128 else 64)
        print(f"| {kernel.architecture} | {kernel.template.removesuffix('_kernel')} | {kernel.head_dim} | {rows} "
              f"| {'fp8' if kernel.float8 else kernel.element} | {kernel.registers} "
              f"| {size['shared'] / 1024:.0f} | {blocks} | {blocks * size['in_flight'] / 1024:.0f} "
              f"| {kernel.count('HMMA')} | {kernel.count('HGMMA')} | {kernel.count('LDSM')} | {kernel.count('LDGSTS.*128')} |")
    for problem in problems:
        print(f"machine_code: {problem}", file=sys.stderr)
    print(f"{len(kernels)} attention kernels, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
