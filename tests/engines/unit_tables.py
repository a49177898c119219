#!/usr/bin/env python3
"""Runs the tables of calls and results in configs/engines (their format is described there).

--on model runs them on the Python models of this folder, without tables of the scheduler, which has no model here.
--on vllm runs all of them on vLLM's own classes, with the Python of a virtual environment that has vLLM (make check-engines
makes one). Exit code: 0 if all results are as expected, 1 if some are not, 2 for a table that cannot be run.
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
        # What requests did before says nothing about the emptied tier.
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=["model", "vllm"], default="model")
    parser.add_argument("--tables", type=pathlib.Path, default=ROOT / "configs/engines/vllm_unit.json")
    options = parser.parse_args()
    file = json.loads(options.tables.read_text())
    if file["schema"] != SCHEMA:
        parser.error(f"{options.tables}: the schema is not {SCHEMA}")
    make = MODELS
    version = "the models"
    if options.on == "vllm":
        import vllm_units
        make = vllm_units.SYSTEMS
        version = f"vllm {vllm_units.VERSION}"
    right = run = calls = 0
    for table in file["tables"]:
        if table["system"]["kind"] not in make:
            continue
        run += 1
        calls += len(table["calls"])
        wrong = run_table(make, table)
        right += not wrong
        for text in wrong:
            print(f"{table['name']} ({table['source']}): {text}")
    print(f"unit tables on {version}: {run} of {len(file['tables'])} tables run, {calls} calls, {run - right} tables differ")
    return 0 if right == run else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        # An engine of another version may lack what vllm_units.py uses.
        traceback.print_exception(error)
        sys.exit(2)
