#!/usr/bin/env python3
"""Makes a dated page of the results of gpu_check.py, and stores their profile.

  gpu_page.py RESULTS --out docs/results/DATE-NAME.md [--profiles configs/profiles/NAME.json]

RESULTS is the folder of --out or its results.tar.gz. Any part of the steps is enough; the page names the missing ones."""

import argparse
import csv
import io
import json
import pathlib
import statistics
import sys
import tarfile

STEPS = ["correctness", "probe", "attention", "calibrate", "validate", "kernels"]
# Rows of a validation, by their names in the page.
METRICS = {"hit rate, all turns": "hit_rate.all_turns.total", "of it the drive": "hit_rate.all_turns.ssd",
           "TTFT p50": "ttft_seconds.p50", "TTFT p90": "ttft_seconds.p90", "TPOT mean": "tpot_seconds.mean"}
PROBE_NOTES = {
    "first_passes": "The first pass of a multiple of 64 loads kernels; the second has them.",
    "new_sizes": "If the first pass of a new size takes longer than later ones, choosing a kernel is the cause.",
    "operations": "If a pass takes longer than the sum of its operations, compare it with the host's submission.",
    "layer_waits": "The three last columns differ by how a layer's load is awaited."}


class Results:
    """The files of a run, from a folder or an archive."""

    def __init__(self, path):
        path = pathlib.Path(path)
        if path.is_dir() and (path / "results.tar.gz").is_file():
            path = path / "results.tar.gz"
        if path.is_dir():
            self.files = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
            return
        with tarfile.open(path) as archive:
            self.files = {pathlib.PurePath(member.name).name: archive.extractfile(member).read()
                          for member in archive.getmembers() if member.isfile()}

    def text(self, name):
        return self.files.get(name, b"").decode(errors="replace")

    def json(self, name):
        try:
            return json.loads(self.files[name])
        except (KeyError, ValueError):
            return None

    def matching(self, prefix):
        """Names without .json, sorted, and the contents of the readable files."""
        names = sorted(name for name in self.files if name.startswith(prefix) and name.endswith(".json"))
        found = ((name.removesuffix(".json"), self.json(name)) for name in names)
        return [(name, content) for name, content in found if content]


