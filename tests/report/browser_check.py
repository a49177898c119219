#!/usr/bin/env python3
"""Opens pages of `kvtier report` in a headless Chromium, and holds them to what a reader may expect.

Makes results of every kind with the program, one page of all of them and one of hostile names, and
opens each in light and dark, at 1280 and at 420 pixels, and prints it. Fails on a message on the console, on a request
for anything but the page itself, on a canvas that stays blank, on a page wider than the screen, and on a table that
paper cuts off, or the screen if it has the headline metrics of many runs. Screenshots are kept. Exits with 77 where no
browser is installed.

The browser is driven by its DevTools protocol over two pipes, which needs nothing but Python.
"""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWS = (
    ("wide", 1280, "light"),
    ("wide-dark", 1280, "dark"),
    ("narrow", 420, "light"),
    ("narrow-dark", 420, "dark"),
)
# Pixels of a canvas that differ from an empty one: a chart has thousands.
LEAST_PIXELS = 500
# Seconds that a browser gets to end by itself.
CLOSING_TIME = 20
PIXELS = """
(() => [...document.querySelectorAll("canvas")].map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let i = 3; i < data.length; i += 4) {
    drawn += data[i] > 0 ? 1 : 0;
  }
  return drawn;
}))()
"""
WIDTH = "document.documentElement.scrollWidth"
# Letter paper, without the margins that printing leaves.
PAPER_WIDTH = 739
# Names of visible tables that are wider than their place; {0} selects them.
CUT_TABLES = """
[...document.querySelectorAll("{0}")]
  .filter((place) => place.checkVisibility() && place.scrollWidth > place.clientWidth + 1)
  .map((place) => place.getAttribute("aria-label"))
"""
ALL_TABLES = ".scroll"
# The first headline table of a page with a row for each run.
MANY_RUNS = "#headline .scroll:first-of-type:has(+ .scroll)"
TITLE = "window.injected === undefined ? 'none' : 'script ran'"


