"""Measures what monitoring costs: steps of a job with metrics off, on, scraped, and under a flood of connections.

Run it from the root of the repository after `cargo build --release`:

    python3 benchmarks/monitoring.py JOB [--loads off,on,scrapes:10] [--seconds 10] [--windows 1] [--rounds 3] [SET ...]

A load is one of

    off              the endpoint is off
    on               it listens, and nobody connects
    scrapes:N        N scrapes of /metrics a second
    silent:N         N connections that send nothing, opened again as soon as the server closes them
    partial:N        the same with connections that send half of a request

In each round, a training without the endpoint runs under the load `off`, and one with the endpoint under the others,
which alternate: each lasts for --seconds and comes --windows times. So trainings differ by what changes between two of
them, and loads of the endpoint only by what changes within seconds. Trainings never end by themselves, and the first
load begins --warm-up seconds after the first report; the time of a step is that of the training, from metrics.jsonl.
--cpus pins the training to some processors, such as 0-1; the clients then run on the others. SET is a setting such as
device.kind=cuda.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

CLIENTS = 8
PARTIAL = b"GET /metrics HTTP/1.1\r\nHost: rank"
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: rankine\r\n\r\n"


async def scrape(port, interval, until, counts):
    """Scrapes at regular times."""
    next_time = time.monotonic()
    while next_time < until:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 2)
            writer.write(WHOLE)
            page = await asyncio.wait_for(reader.read(-1), 2)
            writer.close()
            counts["answered" if page.startswith(b"HTTP/1.1 200") else "failed"] += 1
        except (OSError, asyncio.TimeoutError):
            counts["failed"] += 1
        next_time += interval
        await asyncio.sleep(max(0.0, next_time - time.monotonic()))


async def occupy(port, sent, until, counts):
    """Holds one connection, and opens it again when it is closed."""
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 2)
            counts["opened"] += 1
            if sent:
                writer.write(sent)
            await asyncio.wait_for(reader.read(-1), max(0.0, until - time.monotonic()))
            writer.close()
        except (OSError, asyncio.TimeoutError):
            counts["failed"] += 1
            await asyncio.sleep(0.01)


def client(load, port, until, share, cpus, results):
    """One process of clients, with its share of the load."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    counts = {"answered": 0, "opened": 0, "failed": 0}
    kind, number = load.split(":")

    async def all_of_them():
        if kind == "scrapes":
            # A scrape may take longer than the time between two of them.
            width = max(1, int(float(number) * share / 25))
            interval = width / (float(number) * share)
            await asyncio.gather(*(scrape(port, interval, until, counts) for _ in range(width)))
        else:
            sent = PARTIAL if kind == "partial" else b""
            connections = int(int(number) * share)
            await asyncio.gather(*(occupy(port, sent, until, counts) for _ in range(connections)))

    asyncio.run(all_of_them())
    results.put(counts)


def flood(load, port, seconds, cpus):
    """Runs a load, and returns what became of its requests."""
    kind, number = load.split(":")
    processes = min(CLIENTS, max(1, int(float(number)) // 25))
    until, results = time.monotonic() + seconds, multiprocessing.Queue()
    clients = [
        multiprocessing.Process(target=client, args=(load, port, until, 1 / processes, cpus, results))
        for _ in range(processes)
    ]
    for one in clients:
        one.start()
    counts = [results.get() for _ in clients]
    for one in clients:
        one.join()
    return {key: sum(count[key] for count in counts) for key in counts[0] if any(count[key] for count in counts)}


def reports(run):
    """Returns the step and the seconds of each report so far."""
    try:
        lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    records = [json.loads(line) for line in lines]
    return [(record["step"], record["seconds"]) for record in records if record["kind"] == "train"]


class Training:
    """A training that goes on until it is stopped; with an endpoint if a port is given."""

    def __init__(self, arguments, port):
        self.arguments, self.port = arguments, port
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="monitoring-", dir=arguments.dir))
        self.run = self.folder / "run"
        command = ["taskset", "-c", arguments.cpus] if arguments.cpus else []
        command += [arguments.rankine, "train", arguments.job, "--run-dir", str(self.run)]
        command += [word for setting in ["train.epochs=1000000", *arguments.sets] for word in ("--set", setting)]
        command += ["--metrics", str(port)] if port else []
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        while not reports(self.run):
            time.sleep(0.05)
            if self.process.poll() is not None:
                raise SystemExit((self.folder / "log").read_text())
        time.sleep(arguments.warm_up)

    def under(self, load):
        """Returns the milliseconds of a step under a load, and what became of the requests."""
        arguments = self.arguments
        own = set(parse_cpus(arguments.cpus)) if arguments.cpus else set()
        others, counts = os.sched_getaffinity(0) - own if own else set(), {}
        before = len(reports(self.run))
        if ":" in load:
            counts = flood(load, self.port, arguments.seconds, others)
        else:
            time.sleep(arguments.seconds)
        during = reports(self.run)[before - 1 :]
        if len(during) < 2:
            raise SystemExit("too few reports: lower train.log_every_steps, or raise --seconds")
        (first, begin), (last, end) = during[0], during[-1]
        return 1000 * (end - begin) / (last - first), counts

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder)


def parse_cpus(text):
    """Returns the processors of a list such as 0-3,8."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job")
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--loads", default="off,on,scrapes:10")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm-up", type=float, default=2)
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpus", help="processors of the training")
    parser.add_argument("--port", type=int, default=9700)
    parser.add_argument("--rankine", default="target/release/rankine")
    parser.add_argument("--dir", help="where run folders are made")
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    loads = arguments.loads.split(",")
    times, port = {load: [] for load in loads}, arguments.port
    # Loads of one endpoint share a training.
    groups = [[load for load in loads if load == "off"], [load for load in loads if load != "off"]]
    for round_number in range(arguments.rounds):
        for group in filter(None, groups):
            port += 1
            training = Training(arguments, None if group == ["off"] else port)
            for window in range(arguments.windows):
                for load in group if (round_number + window) % 2 == 0 else reversed(group):
                    ms, counts = training.under(load)
                    times[load].append(ms)
                    print(f"{load:>14}  {ms:9.4f} ms  {counts or ''}", flush=True)
            training.stop()
    base = statistics.median(times[loads[0]])
    print(f"\n{'load':>14}  {'ms, median':>10}  {'to ' + loads[0]:>10}  middle half of {len(times[loads[0]])}")
    for load in loads:
        low, median, high = statistics.quantiles(times[load], n=4) if len(times[load]) > 1 else 3 * times[load]
        print(f"{load:>14}  {median:10.4f}  {100 * (median / base - 1):+9.2f}%  {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
