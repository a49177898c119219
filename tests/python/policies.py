"""Policies for tests."""

import collections

import kvtier


class Lru(kvtier.EvictionPolicy):
    """The entry that was used least recently leaves first."""

    def __init__(self):
        self.order = collections.OrderedDict()

    def on_insert(self, entry, now):
        self.order[entry.id] = None

    def on_release(self, entry, now):
        self.order.move_to_end(entry.id)

    def on_remove(self, entry, now):
        del self.order[entry]

    def choose(self, request, victims):
        for entry in self.order:
            if not victims.wants_more():
                break
            if victims.offers(entry):
                victims.add(entry)

    def check_invariants(self, residents):
        assert {entry.id for entry, _ in residents} == set(self.order)
