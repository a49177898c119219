#!/usr/bin/env python3
"""Compares kvtier with the cache managers of serving engines, request by request.

Installs an engine's own wheel from PyPI, lets its cache code process a trace of block hashes, and writes what each request
finds as oracle files. Then `kvtier reproduce engines-cache` compares its presets with these files.
Files that are also recorded in tests/data/oracles are compared with those: they show what changed since another version.
No GPU is needed, but about 10 GB of disk for vLLM and 6 GB for SGLang and LMCache. Exit code: 0 if no row differs, else 1.
"""

import argparse
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time

import oracle_files

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DIFFERENCES_SHOWN = 5
LINES_SHOWN = 6
GIB = 1 << 30

MI = oracle_files.MEBI
CAPACITIES = {512: [MI // 4, MI, 5 * MI, 20 * MI, None], 16: [MI // 4, MI, 5 * MI, None]}
TREE_CAPACITIES = [MI // 4, MI, 5 * MI, None]
CHUNK_CAPACITIES = [MI // 4, MI, 5 * MI, 20 * MI, None]
TIERS = [(MI, 5 * MI), (MI // 4, MI)]


class Failure(Exception):
    """An error that a user can act on. It ends the check of this engine."""


def list_of(sizes):
    return ",".join("inf" if size is None else str(size) for size in sizes)


def manager_case(variant, block):
    return f"manager {variant} block {block}", [
        "vllm_oracles.py", "manager", "--variant", variant, "--block", str(block),
        "--capacities", list_of(CAPACITIES[block])]


def scheduler_case(gpu, cpu, policy, sequences, variant):
    sizes = oracle_files.tier_sizes_name(gpu, cpu).replace("_", " ")
    arguments = ["vllm_oracles.py", "scheduler", "--variant", variant, "--gpu", str(gpu), "--cpu", str(cpu),
                 "--sequences", str(sequences)]
    return (f"scheduler {sizes} {policy} seqs{sequences} {variant}",
            arguments + ([] if policy == "none" else ["--policy", policy]))


VLLM_CASES = [
    *[manager_case(variant, block) for block in (512, 16) for variant in ("prompt", "output", "fifo32")],
    scheduler_case(MI, 0, "none", 1, "prompt"),
    *[scheduler_case(gpu, cpu, policy, 1, "prompt")
      for gpu, cpu in ((MI, 5 * MI), (MI // 4, MI)) for policy in ("lru", "arc")],
    scheduler_case(5 * MI, 0, "none", 32, "prompt"),
    scheduler_case(MI, 0, "none", 32, "output"),
    *[scheduler_case(MI, 5 * MI, policy, 32, "output") for policy in ("lru", "arc")],
]


def tree_case(kind, policy, variant, chunk, page):
    return f"{kind} {policy} {variant} chunk {chunk} page {page}", [
        "sglang_oracles.py", kind, "--policy", policy, "--variant", variant, "--chunk", str(chunk), "--page", str(page),
        "--capacities", list_of(TREE_CAPACITIES)]


def tree_tiers_case(gpu, host, policy, page, write="write_through"):
    kind, ways = ("hiradix", f" {write}") if host else ("radix", "")
    return f"{kind} {oracle_files.tier_sizes_name(gpu, host).replace('_', ' ')} {policy}{ways} page {page}", [
        "sglang_oracles.py", kind, "--policy", policy, "--page", str(page), "--gpu", str(gpu), "--host", str(host),
        "--write", write]


SGLANG_CASES = [
    *[tree_case("radix", "lru", "prompt", 0, page) for page in (1, 64, 512)],
    tree_case("radix", "lru", "prompt", 8192, 64),
    *[tree_case("radix", "lru", "output", chunk, 64) for chunk in (0, 8192)],
    *[tree_case("radix", "lfu", "prompt", chunk, 64) for chunk in (0, 8192)],
    tree_case("radix", "lfu", "output", 8192, 64),
    *[tree_case("unified", "lru", "prompt", chunk, 64) for chunk in (0, 8192)],
    tree_case("unified", "lru", "output", 8192, 64),
    tree_case("unified", "lfu", "prompt", 8192, 64),
]
# Cases of 0.5.10, the last known version with HiRadixCache.
SGLANG_HIRADIX_CASES = [
    *[tree_tiers_case(gpu, 0, "lru", 64) for gpu in (MI // 4, MI, 5 * MI)],
    tree_tiers_case(MI, 0, "lfu", 64),
    *[tree_tiers_case(gpu, host, policy, 64) for gpu, host in TIERS for policy in ("lru", "lfu")],
    *[tree_tiers_case(gpu, host, "lru", 64, "write_through_selective") for gpu, host in TIERS],
    *[tree_tiers_case(MI // 4, MI, "lru", page) for page in (1, 512)],
]

LMCACHE_CASES = [
    (f"cpu backend {policy}", ["lmcache_oracles.py", "--policy", policy, "--capacities", list_of(CHUNK_CAPACITIES)])
    for policy in ("lru", "lfu", "fifo")]


def sglang_cases(venv):
    """The versions with HiRadixCache have no UnifiedRadixCache, and make room in another way."""
    if any(venv.glob("lib/python*/site-packages/sglang/srt/mem_cache/hiradix_cache.py")):
        return SGLANG_HIRADIX_CASES
    return SGLANG_CASES


class Engine:
    """An engine: its package on PyPI, the version to check ("" is the newest), and the cases.

    A case is a name and the arguments of Python, a program of this folder first. `cases` is a list or a function of the
    virtual environment that gives one. Without `needs` pip installs all that the package requires, else only those of its
    requirements. Engines with the same `venv` share it.
    """

    def __init__(self, package, version, cases, needs=None, venv="venv", disk=12 * GIB, tables=True):
        self.package = package
        self.version = version
        self.cases = cases
        self.needs = needs
        self.venv = venv
        self.disk = disk
        self.tables = tables

    def requirement(self):
        return f"{self.package}=={self.version}" if self.version else self.package

    def cases_in(self, venv):
        return self.cases(venv) if callable(self.cases) else self.cases


def engines_of(options):
    """Those that the user chose, in a fixed order."""
    light = dict(venv="venv-caches", disk=8 * GIB)
    makers = {
        "vllm": lambda version: Engine("vllm", version, VLLM_CASES),
        "sglang": lambda version: Engine("sglang", version, sglang_cases,
                                         ["msgspec", "numpy", "packaging", "psutil", "torch"], **light),
        "lmcache": lambda version: Engine("lmcache", version, LMCACHE_CASES,
                                          ["msgspec", "numpy", "psutil", "sortedcontainers", "torch"],
                                          tables=False, **light),
    }
    chosen = options.engines.split(",")
    unknown = [name for name in chosen if name not in makers]
    if unknown:
        raise Failure(f"no engine {', '.join(unknown)}; there are: {', '.join(makers)}")
    return [make(version) for name, make in makers.items() if name in chosen
            for version in getattr(options, name).split(",")]


def python_of(venv):
    return venv / "bin" / "python"


def installed_version(venv, package):
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    result = subprocess.run([python_of(venv), "-c", code], capture_output=True, text=True)
    return result.stdout.strip() if result.returncode == 0 else None


def make_venv(venv):
    if python_of(venv).exists():
        return
    venv.parent.mkdir(parents=True, exist_ok=True)
    result = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True)
    if result.returncode != 0:
        shutil.rmtree(venv, ignore_errors=True)
        raise Failure("a virtual environment cannot be made; install python3-venv and python3-pip\n" +
                      last_lines(result.stdout + result.stderr))


def install(engine, venv):
    """Returns the version that is installed then."""
    make_venv(venv)
    before = installed_version(venv, engine.package)
    log = venv.parent / f"install-{engine.package}.log"
    after = before
    if not engine.version or before != engine.version:
        if before is None and shutil.disk_usage(venv).free < engine.disk:
            raise Failure(f"{engine.package} needs about {engine.disk >> 30} GiB of disk, in {venv}")
        print(f"{engine.package}: installing {engine.requirement()} (minutes; see {log})", flush=True)
        log.write_text("")
        installed = pip_install(venv, log, ["--upgrade", *(["--no-deps"] if engine.needs else []), engine.requirement()])
        after = installed_version(venv, engine.package)
        if not installed:
            problem = f"pip could not install {engine.requirement()}; is PyPI within reach?\n{last_lines(log.read_text())}"
            if engine.version or after is None:
                raise Failure(problem)
            print(f"{engine.package}: {problem}\n{engine.package}: going on with version {after}", flush=True)
    if engine.needs:
        # Another engine may have changed them.
        needs = requirements(venv, engine)
        if not pip_install(venv, log, needs):
            raise Failure(f"pip could not install {' '.join(needs)}; is PyPI within reach?\n{last_lines(log.read_text())}")
    return after


def pip_install(venv, log, arguments):
    with open(log, "a") as out:
        return subprocess.run([python_of(venv), "-m", "pip", "install", "--disable-pip-version-check", *arguments],
                              stdout=out, stderr=subprocess.STDOUT).returncode == 0


def requirements(venv, engine):
    """The engine's needs, in the versions that it asks for. An installed torch stays: it is large, and its libraries for
    another version of CUDA do not leave with it."""
    code = f"import importlib.metadata as m; print(*(m.requires({engine.package!r}) or ()), sep='\\n')"
    lines = subprocess.run([python_of(venv), "-c", code], capture_output=True, text=True).stdout.splitlines()
    return [chosen_requirement(name, lines) for name in engine.needs
            if name != "torch" or installed_version(venv, name) is None]


def chosen_requirement(name, lines):
    """The line that requires the package always, not only with an extra; else the package's name."""
    of_name = re.compile(rf"{name}(?![\w-])", re.IGNORECASE)
    return next((line for line in lines if of_name.match(line) and "extra ==" not in line), name)


def last_lines(text):
    return "\n".join("    " + line for line in text.strip().splitlines()[-LINES_SHOWN:])


def run_case(venv, trace, folder, name, arguments):
    """Returns the file's name and a line for the user; raises Failure."""
    started = time.monotonic()
    result = subprocess.run([python_of(venv), *arguments, "--trace", trace, "--out", folder], cwd=HERE, text=True,
                            capture_output=True)
    if result.returncode != 0:
        raise Failure(f"ended with {result.returncode}\n{last_lines(result.stdout + result.stderr)}")
    made = json.loads(result.stdout.strip().splitlines()[-1])
    hits = ", ".join(f"{total['hit_rate']:.4f}" for total in made["totals"])
    return made, f"{made['totals'][0]['n']} requests, hit rates {hits}; {time.monotonic() - started:.0f} s"


def make_oracles(engine, options, trace):
    """Returns the folder of oracle files, how many cases ran, and how many failed."""
    venv = options.out / engine.venv
    version = install(engine, venv)
    folder = options.out / f"{engine.package}-{version}" / oracle_files.trace_name(trace)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cases = engine.cases_in(venv)
    chosen = [case for case in cases if re.search(options.cases, case[0])]
    if not chosen:
        print(f"{engine.package}: no case matches {options.cases}; there are: {'; '.join(name for name, _ in cases)}")
    label = f"{engine.package} {version}"
    failed, totals = 0, {}
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run_case, venv, trace, folder, *case): case[0] for case in chosen}
        for done in concurrent.futures.as_completed(running):
            try:
                made, line = done.result()
                totals[running[done]] = made["totals"]
            except Failure as failure:
                failed += 1
                line = f"FAILED: {failure}"
            print(f"{label}: {running[done]}: {line}", flush=True)
    oracle_files.write_packed(folder / "summary.jsonl.gz", "".join(
        json.dumps(total) + "\n" for name, _ in chosen for total in totals.get(name, [])))
    return folder, len(chosen), failed


def differing_rows(made, recorded):
    """Compares the rows and columns that both have. Returns the number of rows, and a text for each that differs."""
    names = [name for name in recorded if name in made]
    rows = min(len(made["req"]), len(recorded["req"]))
    texts = []
    for row in range(rows):
        wrong = [f"{name} {made[name][row]}, recorded {recorded[name][row]}"
                 for name in names if made[name][row] != recorded[name][row]]
        if wrong:
            texts.append(f"request {recorded['req'][row]}: {'; '.join(wrong)}")
    return rows, texts


def compare_with_recorded(folder, recorded_folder):
    """Prints a line a file. Returns whether no row differs."""
    equal = True
    for path in sorted(folder.glob("*.csv.gz")):
        recorded = recorded_folder / path.name
        if not recorded.exists():
            continue
        rows, texts = differing_rows(oracle_files.read_columns(path), oracle_files.read_columns(recorded))
        equal = equal and not texts
        print(f"recorded: {path.name}: {rows} rows, {len(texts)} different")
        for text in texts[:DIFFERENCES_SHOWN]:
            print(f"    {text}")
    return equal


def compare_with_kvtier(program, trace, folder):
    """kvtier prints the rows, how many differ, and the first of them. Returns whether it ended well."""
    command = [str(program), "reproduce", "engines-cache", "--trace", str(trace), "--oracles", str(folder)]
    print(" ".join(command), flush=True)
    try:
        code = subprocess.run(command).returncode
    except OSError as error:
        print(f"{program}: {error.strerror}; build it by make program", file=sys.stderr)
        return False
    if code != 0:
        print(f"kvtier ended with {code}: rows differ, or it could not compare", file=sys.stderr)
    return code == 0


def run_unit_tables(engine, venv):
    """Makes the calls of configs/engines on the engine's own classes. Returns whether all results are as expected."""
    result = subprocess.run([python_of(venv), HERE / "unit_tables.py", "--on", engine.package], capture_output=True,
                            text=True)
    print(result.stdout, end="", flush=True)
    # 1: results differ, and the output says which. The engine's own log is of use in other cases only.
    if result.returncode not in (0, 1):
        print(f"{engine.package}: the unit tables ended with {result.returncode}\n{last_lines(result.stderr)}",
              file=sys.stderr)
    return result.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/bin/kvtier",
                        help="kvtier; 'none' makes oracle files only")
    parser.add_argument("--trace", type=pathlib.Path, default=ROOT / "tests/data/mooncake_1000.jsonl.gz",
                        help="JSON lines with input_length, output_length and hash_ids of 512 tokens")
    parser.add_argument("--requests", type=int, help="only the first requests of the trace")
    parser.add_argument("--engines", default="vllm,sglang,lmcache", help="engines to check, separated by commas")
    for name, title in (("vllm", "vLLM"), ("sglang", "SGLang"), ("lmcache", "LMCache")):
        parser.add_argument(f"--{name}", default="", help=f"version of {title}, or several separated by commas (the newest)")
    parser.add_argument("--cases", default="", help="regular expression: only the cases whose names match")
    parser.add_argument("--recorded", type=pathlib.Path, default=ROOT / "tests/data/oracles",
                        help="folder of oracle files to compare with")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/engines",
                        help="folder of virtual environments and oracle files")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at once")
    options = parser.parse_args()
    options.out, trace = options.out.resolve(), options.trace.resolve()
    if not trace.exists():
        parser.error(f"{trace}: no such trace")
    options.out.mkdir(parents=True, exist_ok=True)
    if options.requests:
        trace = oracle_files.cut_trace(trace, options.requests, options.out)

    try:
        engines = engines_of(options)
    except Failure as failure:
        parser.error(str(failure))

    good, cases = True, 0
    for engine in engines:
        try:
            folder, chosen, failed = make_oracles(engine, options, trace)
        except Failure as failure:
            print(f"{engine.package}: FAILED: {failure}", file=sys.stderr)
            good = False
            continue
        if chosen == 0:
            continue
        cases += chosen
        good = good and failed == 0
        good = compare_with_recorded(folder, options.recorded) and good
        if engine.tables:
            good = run_unit_tables(engine, options.out / engine.venv) and good
        if str(options.program) != "none" and any(folder.glob("*.csv.gz")):
            good = compare_with_kvtier(options.program, trace, folder) and good
    return 0 if good and cases > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
