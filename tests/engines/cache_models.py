"""The rules of vLLM 0.33's caches in plain Python: the block pool on the GPU, the CPU tier, and tiers behind it.

No speed and no scheduler: unit_tables.py runs the tables of configs/engines on these, and on vLLM's own classes.
"""

import collections


class BlockPool:
    """Blocks of the GPU. A free block keeps its key, and lookups find it, until the block is allocated again."""

    def __init__(self, blocks, block_tokens, caching=True):
        self.block_tokens = block_tokens
        self.caching = caching
        # From the block that is allocated next to the one that is allocated last.
        self.free = collections.deque(range(blocks))
        self.users = [0] * blocks
        self.key_of = [None] * blocks
        # Blocks by key, in the order in which they got it. Copies are not merged.
        self.with_key = {}
        self.blocks = blocks

    def found(self, keys, tokens):
        """The blocks of the longest resident prefix that leaves at least one of the request's tokens to compute."""
        found = []
        for key in keys[:max(0, tokens - 1) // self.block_tokens] if self.caching else []:
            if key not in self.with_key:
                break
            found.append(next(iter(self.with_key[key])))
        return found

    def allocate(self, held, hits, tokens):
        """Makes `held`, with the hits before them, cover that many tokens. Returns (new blocks, evicted keys), or None."""
        new = -(-tokens // self.block_tokens) - len(held) - len(hits)
        needed = max(new, 0) + sum(self.users[block] == 0 for block in hits)
        if needed > len(self.free):
            return None
        # Hits leave the free list first, so that they are not taken for the new blocks.
        for block in hits:
            if self.users[block] == 0:
                self.free.remove(block)
            self.users[block] += 1
        held += hits
        taken = [self.free.popleft() for _ in range(max(new, 0))]
        evicted = []
        for block in taken:
            if self.key_of[block] is not None:
                evicted.append(self.key_of[block])
                self.forget(block)
            self.users[block] = 1
        held += taken
        return taken, evicted

    def publish(self, held, keys, tokens):
        """Full blocks can be found from now on."""
        for block, key in zip(held, keys[:tokens // self.block_tokens]) if self.caching else []:
            if self.key_of[block] is None:
                self.key_of[block] = key
                self.with_key.setdefault(key, {})[block] = None

    def forget(self, block):
        key = self.key_of[block]
        self.key_of[block] = None
        del self.with_key[key][block]
        if not self.with_key[key]:
            del self.with_key[key]

    def release(self, held):
        """The last block comes first: the tail of a prompt is evicted before its head. Blocks without key go in front."""
        without_key, with_key = [], []
        for block in reversed(held):
            self.users[block] -= 1
            if self.users[block] == 0:
                (without_key if self.key_of[block] is None else with_key).append(block)
        self.free.extendleft(reversed(without_key))
        self.free.extend(with_key)

    def reset(self):
        if len(self.free) != self.blocks:
            return False
        self.key_of = [None] * self.blocks
        self.with_key = {}
        return True


class Access:
    """Counters of one request in the CPU tier so far."""

    def __init__(self):
        self.position = {}
        self.seen = []
        self.inserted = set()
        self.reused = set()
        self.missed = set()
        self.rank = None
        self.finished = False

    def in_prefix_order(self):
        """Head to tail where the places in the prompt are known, else in the order of the calls."""
        if all(key in self.position for key in self.seen):
            return sorted(self.seen, key=self.position.__getitem__)
        return list(self.seen)


class Lru:
    """Evicts the lowest rank. Chunks of one request get its rank, and leave tail first."""

    def __init__(self, tier):
        self.tier = tier
        self.clear()

    def clear(self):
        self.ranks = {}
        self.last = 0

    def next(self):
        self.last += 1
        return self.last

    def rank_of(self, access):
        if access.rank is None:
            access.rank = self.next()
        return access.rank

    def insert(self, key, access):
        if key in access.position:
            self.ranks[key] = (self.rank_of(access), -access.position[key])
        else:
            self.ranks[key] = (self.next(), 0)

    def remove(self, key):
        del self.ranks[key]

    def store_miss(self, keys):
        pass

    def access(self, keys, access):
        rank = self.rank_of(access)
        for key in keys:
            if key in access.position and key in self.ranks:
                self.ranks[key] = max(self.ranks[key], (rank, -access.position[key]))

    def touch(self, keys):
        for key in reversed(keys):
            if key in self.ranks:
                self.ranks[key] = (self.next(), 0)

    def finish(self, keys, access):
        self.touch(keys)

    def evict(self, count, protected):
        able = [key for key in self.ranks if self.tier.users[key] == 0 and key not in protected]
        chosen = sorted(able, key=self.ranks.__getitem__)[:count]
        if len(chosen) < count:
            return None
        for key in chosen:
            del self.ranks[key]
        return chosen


class Arc:
    """t1: seen once, t2: seen again, b1 and b2: keys that left them. Each is ordered from the oldest to the newest."""

    def __init__(self, tier):
        self.tier = tier
        self.clear()

    def clear(self):
        self.t1, self.t2 = {}, {}
        self.b1, self.b2 = {}, {}
        self.target = 0.0

    @staticmethod
    def to_end(keys, key):
        keys.pop(key, None)
        keys[key] = None

    def insert(self, key, access):
        self.t1[key] = None
        self.b1.pop(key, None)
        self.b2.pop(key, None)

    def remove(self, key):
        self.t1.pop(key, None)
        self.t2.pop(key, None)

    def ghost_hit(self, key):
        if key in self.b1:
            self.target = min(self.target + max(1, len(self.b2) / len(self.b1)), self.tier.chunks)
            self.to_end(self.b1, key)
        elif key in self.b2:
            self.target = max(self.target - max(1, len(self.b1) / len(self.b2)), 0)
            self.to_end(self.b2, key)

    def store_miss(self, keys):
        for key in reversed(keys):
            self.ghost_hit(key)

    def access(self, keys, access):
        pass

    def touch(self, keys):
        for key in reversed(keys):
            if key in self.t1:
                if self.tier.users[key] < 0:
                    self.to_end(self.t1, key)
                else:
                    del self.t1[key]
                    self.t2[key] = None
            elif key in self.t2:
                self.to_end(self.t2, key)
            else:
                self.ghost_hit(key)

    def finish(self, keys, access):
        for key in reversed(keys):
            if key in access.reused:
                if key in self.t1 or key in self.t2:
                    self.t1.pop(key, None)
                    self.to_end(self.t2, key)
            elif key in access.inserted:
                for part in (self.t1, self.t2):
                    if key in part:
                        self.to_end(part, key)

    def evict(self, count, protected):
        able = [[key for key in part if self.tier.users[key] == 0 and key not in protected]
                for part in (self.t1, self.t2)]
        size = len(self.t1)
        chosen = []
        for _ in range(count):
            first = able[0] and (size >= int(self.target) or not able[1])
            if first:
                chosen.append((able[0].pop(0), self.t1, self.b1))
                size -= 1
            elif able[1]:
                chosen.append((able[1].pop(0), self.t2, self.b2))
            else:
                return None
        for key, part, ghosts in chosen:
            del part[key]
            ghosts[key] = None
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.tier.chunks:
                del ghosts[next(iter(ghosts))]
        return [key for key, _, _ in chosen]


class CpuTier:
    """Chunks in host memory. A chunk is written (users -1), then ready; loads hold it."""

    def __init__(self, chunks, eviction="lru", store_threshold=0, tracker_entries=64000):
        self.chunks = chunks
        self.users = {}
        self.policy = {"lru": Lru, "arc": Arc}[eviction](self)
        self.threshold = store_threshold
        self.tracker_entries = tracker_entries
        # Offers by key, least recently offered first.
        self.offers = {}

    def lookup(self, key):
        if key not in self.users:
            return "miss"
        return "writing" if self.users[key] < 0 else "hit"

    def count_offers(self, keys):
        known = [key for key in keys if key in self.offers]
        for key in known:
            self.offers[key] = self.offers.pop(key) + 1
        room = len(self.offers) - len(set(known))
        for key in keys:
            if key in self.offers:
                continue
            if len(self.offers) >= self.tracker_entries:
                if room == 0:
                    continue
                del self.offers[next(iter(self.offers))]
                room -= 1
            self.offers[key] = 1

    def record(self, access, keys, inserted=(), reused=()):
        new = [key for key in dict.fromkeys(keys) if key not in access.seen]
        if new and access.finished:
            raise RuntimeError("a request that has finished uses other chunks")
        access.seen += new
        if new:
            self.policy.access(new, access)
        access.reused |= {key for key in reused if key not in access.inserted}

    def prepare_store(self, keys, access):
        """Returns (keys to store, evicted keys), or None if there is no room."""
        if self.threshold >= 2:
            self.count_offers(keys)
        ready = [key for key in keys if self.lookup(key) == "hit"]
        missing = [key for key in keys if key not in self.users]
        if self.threshold >= 2:
            missing = [key for key in missing if self.offers.get(key, 0) >= self.threshold]
        # A request's missing key teaches the policy once.
        news = [key for key in missing if key not in access.missed]
        self.policy.store_miss(news)
        access.missed |= set(news)
        self.record(access, [key for key in keys if key in missing or key in ready], reused=ready)
        wanted = len(missing) - (self.chunks - len(self.users))
        evicted = []
        if missing and wanted > 0:
            # The keys of this call stay, whether they are stored or were resident before.
            evicted = self.policy.evict(wanted, set(keys))
            if evicted is None:
                return None
            for key in evicted:
                del self.users[key]
        for key in missing:
            self.users[key] = -1
            self.policy.insert(key, access)
        access.inserted |= set(missing)
        return missing, evicted

    def complete_store(self, keys, good=True):
        for key in keys:
            if self.lookup(key) != "writing":
                continue
            if good:
                self.users[key] = 0
            else:
                del self.users[key]
                self.policy.remove(key)

    def pin(self, keys):
        for key in keys:
            if self.lookup(key) != "hit":
                raise RuntimeError(f"chunk {key} cannot be read")
            self.users[key] += 1

    def unpin(self, keys):
        for key in keys:
            self.users[key] -= 1

    def prepare_load(self, keys, access):
        self.pin(keys)
        self.record(access, keys, reused=keys)

    def finish(self, access):
        if not access.finished:
            access.finished = True
            self.policy.finish(access.in_prefix_order(), access)

    def reset(self):
        self.users = {}
        self.policy.clear()

    def evictable(self):
        return sum(users == 0 for users in self.users.values())


class Tiers:
    """Tiers of unlimited size behind the CPU tier. All get what was stored; a hit there is copied to the CPU tier first."""

    def __init__(self, cpu, secondary):
        self.cpu = cpu
        self.secondary = [set() for _ in range(secondary)]
        # Copies under way, as (kind, keys): stores hold the CPU's chunks, promotions fill them.
        self.under_way = []
        self.promotions = {}
        self.polled = False
        self.held = False

    def poll(self, once_a_step=True):
        if once_a_step and self.polled:
            return
        self.polled = True
        done, self.under_way = self.under_way, []
        for kind, keys in done:
            if kind == "store":
                self.cpu.unpin(keys)
            else:
                self.cpu.complete_store(keys)

    def lookup(self, key, request, access):
        self.poll()
        state = self.cpu.lookup(key)
        if state != "miss" or self.held:
            return state
        for tier, keys in enumerate(self.secondary):
            if key in keys:
                # Room is taken now, and the copy begins at the end of the step.
                if self.cpu.prepare_store([key], access) is None:
                    return "miss"
                self.promotions.setdefault((tier, request), []).append(key)
                return "writing"
        return "miss"

    def prepare_store(self, keys, access):
        # Evictions need to know which copies are done.
        self.poll(once_a_step=False)
        return self.cpu.prepare_store(keys, access)

    def complete_store(self, keys, good=True):
        self.cpu.complete_store(keys, good)
        if good:
            for tier in self.secondary:
                self.cpu.pin(keys)
                tier.update(keys)
                self.under_way.append(("store", list(keys)))

    def end_step(self):
        self.poll()
        self.polled = False
        self.under_way += [("promotion", keys) for keys in self.promotions.values()]
        self.promotions = {}

    def reset(self):
        self.poll(once_a_step=False)
        self.promotions = {}
        self.cpu.reset()
        self.polled = False
        self.held = bool(self.secondary)
