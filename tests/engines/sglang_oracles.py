"""Makes one oracle file: what SGLang's own radix trees find for each request of a trace. Run by check_engines.py.

One request after the other: it finds its prefix, is computed, and stays in the tree. Copies to and from the host are done
when the next request comes.
"""

import argparse
import json
import pathlib
import time

import oracle_files
import sglang_engine

SPARE_ROWS = 4096


def capacity_of(tokens, requests, page):
    """`None` is a capacity that all requests fit."""
    if tokens is not None:
        return tokens
    longest = max(r.prompt_length + r.response_length for r in requests)
    return 2 * (longest + SPARE_ROWS) + sum(r.prompt_length + r.response_length + page for r in requests)


def make_tree(options, requests, gpu, host=0):
    rows = max(r.prompt_length + r.response_length for r in requests) + SPARE_ROWS
    return sglang_engine.Tree(options.kind, options.page, gpu, options.policy, host, options.write, rows, options.core)


def serve(tree, line, chunk, output):
    """Processes one request, which then has what it found."""
    tree.end_copies()
    request = tree.begin(line.index, line.prompt(), first=0, limit=line.prompt_length - 1)
    fits = request is not None
    while fits and request.end < line.prompt_length:
        end = line.prompt_length if not chunk else min(line.prompt_length, request.end + chunk)
        if end < line.prompt_length:
            # Chunks end with a page.
            end = end // tree.page * tree.page
        fits = tree.grow(request, end)
        if fits and (end < line.prompt_length or output):
            tree.publish(request)
    if fits and output:
        fits = tree.respond(request, line.response() or [oracle_files.FIRST_GENERATED_TOKEN])
    if not fits:
        raise RuntimeError(f"request {line.index} does not fit")
    tree.finish(request)
    return request


def run(options, requests, tree):
    found, evictions = [], []
    for line in requests:
        found.append(serve(tree, line, options.chunk, options.variant == "output"))
        evictions.append(tree.evicted)
    tree.end_copies()
    tree.check()
    return found, evictions


def totals_of(options, requests, name, what, hits, **others):
    prompt_tokens = sum(r.prompt_length for r in requests)
    return dict(engine=f"sglang-{sglang_engine.VERSION}", what=what, trace=name, n=len(requests), block=options.page,
                hit_tokens=hits, prompt_tokens=prompt_tokens, hit_rate=round(hits / prompt_tokens, 6), **others)


def capacities_file(options, requests, name):
    """A pair of columns for each capacity of the GPU."""
    columns, totals = [], []
    for capacity in options.capacities.split(","):
        tokens = None if capacity == "inf" else int(capacity)
        tree = make_tree(options, requests, capacity_of(tokens, requests, options.page))
        found, evictions = run(options, requests, tree)
        size = oracle_files.size_name(tokens)
        columns += [(f"hit_{size}", [r.hits for r in found]), (f"evict_tok_cum_{size}", evictions)]
        core = f"[{tree.core_name()}]" if options.kind == "unified" else ""
        what = f"{type(tree.cache).__name__}{core}/{options.policy}/{options.variant}/chunk{options.chunk}"
        totals.append(totals_of(
            options, requests, name, what, sum(r.hits for r in found), cap_tokens=capacity, evictions=tree.evicted,
            cached_tokens_end=tree.cache.evictable_size()))
    made_by = f"sgl_{options.kind}_{options.policy}_{options.variant}_chunk{options.chunk}"
    return f"{made_by}_{name}_p{options.page}", columns, totals


def tiers_file(options, requests, name):
    """0.5.10: the GPU, without or with host memory behind it."""
    tree = make_tree(options, requests, options.gpu, options.host)
    found, _ = run(options, requests, tree)
    columns = [("hit_gpu", [r.hits for r in found]), ("hit_cpu", [r.loaded for r in found]),
               ("host_match", [r.host_hits for r in found])]
    gpu, host = sum(columns[0][1]), sum(columns[1][1])
    if tree.copies is None:
        what, written = f"RadixCache/{options.policy}/prompt/chunk0", {}
    else:
        what = f"HiRadixCache/{options.policy}/{options.write}"
        written = dict(cpu_written_tokens=tree.copies.written, cpu_write_fails=tree.copies.refused)
    totals = [totals_of(options, requests, name, what, gpu + host, gpu_tokens=options.gpu, cpu_tokens=options.host,
                        hit_gpu=gpu, hit_cpu=host, **written)]
    made_by = f"hiradix_{options.write}" if options.host else "radix0510"
    sizes = f"g{options.gpu // oracle_files.KIBI}Ki_c{options.host // oracle_files.KIBI}Ki"
    return f"sgl_{made_by}_{options.policy}_{name}_p{options.page}_{sizes}", columns, totals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sglang_engine.KINDS)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--page", type=int, default=64)
    parser.add_argument("--policy", choices=["lru", "lfu"], default="lru")
    parser.add_argument("--variant", choices=["prompt", "output"], default="prompt")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a prefill chunk (0: the whole prompt)")
    parser.add_argument("--capacities", help="sizes of the GPU, a pair of columns each")
    parser.add_argument("--gpu", type=int, help="size of the GPU; hits are split by tier")
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--write", choices=["write_through", "write_through_selective"], default="write_through")
    parser.add_argument("--core", help="implementation of UnifiedRadixCache's tree: rust or python (SGLang's default)")
    options = parser.parse_args()
    started = time.monotonic()
    requests = oracle_files.read_trace(options.trace)
    make = capacities_file if options.capacities else tiers_file
    file_name, columns, totals = make(options, requests, oracle_files.trace_name(options.trace))
    columns = [("req", [r.index for r in requests]), ("prompt_tokens", [r.prompt_length for r in requests])] + columns
    oracle_files.write_columns(pathlib.Path(options.out) / f"{file_name}.csv.gz", columns)
    print(json.dumps({"file": f"{file_name}.csv.gz", "seconds": round(time.monotonic() - started, 1), "totals": totals}))


if __name__ == "__main__":
    main()
