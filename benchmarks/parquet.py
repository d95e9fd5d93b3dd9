"""Compares how fast Rankine and PyArrow decode Parquet: megabytes of decoded data per second of processor time.

Run it from the root of the repository, with a Python that has NumPy and PyArrow:

    python benchmarks/parquet.py
    python benchmarks/parquet.py --codecs zstd,brotli --features parquet,zstd

The script writes a file of columns like Criteo's, with integers, floats, strings and a list, in four row groups.
Rankine and PyArrow then decode all of its columns in turn, each on one thread. Megabytes are PyArrow's: the size of the
table in Arrow's format. PyArrow reads one row group after another, as Rankine does, and drops it. Rankine keeps strings
of a dictionary as numbers of its entries; PyArrow copies each string.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy
import pyarrow
import pyarrow.parquet

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Distinct categories of each column, similar to Criteo's log.
CATEGORIES = [1460, 583, 10_131_227, 2_202_608, 305, 24, 12517, 633, 3, 93145, 5683, 8_351_593, 3194, 27, 14992,
              5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572]


def table(rows):
    """Returns rows whose categories follow a power law of exponent 1.1, every other column as hexadecimal digits."""
    random = numpy.random.default_rng(1)
    columns = {"label": pyarrow.array(random.random(rows) < 0.25).cast(pyarrow.int32())}
    for column in range(13):
        numbers = numpy.exp(random.random(rows) * 14 - 3)
        numbers = numbers.astype(numpy.float32 if column % 2 else numpy.int32)
        columns[f"I{column + 1}"] = pyarrow.array(numbers, mask=random.random(rows) < 0.15)
    for column, categories in enumerate(CATEGORIES):
        rank = ((1 - random.random(rows) * (1 - (categories + 1) ** -0.1)) ** -10).astype(numpy.uint64)
        key = ((rank * numpy.uint64(26) + numpy.uint64(column)) * numpy.uint64(0x9E3779B97F4A7C15)) >> numpy.uint64(32)
        key = numpy.char.mod("%08x", key) if column % 2 else key.astype(numpy.int64)
        columns[f"C{column + 1}"] = pyarrow.array(key, mask=rank == 3)
    lengths = random.integers(0, 8, rows)
    offsets = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
    values = pyarrow.array(random.integers(0, 5000, offsets[-1]))
    columns["seen"] = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), values)
    return pyarrow.table(columns)


def by_pyarrow(path):
    """Returns the seconds of processor time in which PyArrow decodes a file."""
    file = pyarrow.parquet.ParquetFile(path)
    start = time.process_time()
    for group in range(file.num_row_groups):
        file.read_row_group(group, use_threads=False)
    return time.process_time() - start


def by_rankine(path, features):
    """Returns the seconds of processor time in which Rankine decodes a file."""
    command = ["cargo", "test", "--release", "--quiet", "-p", "rankine-reader", "--features", features, "--lib", "--",
               "speed_of_parquet", "--ignored", "--nocapture"]
    output = subprocess.run(command, cwd=ROOT, env={**os.environ, "RANKINE_SPEED_PARQUET": str(path)}, check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    return next(json.loads(line) for line in output.splitlines() if line.startswith("{"))["processor_seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7, help="times that each decodes a file")
    parser.add_argument("--codecs", default="none,snappy,zstd,brotli", help="separated by commas")
    parser.add_argument("--features", default="parquet", help="of Rankine's reader")
    arguments = parser.parse_args()
    pyarrow.set_cpu_count(1)
    rows = table(arguments.rows)
    megabytes = rows.nbytes / 1e6
    print(f"{megabytes:.0f} MB in {arguments.rows} rows; PyArrow {pyarrow.__version__}; MB per processor second:")
    with tempfile.TemporaryDirectory() as folder:
        for codec in arguments.codecs.split(","):
            path = pathlib.Path(folder) / f"{codec}.parquet"
            pyarrow.parquet.write_table(rows, path, compression=codec, row_group_size=-(-arguments.rows // 4))
            # The first of each is not counted.
            pairs = [(by_rankine(path, arguments.features), by_pyarrow(path)) for _ in range(arguments.rounds + 1)][1:]
            rankine, pyarrows = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
            ratio = statistics.median(theirs / ours for ours, theirs in pairs)
            print(f"{codec}: Rankine {megabytes / rankine:.0f}, PyArrow {megabytes / pyarrows:.0f}, ratio {ratio:.2f}",
                  flush=True)


if __name__ == "__main__":
    sys.exit(main())
