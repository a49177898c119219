"""Published tables in Parquet become CSV that kvtier reads."""

import csv
import gzip
import math

import pyarrow
import pyarrow.parquet
import pytest

from kvtier import tables


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "gemm_perf.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({
            "gemm_dtype": ["bfloat16", "fp8", "fp8"],
            "m": [1, 2, 4],
            "latency": [0.015, None, math.nan],
        }), path)
    return path


def rows_of(path):
    with gzip.open(path, "rt") as file:
        return list(csv.DictReader(file))


def test_columns_and_rows_stay_as_they_are(parquet, tmp_path):
    assert tables.main(["--out", str(tmp_path / "csv"), str(parquet)]) == 0
    rows = rows_of(tmp_path / "csv" / "gemm_perf.csv.gz")
    assert [row["m"] for row in rows] == ["1", "2", "4"]
    assert rows[0]["gemm_dtype"] == "bfloat16"
    assert float(rows[0]["latency"]) == 0.015


def test_missing_values_are_cells_that_an_import_drops(parquet, tmp_path):
    target = tmp_path / "t.csv.gz"
    assert tables.to_csv(parquet, target) == 3
    assert [row["latency"] for row in rows_of(target)][1:] == ["", "nan"]


def test_the_same_rows_are_the_same_bytes(parquet, tmp_path):
    tables.to_csv(parquet, tmp_path / "a.csv.gz")
    tables.to_csv(parquet, tmp_path / "b.csv.gz")
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
