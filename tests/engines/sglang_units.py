"""Makes the calls of unit_tables.py on SGLang's own classes."""

import sglang_engine
from unit_tables import Tokens

# Versions with HiRadixCache run the tables that name this one.
HIRADIX_VERSION = "0.5.10"
CLASSES = {"radix": "RadixCache", "hiradix": "HiRadixCache", "unified": "UnifiedRadixCache"}
# Whether the class takes tables without and with host memory.
HOST = {"radix": (False,), "hiradix": (True,), "unified": (False, True)}
WALK_NODES_MAX = 10000


def on_gpu(node):
    """Tokens of a node on the GPU."""
    value = node.value if hasattr(node, "value") else node.component_data[sglang_engine.ComponentType.FULL].value
    return 0 if value is None else len(value)


def on_host(node):
    value = node.host_value if hasattr(node, "host_value") else (
        node.component_data[sglang_engine.ComponentType.FULL].host_value if hasattr(node, "component_data") else None)
    return 0 if value is None else len(value)


class Trees:
    """A tree of one of SGLang's classes. The unit tests match whole prompts; the scheduler leaves one token."""

    def __init__(self, kind, system):
        self.kind = kind
        self.page = system.get("page_tokens", 1)
        # Nodes can be read in the tree of UnifiedRadixCache that is written in Python.
        host = system.get("host_tokens", 0)
        self.tree = sglang_engine.Tree(kind, self.page, system["gpu_tokens"], system.get("eviction", "lru"), host,
                                       system.get("write", "write_through"), core="python" if kind == "unified" else None,
                                       storage=system.get("storage_tokens", 0) > 0)
        self.tokens = Tokens()
        self.held = {}
        self.names = 0

    def begin(self, request, prompt, salt=None, tokens=None):
        begun = self.tree.begin(request, self.tokens.of(prompt), first=tokens, salt=salt)
        if begun is None:
            return {"fits": False}
        self.held[request] = begun
        return {"fits": True, "hit_tokens": begun.hits, "loaded_tokens": begun.loaded}

    def serve(self, prompt, salt=None):
        self.names += 1
        name = f"served {self.names}"
        results = self.begin(name, prompt, salt)
        if results["fits"]:
            self.end(name)
        return results

    def advance(self, request, tokens):
        held = self.held[request]
        self.tree.publish(held)
        return {"fits": self.tree.grow(held, min(len(held.tokens), held.end + tokens))}

    def end(self, request):
        self.tree.finish(self.held.pop(request))

    def transfers_done(self):
        self.tree.end_copies()

    def prefetch(self, request, prompt, salt=None):
        return {"tokens": self.tree.prefetch(request, self.tokens.of(prompt), salt)}

    def prefetched(self, request, tokens):
        return {"added_tokens": self.tree.end_prefetch(request, tokens)}

    def root(self):
        core = self.tree.cache if self.kind != "unified" else self.tree.cache.tree_core
        return core.root_node

    def nodes(self):
        nodes = list(self.root().children.values())
        for node in nodes:
            nodes += node.children.values()
            if len(nodes) > WALK_NODES_MAX:
                raise RuntimeError(f"more than {WALK_NODES_MAX} nodes")
        return nodes

    def lookup(self, prompt, salt=None):
        """Reads the nodes: the classes' own look-up splits and touches them."""
        tokens = self.tokens.of(prompt)
        rest = tokens = tokens[:len(tokens) // self.page * self.page]
        gpu = host = 0
        node = self.root()
        while node is not None and rest:
            node, common = next(((child, self.common(child, rest)) for child in node.children.values()
                                 if (child.key.extra_key or None) == salt and self.common(child, rest) > 0), (None, 0))
            if node is None:
                break
            if on_gpu(node):
                gpu += common
            else:
                host += common
            complete = common == len(node.key)
            rest = rest[common:] if complete else []
        stored = self.tree.stored_tokens(tokens, salt) if self.tree.storage else 0
        return {"hit_tokens": gpu, "host_hit_tokens": host, "storage_hit_tokens": max(0, stored - gpu - host)}

    def common(self, node, tokens):
        """Tokens that a node shares with the start of a prompt, in whole pages."""
        count = 0
        for mine, other in zip(node.key.token_ids, tokens):
            if mine != other:
                break
            count += 1
        return count // self.page * self.page

    def state(self):
        nodes = self.nodes()
        return {"gpu_tokens": sum(map(on_gpu, nodes)), "host_tokens": sum(map(on_host, nodes)),
                "storage_tokens": len(self.tree.copies.stored) * self.page if self.tree.storage else 0,
                "free_tokens": self.tree.free_tokens()}


# "continue" is a keyword of Python.
setattr(Trees, "continue", Trees.advance)


def runs(file_version):
    """One for each class: its name, the systems of tables, and whether it makes the calls of a table."""
    version = HIRADIX_VERSION if sglang_engine.HAS_HIRADIX else file_version

    def takes(kind, table):
        host = table["system"].get("host_tokens", 0) > 0
        return version in table.get("versions", [file_version]) and host in HOST[kind]

    return [(f"sglang {sglang_engine.VERSION} {CLASSES[kind]}", {"tree": lambda system, kind=kind: Trees(kind, system)},
             lambda table, kind=kind: takes(kind, table)) for kind in sglang_engine.KINDS]
