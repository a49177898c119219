"""Policies for tests."""

import collections

import kvtier


class Lru(kvtier.EvictionPolicy):
    """The entry that was used least recently leaves first."""

    def __init__(self):
        self.order = collections.OrderedDict()
        self.pinned = set()

    def on_insert(self, entry, now):
        self.order[entry.id] = None

    def on_release(self, entry, now):
        self.order.move_to_end(entry.id)

    def on_remove(self, entry, now):
        del self.order[entry]

    def on_pin(self, entry):
        self.pinned.add(entry)

    def on_unpin(self, entry):
        self.pinned.remove(entry)

    def select_victim(self, context):
        return next((entry for entry in self.order if entry not in self.pinned), None)

    def check_invariants(self, residents):
        assert {entry.id for entry, _ in residents} == set(self.order)
        assert {entry.id for entry, pinned in residents if pinned} == self.pinned
