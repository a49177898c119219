"""How much longer a run takes with an LRU of Python than with that of kvtier.

    python tests/python/policy_speed.py [CONFIG] [REPETITIONS]
"""

import sys
import time

import kvtier
from conftest import ROOT
from policies import Lru


def seconds(config, eviction, repetitions):
    """The shortest of some runs."""
    times = []
    for _ in range(repetitions):
        begin = time.process_time()
        kvtier.simulate(config, {"/system": "attentionstore_lru",
                                 "/system/tiers/dram/eviction": eviction})
        times.append(time.process_time() - begin)
    return min(times)


def main(config=str(ROOT / "configs/examples/planner-70.json"), repetitions="3"):
    kvtier.register_eviction_policy("python_lru", Lru)
    builtin = seconds(config, "lru", int(repetitions))
    python = seconds(config, "python_lru", int(repetitions))
    print(f"lru of kvtier {builtin:.2f} s, of Python {python:.2f} s: {python / builtin:.1f} times")


if __name__ == "__main__":
    main(*sys.argv[1:])