def number(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


# ---- Tables: a title, a header and rows of cells ----

def probe_tables(results):
    probe = results.json("probe.json") or {"tables": []}
    for table in probe["tables"]:
        if table["rows"]:
            yield table["name"], table["title"], table["columns"], [[number(cell) for cell in row] for row in table["rows"]]


def attention_table(results):
    """New and past tokens; for each shape of heads and library the time, and the rate of one KV head."""
    columns, cells = [], {}
    for name, bench in results.matching("attention-"):
        library = name.rsplit("-", 1)[1]
        heads = f"{bench['query_heads']} on {bench['kv_heads']}"
        for cell in bench["cells"]:
            for way in ("multi_query", "flashinfer", "gather_limit"):
                if way in cell:
                    column = f"{heads}, {'limit' if way == 'gather_limit' else library}"
                    columns += [] if column in columns else [column]
                    seconds = cell[way]["median_seconds"]
                    rate = cell["kv_bytes"] / bench["kv_heads"] / seconds * 1e-9
                    shown = number(rate) if way == "gather_limit" else f"{seconds * 1e3:.3f} ({number(rate)})"
                    cells[cell["new_tokens"], cell["past_tokens"], column] = shown
    keys = sorted({key[:2] for key in cells})
    return ["new", "past", *columns], [[number(new), number(past), *(cells.get((new, past, column), "") for column in columns)]
                                       for new, past in keys]


def validations(results):
    for name, found in results.matching("validate-"):
        for point in found.get("points", [{"validation": found}]):
            if "rows" in point.get("validation", {}):
                yield name.removeprefix("validate-"), point["validation"]


def validation_tables(results):
    """A row for each run: pace and load; then a row for each metric of each run."""
    runs, rows = [], []
    for name, one in validations(results):
        measured = one["measured"][0]
        runs.append([name, number(measured["metrics"]["turns"]), number(measured["load"]["measured_seconds"]),
                     f"{100 * one['occupied_fraction']:.0f}", f"{one['pace']['prefill']:.3f}", f"{one['pace']['decode']:.3f}",
                     "in band" if one["in_band"] else "out of band"])
        by_name = {row["metric"]: row for row in one["rows"]}
        for shown, metric in METRICS.items():
            row = by_name.get(metric)
            if row is None or (metric.startswith("hit") and not row["simulated"] and not row["measured"]):
                continue
            rate = metric.startswith("hit")
            scale, unit = (100, " %") if rate else (1e3, " ms")
            def error(value, rate=rate):
                return "" if value is None else f"{100 * value:+.1f} {'points' if rate else '%'}"
            band = "" if row["band"] is None else "in" if row["in_band"] else "out"
            rows.append([name, shown, f"{scale * row['simulated']:.1f}{unit}", f"{scale * row['measured']:.1f}{unit}",
                         error(row["error"]), band, f"{scale * row['simulated_at_pace']:.1f}{unit}", error(row["error_at_pace"])])
    return (["run", "turns", "seconds", "slots, %", "prefill pace", "decode pace", "verdict"], runs), \
           (["run", "metric", "simulated", "measured", "error", "band", "at pace", "error at pace"], rows)


def kernel_tables(results):
    for name, bench in results.matching("kernels-"):
        if not bench["cells"]:
            continue
        ways = [key for key, value in bench["cells"][0].items() if isinstance(value, dict)]
        rows = [[number(cell["new_tokens"]), number(cell["past_tokens"]),
                 *(f"{cell[way]['median_seconds'] * 1e3:.3f} ({number(cell['kv_bytes'] / cell[way]['median_seconds'] * 1e-9)})"
                   + ("*" if cell[way]["disturbed"] else "") if way in cell else "" for way in ways)] for cell in bench["cells"]]
        title = f"{name.removeprefix('kernels-')}: {bench['batch']} requests, {bench['query_heads']} query heads on " \
                f"{bench['kv_heads']} KV heads of {bench['head_dim']}"
        yield title, ["new", "past", *ways], rows


def profile_of(results):
    """The profile, and whether it is whole."""
    whole = results.json("profile.json")
    return (whole, True) if whole else (results.json("profile.json.partial"), False)


def profile_lines(results):
    profile, whole = profile_of(results)
    if not profile:
        return []
    lines = [] if whole else ["The calibration was interrupted. Its finished cells are the profile."]
    return lines + list(profile.get("provenance", {}).get("notes", []))


def profile_table(results):
    """A row for each table: its cells, and the smallest and the largest of them."""
    profile, _ = profile_of(results)

    def shown(table, cell):
        at = ", ".join(f"{axis} {number(value)}" for axis, value in zip(table["axes"], cell["at"]))
        return f"{at}: {number(cell['median_seconds'] * 1e6)}" if at else number(cell["median_seconds"] * 1e6)
    rows = []
    for table in (profile or {}).get("tables", []):
        cells = sorted(table["cells"], key=lambda cell: cell["at"])
        ends = [shown(table, cells[0]), shown(table, cells[-1])] if cells else ["", ""]
        rows.append([table["operation"], table["variant"], table["method"], number(len(cells)),
                     number(len(table.get("left_out", []))), *ends])
    return ["operation", "variant", "method", "cells", "left out", "first cell, us", "last cell, us"], rows


def clocks(results):
    """Quartiles of each number that nvidia-smi sampled."""
    rows = list(csv.reader(io.StringIO(results.text("clocks.csv")), skipinitialspace=True))
    if len(rows) < 3:
        return [], []
    table = []
    for at, name in enumerate(rows[0]):
        values = []
        for row in rows[1:]:
            try:
                values.append(float(row[at].split()[0]))
            except (IndexError, ValueError):
                pass
        if name != "timestamp" and len(values) > len(rows) / 2:
            table.append([name, *(number(value) for value in (min(values), statistics.median(values), max(values))),
                          number(len(values))])
    return ["", "least", "median", "most", "samples"], table


def tests_line(results):
    lines = [line for line in results.text("correctness.log").splitlines()
             if line.startswith(("[  PASSED  ]", "[  FAILED  ]", "[  SKIPPED ]", "[==========]"))]
    return lines[1:] if len(lines) > 1 else lines


# ---- Short tables of a step for the terminal ----

def brief(name, one):
    """One row for a run: simulated and measured values."""
    rows = {row["metric"]: row for row in one["rows"]}

    def both(metric, scale):
        row = rows.get(metric)
        return f"{scale * row['simulated']:.1f} {scale * row['measured']:.1f}" if row else ""

    def errors(metric):
        row = rows.get(metric)
        at_pace = row and row["error_at_pace"]
        return "" if not row else f"{100 * row['error']:+.0f} %" + ("" if at_pace is None else f" {100 * at_pace:+.0f} %")
    return [name, f"{100 * one['occupied_fraction']:.0f}", f"{one['pace']['prefill']:.2f} {one['pace']['decode']:.2f}",
            both("hit_rate.all_turns.total", 100), both("ttft_seconds.p50", 1e3), errors("ttft_seconds.p50"),
            both("ttft_seconds.p90", 1e3), errors("ttft_seconds.p90"), both("tpot_seconds.mean", 1e3)]


def plain(header, rows, title=None):
    widths = [max(len(str(row[at])) for row in [header, *rows]) for at in range(len(header))]
    lines = ["  ".join(str(cell).rjust(width) for cell, width in zip(row, widths)) for row in [header, *rows]]
    return ([title] if title else []) + lines if rows else []


def short(step, results):
    if step == "correctness":
        return tests_line(results)
    if step == "probe":
        return [line for name, _, header, rows in probe_tables(results) if name != "first_passes"
                for line in plain(header, rows, f"-- {name}")]
    if step == "attention":
        return plain(*attention_table(results), "-- ms (GB/s of one KV head); heads, kernels")
    if step == "calibrate":
        cells = {}
        for row in profile_table(results)[1]:
            cells[row[0]] = cells.get(row[0], 0) + int(row[3].replace(",", ""))
        return profile_lines(results) + [", ".join(f"{name} {count}" for name, count in cells.items())]
    if step == "validate":
        return plain(["run", "slots", "paces", "hits s/m, %", "p50 s/m, ms", "error, at pace", "p90 s/m, ms", "error, at pace",
                      "TPOT s/m, ms"], [brief(name, one) for name, one in validations(results)])
    return [line for title, header, rows in kernel_tables(results) for line in plain(header, rows, f"-- {title}, ms (GB/s)")]


# ---- The page ----

def markdown(header, rows):
    if not rows:
        return []
    return ["| " + " | ".join(header) + " |", "|---" * len(header) + "|", *("| " + " | ".join(row) + " |" for row in rows), ""]


def provenance(results, state):
    profile, _ = profile_of(results)
    probe = results.json("probe.json") or {}
    device = (profile or {}).get("device", {})
    libraries = {**probe.get("libraries", {}), **(profile or {}).get("provenance", {}).get("libraries", {})}
    host = state.get("host", {})
    source = state.get("source", {})
    driver = next((line.split(":", 1)[1].strip() for line in results.text("nvidia-smi.txt").splitlines()
                   if line.startswith("Driver Version")), None)
    rows = [["device", device.get("name") or probe.get("device") or state.get("device", "unknown")],
            ["driver", ", ".join(filter(None, [driver, device.get("driver") or probe.get("driver")])) or "unknown"],
            ["libraries", ", ".join(f"{name} {version}" for name, version in sorted(libraries.items())) or "unknown"],
            ["host", f"{host.get('processors', '?')} processors of {host.get('cpu', 'unknown')}, "
                     f"{host.get('system', 'unknown')}"],
            ["drive", (profile or {}).get("storage", {}).get("file_system", "not measured")],
            ["source", f"commit {source.get('commit', 'unknown')}"], ["began", state.get("began", "unknown")]]
    return markdown(["", ""], rows)


def page(results):
    state = results.json("state.json") or {"steps": {}}
    steps = state["steps"]
    profile, _ = profile_of(results)
    probe = results.json("probe.json") or {}
    name = (profile or {}).get("device", {}).get("name") or probe.get("device") or state.get("device", "a device")
    date = state.get("began", "")[:10]
    lines = [f"# {date}: check of {name}", ""]
    if state.get("quick"):
        lines += ["A quick run with a tiny model. No figure is for use.", ""]
    lines += provenance(results, state)
    missing = [step for step in STEPS if step not in steps]
    lines += markdown(["step", "state", "seconds", "budget"], [
        [step, steps[step]["state"], number(steps[step].get("seconds")), number(steps[step].get("budget"))] for step in STEPS
        if step in steps])
    if any(entry["state"] == "cut" for entry in steps.values()):
        lines += ["A step in state *cut* used up its budget. Its tables have the finished measurements.", ""]
    lines += [f"Steps without results: {', '.join(missing)}." if missing else "All steps ran.", ""]

    lines += ["## Correctness", ""] if "correctness" in steps else []
    lines += [f"    {line}" for line in tests_line(results)] + ([""] if "correctness" in steps else [])

    tables = list(probe_tables(results))
    lines += ["## Passes and copies", "", f"`kvtier_device_probe` with {probe.get('model')}.", ""] if tables else []
    for table, title, header, rows in tables:
        lines += [f"### {table.replace('_', ' ').capitalize()}", "", f"{title[:1].upper()}{title[1:]}.", ""]
        lines += [PROBE_NOTES[table], ""] if table in PROBE_NOTES else []
        lines += markdown(header, rows)
    header, rows = clocks(results)
    if rows:
        lines += ["### Clocks, power and temperature", "", "During all steps, every 50 ms.", "", *markdown(header, rows)]

    header, rows = attention_table(results)
    if rows:
        lines += ["## Attention behind long contexts", "",
                  "One request and one layer, in random slots: milliseconds, and in brackets GB/s of one KV head. The limit only "
                  "reads the KV.", "", *markdown(header, rows)]
    summary = profile_lines(results)
    lines += ["## Calibration", "", *(f"* {line}" for line in summary), "", *markdown(*profile_table(results))] if summary else []
    runs, metrics = validation_tables(results)
    if runs[1]:
        lines += ["## Simulated beside measured", "",
                  "`kvtier validate configs/validation/quarter-hour.json --only SYSTEM --repetitions 1`. A run is a round and a "
                  "system.", "", *markdown(*runs), *markdown(*metrics)]
    tables = list(kernel_tables(results))
    if tables:
        lines += ["## Kernels", "", "Median milliseconds of one layer, and in brackets GB/s of KV. A star marks samples beside other "
                  "work.", ""]
    for title, header, rows in tables:
        lines += [f"{title[:1].upper()}{title[1:]}.", "", *markdown(header, rows)]
    return "\n".join(lines).rstrip("\n") + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", metavar="RESULTS")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="the page")
    parser.add_argument("--profiles", type=pathlib.Path, help="a file for the profile")
    options = parser.parse_args()
    try:
        results = Results(options.results)
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"gpu_page: {options.results}: {error}")
    options.out.write_text(page(results))
    if options.profiles:
        profile, whole = profile_of(results)
        if not profile:
            sys.exit("gpu_page: the results have no profile")
        source = results.files["profile.json" if whole else "profile.json.partial"]
        options.profiles.write_bytes(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
