#!/usr/bin/env python3
"""Runs the tables of calls and results in configs/engines (their format is described there).

--on model runs them on the Python models of this folder, without tables of the scheduler, which has no model here.
--on vllm and --on sglang run the engine's tables on its own classes, with the Python of a virtual environment that has the
engine (make check-engines makes one). Exit code: 0 if all results are as expected, 1 if some are not, 2 for a table that
cannot be run.
"""

import argparse
import json
import pathlib
import sys
import traceback

import cache_models

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMA = "kvtier.engine_tables/1"
STREAM_TOKENS_MAX = 1 << 24

# Names of results and states whose values are keys of blocks.
BLOCK_KEYS = ("evicted", "free_keys")


class TableError(Exception):
    """A table that cannot be run: not the engine's fault."""


class Tokens:
    """Token ids of pieces such as ["common", 48]: the first tokens of a stream. Streams have no token in common."""

    def __init__(self):
        self.streams = {}

    def of(self, pieces):
        tokens = []
        for piece in pieces:
            name, first, count = piece if len(piece) == 3 else (piece[0], 0, piece[1])
            base = self.streams.setdefault(name, len(self.streams)) * STREAM_TOKENS_MAX
            tokens.extend(range(base + first, base + first + count))
        return tokens


class Gpu:
    """The block pool of the models, as a table's calls use it."""

    def __init__(self, system):
        self.block_tokens = system["block_tokens"]
        self.pool = cache_models.BlockPool(system["gpu_blocks"], self.block_tokens, system.get("caching", True))
        self.tokens = Tokens()
        self.requests = {}
        self.chains = {}

    def request(self, request, prompt, salt=None, skip_lookup=False):
        self.requests[request] = {"tokens": self.tokens.of(prompt), "salt": salt, "skip": skip_lookup, "held": [],
                                  "hits": [], "computed": 0}

    def keys_of(self, request):
        """A key names a block's tokens and all tokens before it."""
        entry = self.requests[request]
        keys, parent = [], None
        for end in range(self.block_tokens, len(entry["tokens"]) + 1, self.block_tokens):
            block = (parent, tuple(entry["tokens"][end - self.block_tokens:end]), entry["salt"] if parent is None else None)
            parent = self.chains.setdefault(block, len(self.chains))
            keys.append(parent)
        return keys

    def lookup(self, request):
        entry = self.requests[request]
        entry["hits"] = [] if entry["skip"] else self.pool.found(self.keys_of(request), len(entry["tokens"]))
        return {"hit_tokens": len(entry["hits"]) * self.block_tokens}

    def allocate(self, request, tokens, whole_prompt_must_fit=False):
        entry = self.requests[request]
        hits, entry["hits"] = entry["hits"], []
        start = entry["computed"] + len(hits) * self.block_tokens
        if whole_prompt_must_fit:
            blocks = -(-len(entry["tokens"]) // self.block_tokens) - len(entry["held"]) - len(hits)
            if blocks + sum(self.pool.users[hit] == 0 for hit in hits) > len(self.pool.free):
                return {"fits": False}
        taken = self.pool.allocate(entry["held"], hits, start + tokens)
        if taken is None:
            return {"fits": False}
        entry["computed"] = start + tokens
        self.pool.publish(entry["held"], self.keys_of(request), min(entry["computed"], len(entry["tokens"])))
        return {"fits": True, "new_blocks": len(taken[0]), "evicted": taken[1]}

    def respond(self, request, tokens):
        self.requests[request]["tokens"] += self.tokens.of(tokens)

    def free(self, request):
        entry = self.requests[request]
        self.pool.release(entry["held"])
        entry["held"] = []

    def reset(self):
        return {"done": self.pool.reset()}

    def state(self):
        free = [self.pool.key_of[block] for block in self.pool.free]
        return {"free_blocks": len(free), "free_without_key": free.count(None), "findable_keys": len(self.pool.with_key),
                "free_keys": [key for key in free if key is not None]}


class Cpu:
    """The CPU tier of the models. A request is known from its first call on."""

    def __init__(self, system):
        self.tier = cache_models.CpuTier(system["cpu_chunks"], system["eviction"], system.get("store_threshold", 0),
                                         system.get("tracker_entries", 64000))
        self.accesses = {}

    def access(self, request):
        return self.accesses.setdefault(request, cache_models.Access())

    def request(self, request, keys):
        self.access(request).position = {key: place for place, key in enumerate(keys)}

    def lookup(self, keys, request="r"):
        return {"states": [self.tier.lookup(key) for key in keys]}

    def prepare_store(self, keys, request="r"):
        return self.stored(self.tier.prepare_store(keys, self.access(request)))

    @staticmethod
    def stored(result):
        return {"refused": True} if result is None else {"refused": False, "stored": result[0], "evicted": result[1]}

    def complete_store(self, keys, request="r", good=True):
        self.tier.complete_store(keys, good)

    def prepare_load(self, keys, request="r"):
        self.tier.prepare_load(keys, self.access(request))

    def complete_load(self, keys, request="r"):
        self.tier.unpin(keys)

    def touch(self, keys, request="r"):
        self.tier.policy.touch(keys)

    def finish(self, request="r"):
        self.tier.finish(self.access(request))

    def set_target(self, target):
        self.tier.policy.target = target

    def reset(self):
        self.tier.reset()
        # Earlier requests do not count for the emptied tier.
        self.accesses = {}

    def state(self):
        policy = self.tier.policy
        state = {"evictable_chunks": self.tier.evictable(), "free_chunks": self.tier.chunks - len(self.tier.users),
                 "offers": {str(key): count for key, count in self.tier.offers.items()}}
        if isinstance(policy, cache_models.Arc):
            state |= {name: list(getattr(policy, name)) for name in ("t1", "t2", "b1", "b2")} | {"target": policy.target}
        return state


class Tiers(Cpu):
    def __init__(self, system):
        super().__init__(system)
        self.tiers = cache_models.Tiers(self.tier, system["secondary_tiers"])

    def lookup(self, keys, request="r"):
        return {"states": [self.tiers.lookup(key, request, self.access(request)) for key in keys]}

    def prepare_store(self, keys, request="r"):
        return self.stored(self.tiers.prepare_store(keys, self.access(request)))

    def complete_store(self, keys, request="r", good=True):
        self.tiers.complete_store(keys, good)

    def put(self, tier, keys):
        self.tiers.secondary[tier] |= set(keys)

    def end_step(self):
        self.tiers.end_step()

    def reset(self):
        self.tiers.reset()
        self.accesses = {}

    def reset_done(self):
        self.tiers.held = False

    def state(self):
        return super().state() | {"tiers": [sorted(keys) for keys in self.tiers.secondary]}


MODELS = {"gpu": Gpu, "cpu": Cpu, "tiers": Tiers}


def block_names(system):
    """Names of all keys so far: NAME/PLACE of the first request that has the key."""
    names = {}
    for request in system.requests:
        for place, key in enumerate(system.keys_of(request)):
            names.setdefault(key, f"{request}/{place}")
    return names


def block_key(system, name):
    request, place = name.rsplit("/", 1)
    return system.keys_of(request)[int(place)]


def run_call(system, call):
    """Makes one call. Returns what came out and the state then, with block keys by name."""
    arguments = {name: value for name, value in call.items() if name not in ("call", "expect", "note")}
    action = getattr(system, call["call"], None) if call["call"] != "check" else lambda: None
    if action is None:
        raise TableError(f"no call {call['call']}")
    got = {**(action(**arguments) or {}), **system.state()}
    if hasattr(system, "keys_of"):
        names = block_names(system)
        for name in BLOCK_KEYS:
            if name in got:
                got[name] = [names.get(key, "?") for key in got[name]]
    return got


def expected(system, call):
    """Expected values; another name of the same block counts as the same."""
    values = dict(call.get("expect", {}))
    if hasattr(system, "keys_of"):
        names = block_names(system)
        for name in BLOCK_KEYS:
            if name in values:
                values[name] = [names[block_key(system, key)] for key in values[name]]
    return values


def run_table(make, table):
    """Returns texts of what was not as expected."""
    system = make[table["system"]["kind"]](table["system"])
    wrong = []
    for place, call in enumerate(table["calls"]):
        got = run_call(system, call)
        for name, value in expected(system, call).items():
            if name not in got:
                raise TableError(f"{table['name']}, call {place}: nothing is known of {name}")
            if got[name] != value:
                wrong.append(f"call {place} ({call['call']}): {name} is {json.dumps(got[name])}, "
                             f"expected {json.dumps(value)}")
    return wrong


def runs_on(engine, version):
    """Classes that make the calls: a name, the systems of tables, and whether they take a table of these systems."""
    if engine == "model":
        return [("the models", MODELS, lambda table: True)]
    if engine == "vllm":
        import vllm_units
        return [(f"vllm {vllm_units.VERSION}", vllm_units.SYSTEMS, lambda table: True)]
    import sglang_units
    return sglang_units.runs(version)


def run_tables(label, make, tables):
    """Prints what was not as expected. Returns the number of tables that differ, and a line for the user."""
    differing = 0
    for table in tables:
        wrong = run_table(make, table)
        differing += bool(wrong)
        for text in wrong:
            print(f"{label}: {table['name']} ({table['source']}): {text}")
    return differing, f"{len(tables)} run, {sum(len(table['calls']) for table in tables)} calls, {differing} differ"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=["model", "vllm", "sglang"], default="model")
    parser.add_argument("--tables", type=pathlib.Path)
    options = parser.parse_args()
    engine = "vllm" if options.on == "model" else options.on
    path = options.tables or ROOT / f"configs/engines/{engine}_unit.json"
    file = json.loads(path.read_text())
    if file["schema"] != SCHEMA or file["engine"] != engine:
        parser.error(f"{path}: expected {SCHEMA} of {engine}")
    total = 0
    for label, make, takes in runs_on(options.on, file["version"]):
        tables = [table for table in file["tables"] if table["system"]["kind"] in make and takes(table)]
        differing, line = run_tables(label, make, tables)
        total += differing
        print(f"unit tables on {label}: {len(file['tables'])} tables, {line}")
    return 1 if total else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        # An engine of another version may lack what vllm_units.py or sglang_units.py uses.
        traceback.print_exception(error)
        sys.exit(2)
