"""Converts Parquet tables of kernel times to CSV, for `kvtier calibrate --from-table`.

    python -m kvtier.tables --out DIR gemm_perf.parquet context_attention_perf.parquet

writes one gzipped CSV for each Parquet file, with the same columns. kvtier itself reads only CSV.
The files of configs/columns map the columns.
"""

from __future__ import annotations

import argparse
import gzip
import io
import pathlib
from collections.abc import Sequence


def to_csv(source: str | pathlib.Path, target: str | pathlib.Path) -> int:
    """Writes the rows of a Parquet file as CSV, gzipped if `target` ends in .gz.

    Returns the number of rows. A missing value is an empty cell. Needs pyarrow (the extra
    `parquet`).
    """
    from pyarrow import csv, parquet

    table = parquet.read_table(source)
    buffer = io.BytesIO()
    csv.write_csv(table, buffer, csv.WriteOptions(quoting_style="needed"))
    data = buffer.getvalue()
    target = pathlib.Path(target)
    if target.suffix == ".gz":
        data = gzip.compress(data, mtime=0)  # equal rows give equal bytes
    target.write_bytes(data)
    return table.num_rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kvtier.tables", description=__doc__)
    parser.add_argument("tables", nargs="+", metavar="PARQUET", help="tables to convert")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the CSV files")
    options = parser.parse_args(arguments)
    folder = pathlib.Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    for table in options.tables:
        target = folder / (pathlib.Path(table).stem + ".csv.gz")
        rows = to_csv(table, target)
        print(f"{target}: {rows} rows")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