class Browser:
    """A headless Chromium with one page, and what it said of it."""

    def __init__(self, program, profile, patience):
        self.patience = patience
        self.messages = []
        self.events = []
        self.number = 0
        self.buffer = b""
        command_read, self.commands = os.pipe()
        self.answers, answer_write = os.pipe()

        def place_pipes():
            # The protocol's pipes are 3 and 4; copies above keep either from closing the other.
            copies = [os.dup(command_read), os.dup(answer_write)]
            while min(copies) <= 4:
                copies = [os.dup(fd) for fd in copies]
            os.dup2(copies[0], 3)
            os.dup2(copies[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             "--disable-sync", "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            preexec_fn=place_pipes, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_read)
        os.close(answer_write)
        self.session = None
        try:
            self.open_page()
        except BaseException:
            self.close()
            raise

    def open_page(self):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.call("Target.attachToTarget",
                                 {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        """Ends the browser with its helper processes, which write into its profile to their last."""
        self.session = None
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Browser.close", patience=CLOSING_TIME)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=CLOSING_TIME)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)

    def receive(self, until):
        """The next message; None at the time `until`."""
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                return None
            chunk = os.read(self.answers, 1 << 16)
            if not chunk:
                raise RuntimeError("the browser ended")
            self.buffer += chunk
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, parameters=None, patience=None):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters or {}}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.commands, json.dumps(request).encode() + b"\0")
        patience = patience or self.patience
        until = time.monotonic() + patience
        while True:
            message = self.receive(until)
            if message is None:
                raise RuntimeError(f"{method}: no answer in {patience} s")
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method):
        until = time.monotonic() + self.patience
        while not any(event.get("method") == method for event in self.events):
            message = self.receive(until)
            if message is None:
                raise RuntimeError(f"no {method} in {self.patience} s")
            self.events.append(message)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"]["value"]

    def open(self, url, width, scheme, media=""):
        self.call("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
        self.call("Emulation.setEmulatedMedia",
                  {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.events.clear()
        self.call("Page.navigate", {"url": url})
        self.wait_for("Page.loadEventFired")
        # Charts fit themselves to the page in the frames after it is loaded.
        self.evaluate("1")
        time.sleep(0.5)
        self.evaluate("1")

    def screenshot(self, file):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.call("Page.captureScreenshot", {
            "format": "png", "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}})
        file.write_bytes(base64.b64decode(shot["data"]))


def complaints(events, url):
    """Errors and warnings of the browser."""
    found = []
    for event in events:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            found.append("exception: " + json.dumps(parameters["exceptionDetails"])[:400])
        elif method == "Runtime.consoleAPICalled":
            found.append("console: " + json.dumps(parameters["args"])[:400])
        elif method == "Log.entryAdded":
            found.append("log: " + parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            asked = parameters["request"]["url"]
            if asked != url and not asked.startswith("data:"):
                found.append("request: " + asked)
    return found


def check(browser, page, charts_least, screenshots):
    """Problems of a page, in every view."""
    url = page.as_uri()
    problems = []
    for view, width, scheme in VIEWS:
        browser.open(url, width, scheme)
        found = complaints(browser.events, url)
        pixels = browser.evaluate(PIXELS)
        if len(pixels) < charts_least:
            found.append(f"{len(pixels)} charts, expected {charts_least} at least")
        found += [f"chart {i} has {count} drawn pixels" for i, count in enumerate(pixels)
                  if count < LEAST_PIXELS]
        wide = browser.evaluate(WIDTH)
        if wide > width:
            found.append(f"the page is {wide} pixels wide")
        found += [f"the table {name!r} is cut off"
                  for name in browser.evaluate(CUT_TABLES.replace("{0}", MANY_RUNS))]
        if browser.evaluate(TITLE) != "none":
            found.append("a name of the results ran as a script")
        browser.screenshot(screenshots / f"{page.stem}-{view}.png")
        problems += [f"{page.name}, {view}: {problem}" for problem in found]
    browser.open(url, PAPER_WIDTH, "light", "print")
    problems += [f"{page.name}, printed: the table {name!r} is cut off"
                 for name in browser.evaluate(CUT_TABLES.replace("{0}", ALL_TABLES))]
    printed = base64.b64decode(browser.call("Page.printToPDF", {"printBackground": True})["data"])
    (screenshots / f"{page.stem}.pdf").write_bytes(printed)
    if not printed.startswith(b"%PDF") or b"/Type /Page" not in printed:
        problems.append(f"{page.name}: printing gave no page")
    return problems


def make_pages(program, configs, folder):
    """One page of every kind of result, and one whose names are hostile; with how many charts each
    has at least."""

    def kvtier(*arguments):
        subprocess.run([program, "--config-dir", configs, *arguments], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    run = str(configs / "sweeps/base.json")
    small = ("--set", "/workload/sessions=400", "--set", "/workload/warmup_turns=200")
    kvtier("simulate", run, "--json", "run.json", "--occupancy")
    kvtier("simulate", run, *small, "--set", "/hardware/dram/capacity=32GiB", "--json",
           "small.json", "--occupancy")
    kvtier("simulate", run, *small, "--json", "large.json", "--occupancy")
    kvtier("simulate", run, "--json", "search.json", "--find-capacity",
           "ttft_seconds.p90<=1,ttft_seconds_without_queueing.p90<=0.3")
    kvtier("compare", run, *small, "--systems", "recompute,attentionstore_lru,attentionstore",
           "--replications", "2", "--json", "compare.json")
    kvtier("plan", str(configs / "plans/llama2-7b.json"), "--json", "plan.json")
    kvtier("trace", "mrc", run, *small, "--json", "curve.json")
    (folder / "sweep.json").write_text(json.dumps({
        "config": run,
        "set": {"/workload/sessions": 400, "/workload/warmup_turns": 200},
        "axes": [
            {"name": "system", "key": "/system", "values": ["attentionstore_lru", "attentionstore"]},
            {"name": "DRAM", "key": "/hardware/dram/capacity", "values": ["8GiB", "32GiB", "128GiB"]}],
        "columns": [{"name": "hits", "value": "/metrics/hit_rate/all_turns/total", "unit": "%"}]}))
    kvtier("sweep", "sweep.json", "--out", "swept")
    kvtier("reproduce", "attentionstore", "--figure", "13", "--figure", "18", "--replications", "2",
           "--json", "paper.json")
    # A device would take minutes: the simulation stands for it, 5 % slower.
    simulated = json.loads((folder / "small.json").read_text())
    rows = [{"metric": metric, "simulated": value, "measured": value * 1.05,
             "measured_lowest": value * 1.02, "measured_highest": value * 1.1, "error": -0.048,
             "band": band, "in_band": None if band is None else True}
            for metric, value, band in (("hit_rate.all_turns.total", 0.8, 0.01),
                                        ("hit_rate.all_turns.dram", 0.5, 0.01),
                                        ("ttft_seconds.p50", 0.2, 0.1),
                                        ("ttft_seconds.p90", 0.9, 0.1),
                                        ("tpot_seconds.mean", 0.03, None))]
    validation = {"format": "kvtier.validation/1", "device": "a device", "in_band": True,
                  "occupied_fraction": 0.5, "rows": rows, "simulated": simulated,
                  "measured": [simulated, simulated]}
    (folder / "validation.json").write_text(json.dumps(validation))
    (folder / "matrix.json").write_text(json.dumps(
        {"format": "kvtier.validations/1", "axes": ["system", "DRAM"],
         "points": [{"labels": ["lru", size], "validation": validation} for size in ("8GiB", "32GiB")]}))
    hostile = "</script><script>window.injected = 1</script><img src=x onerror='window.injected=1'>"
    result = json.loads((folder / "small.json").read_text())
    result["config"]["system"]["name"] = hostile
    result["config"]["model"]["source"] = hostile
    (folder / "hostile.json").write_text(json.dumps(
        {"format": "kvtier.compare/1",
         "systems": {hostile: {"results": [result]}, "\u2028& \"quoted\" 'name'": {"results": [result]}}}))
    pages = (
        ("all", 14, ["run.json", "small.json", "large.json", "search.json", "compare.json",
                     "plan.json", "curve.json", "swept", "paper.json", "validation.json"]),
        ("comparison", 5, ["compare.json"]),
        ("plan", 2, ["plan.json"]),
        ("paper", 0, ["paper.json"]),
        ("validation", 7, ["validation.json"]),
        ("validations", 10, ["matrix.json"]),
        ("sweep", 6, ["swept"]),
        ("hostile", 5, ["hostile.json"]),
    )
    for name, _, results in pages:
        kvtier("report", *results, "--out", name + ".html")
    return [(folder / (name + ".html"), charts) for name, charts, _ in pages]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, type=pathlib.Path, help="kvtier")
    parser.add_argument("--configs", required=True, type=pathlib.Path, help="the folder of presets")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="where screenshots go")
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for the browser")
    options = parser.parse_args()
    browser_program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser_program is None:
        print("skipped: no browser is installed, looked for " + ", ".join(BROWSERS))
        return SKIPPED
    options.out.mkdir(parents=True, exist_ok=True)
    # A helper process that outlives the browser may still write there: what is left over is no failure.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        folder = pathlib.Path(work)
        pages = make_pages(options.program.resolve(), options.configs.resolve(), folder)
        browser = Browser(browser_program, folder / "profile", options.patience)
        try:
            problems = [problem for page, charts in pages
                        for problem in check(browser, page, charts, options.out)]
        finally:
            browser.close()
    for problem in problems:
        print(problem)
    print(f"{len(pages)} pages in {len(VIEWS)} views, {len(problems)} problems; screenshots in "
          f"{options.out}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
