"""Reads traces of block hashes and writes oracle files: a CSV with one row a request, compressed by gzip."""

import csv
import gzip
import io
import itertools
import json
import pathlib
import re

MEBI = 1 << 20
KIBI = 1 << 10

# Tokens of one id in the trace.
TRACE_BLOCK = 512

# Generated tokens are larger than every id of a trace, and each request has a range of its own.
FIRST_GENERATED_TOKEN = 1 << 40
GENERATED_TOKENS_MAX = 1 << 20

# Traces whose oracles have a shorter name than the file.
SHORT_NAMES = {"mooncake_1000": "mooncake1000", "mooncake_conversation": "conversation"}


class Request:
    """A line of the trace: its lengths and the ids of its prompt's blocks."""

    def __init__(self, index, line):
        self.index = index
        self.prompt_length = line["input_length"]
        self.response_length = line["output_length"]
        self.ids = line["hash_ids"]
        if -(-self.prompt_length // TRACE_BLOCK) != len(self.ids):
            raise ValueError(
                f"request {index}: {len(self.ids)} ids do not cover {self.prompt_length} tokens in blocks of {TRACE_BLOCK}")
        if self.response_length > GENERATED_TOKENS_MAX:
            raise ValueError(f"request {index}: a response of {self.response_length} tokens is too long")

    def prompt(self):
        """All tokens of a block are the block's id; the last block is cut to the prompt's length."""
        tokens = []
        for block in self.ids:
            tokens.extend([block] * TRACE_BLOCK)
        return tokens[:self.prompt_length]

    def response(self):
        first = FIRST_GENERATED_TOKEN + self.index * GENERATED_TOKENS_MAX
        return list(range(first, first + self.response_length))


def open_text(path):
    return gzip.open(path, "rt") if str(path).endswith(".gz") else open(path)


def read_trace(path):
    with open_text(path) as file:
        lines = [line for line in file if line.strip()]
    if not lines:
        raise ValueError(f"{path}: no requests")
    return [Request(index, json.loads(line)) for index, line in enumerate(lines)]


def cut_trace(path, requests, folder):
    """Writes the first requests of a trace, as conversation2000.jsonl for example."""
    cut = pathlib.Path(folder) / f"{trace_name(path)}{requests}.jsonl"
    with open_text(path) as file, open(cut, "w") as out:
        out.writelines(itertools.islice((line for line in file if line.strip()), requests))
    return cut


def trace_name(path):
    """The trace's part of an oracle's file name, such as conversation2000."""
    stem = pathlib.Path(path).name
    for suffix in (".gz", ".jsonl", ".json"):
        stem = stem.removesuffix(suffix)
    return SHORT_NAMES.get(stem) or re.sub(r"[^A-Za-z0-9]", "", stem)


def size_name(tokens):
    """A capacity in a column's name: 5Mi, 256Ki or inf."""
    if tokens is None:
        return "inf"
    return f"{tokens // MEBI}Mi" if tokens % MEBI == 0 else f"{tokens // KIBI}Ki"


def tier_sizes_name(gpu_tokens, cpu_tokens):
    """Two capacities in a file's name, in the same unit."""
    unit, letter = (MEBI, "Mi") if gpu_tokens % MEBI == 0 and cpu_tokens % MEBI == 0 else (KIBI, "Ki")
    return f"g{gpu_tokens // unit}{letter}_c{cpu_tokens // unit}{letter}"


def write_packed(path, text):
    """No time and no name in the header: the same text gives the same bytes."""
    with open(path, "wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
        packed.write(text.encode())


def write_columns(path, columns):
    """columns: pairs of a name and a list, one value a request."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    writer.writerows(zip(*[values for _, values in columns], strict=True))
    write_packed(path, text.getvalue())


def read_columns(path):
    with open_text(path) as file:
        rows = list(csv.reader(file))
    return {name: [int(row[i]) for row in rows[1:]] for i, name in enumerate(rows[0])}
