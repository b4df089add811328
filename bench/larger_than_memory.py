#!/usr/bin/env python3
"""Measures goldcrest and llama.cpp in turn on mixtures of experts larger than memory, under memory limits, and prints tables.

    bench/larger_than_memory.py MODEL.gguf [MODEL2.gguf ...] --peer target/peers/llama.cpp/native/bin/llama-bench \\
        --limits 3GiB 4GiB 6GiB 8GiB 12GiB none -t 2 --json cells.jsonl
    bench/larger_than_memory.py --table cells.jsonl

Each process starts with the model's file dropped from the page cache, in a memory group of its own (under_limit.py says what that needs).
goldcrest is told the limit (--memory) and runs in a group without one, whose peak with page cache is to stay below it; then once more,
briefly, in a group limited to it. llama.cpp reads through mmap, without repacking, in a group limited to it, once for each read-ahead of
the disk. Right before and after the process with goldcrest's decoding, a probe reads from random places of the file past the page cache.
From that comes the bound of decoding: 1 / (time of a token with everything in memory, the row of the limit "none" + bytes that a token
reads / the mean of both probes). Without a limit, llama.cpp is measured with the first read-ahead alone: it reads everything at its start.
"""

import argparse
import datetime
import json
import mmap
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import compare
import under_limit

# The probe of the disk: threads that read as goldcrest's do, and for how long.
PROBE_THREADS, PROBE_SECONDS = 8, 3
# Tokens of the prompt and the reply of the run that shows that a limit holds.
SHORT = (64, 4)
# The share of the bound that decoding is to reach.
WANTED = 0.85


class Cell(NamedTuple):
    """What one process measures."""
    model: str
    # Bytes, or none.
    limit: int | None
    who: str
    # Tokens.
    prompt: int
    reply: int
    # Of the disk: "default" or KiB.
    read_ahead: str | int
    # Whether goldcrest's group has the limit too.
    capped: bool
    round: int

    def __str__(self):
        tests = " + ".join([f"pp{self.prompt}"] * (self.prompt > 0) + [f"tg{self.reply}"] * (self.reply > 0))
        ahead = "" if self.read_ahead == "default" else f", {self.read_ahead} KiB ahead"
        return f"{self.model}, {limit_name(self.limit)}, {self.who}: {tests}{ahead}{', limited' if self.capped else ''}"


def main():
    options = parse_options()
    if options.table:
        return print_tables(load(options.table))
    under_limit.exit_on_signals()
    records = load(options.json) if options.resume and os.path.exists(options.json) else []
    check(options, records)
    try:
        measure_all(options, records)
    finally:
        print_tables(records)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="GGUF files of mixtures of experts")
    parser.add_argument("--peer", metavar="PATH", help="llama-bench")
    parser.add_argument("--ours", default=os.path.join(compare.ROOT, "target/release/goldcrest"), metavar="PATH", help="goldcrest")
    parser.add_argument("--only", choices=["ours", "peer"], help="measure one of the two")
    parser.add_argument("--limits", nargs="+", type=limit_of, metavar="SIZE",
                        default=[2**30 * gib for gib in (3, 4, 6, 8, 12)] + [None], help="6GiB, 512MiB, bytes or none")
    parser.add_argument("-p", "--prompt", type=counts, default=[512, 2048], metavar="N,N,...",
                        help="tokens of prompts, the first in goldcrest's process with the reply; 0: none")
    parser.add_argument("-n", "--reply", type=int, default=16, metavar="N", help="tokens of replies; 0: none")
    parser.add_argument("--peer-reply", nargs=2, type=int, default=[4, 8], metavar=("N", "N"),
                        help="tokens of llama.cpp's replies under a limit, with the default read-ahead (where one can take a quarter of "
                             "a minute) and with others; default: 4 8")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("-r", "--repetitions", type=int, default=1, metavar="N", help="in each process, after one not counted")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="processes of each program, in turn")
    parser.add_argument("--peer-read-ahead", nargs="+", type=read_ahead_of, default=["default", 128], metavar="KIB",
                        help="read-ahead of the disk in llama.cpp's runs: default or KiB")
    parser.add_argument("--ours-options", default="", metavar="TEXT", help="more options of goldcrest bench")
    parser.add_argument("--peer-options", default="", metavar="TEXT", help="more options of llama-bench")
    parser.add_argument("--probe-bytes", type=under_limit.size, default=450 * 2**10, metavar="SIZE",
                        help="of one read of the probe, rounded up to pages; default: 450KiB")
    parser.add_argument("--timeout", type=float, default=600, metavar="S", help="most seconds of a process")
    parser.add_argument("--json", metavar="FILE", help="add each process to this file as a line, once it has ended")
    parser.add_argument("--resume", action="store_true", help="leave out what is in that file already, unless it failed")
    parser.add_argument("--table", metavar="FILE", help="print the tables of such a file, measure nothing")
    options = parser.parse_args()
    if not options.table and not options.models:
        parser.error("a model is needed, or --table FILE")
    if options.resume and not options.json:
        parser.error("--resume needs --json FILE")
    if min(options.threads, options.repetitions, options.rounds, *options.peer_reply) < 1 or options.reply < 0:
        parser.error("at least one thread, repetition, round and token of --peer-reply are needed, and replies of 0 tokens or more")
    if not options.table and options.only != "ours" and not options.peer:
        parser.error("--peer PATH is needed, or --only ours")
    if len({name_of(path) for path in options.models}) < len(options.models):
        parser.error("models are told apart by the names of their files")
    return options


def limit_of(text):
    return None if text == "none" else under_limit.size(text)


def read_ahead_of(text):
    return text if text == "default" else int(text)


def counts(text):
    return [number for number in map(int, text.split(",")) if number > 0]


def load(path):
    """The records of a file."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    try:
        return [record | {"cell": Cell(**record["cell"])} for record in map(json.loads, lines)]
    except (ValueError, TypeError, KeyError) as error:
        sys.exit(f"error: {path}: no record of this script in some line: {error}")


def check(options, records):
    """Ends what could not be measured before anything takes long."""
    for program in [options.ours] * (options.only != "peer") + [options.peer] * (options.only != "ours"):
        if not shutil.which(program):
            sys.exit(f"error: {program}: no such command")
    for path in options.models:
        os.stat(path)
    if options.json and not options.resume and os.path.exists(options.json) and os.path.getsize(options.json):
        sys.exit(f"error: {options.json} has records: add what is missing with --resume, or name another file")
    if any(record["settings"] != settings(options) for record in records):
        sys.exit(f"error: {options.json} was measured with other settings: name another file")
    with under_limit.memory_group(None):
        pass
    if options.only != "ours":
        for kib in options.peer_read_ahead:
            with under_limit.read_ahead(kib if kib != "default" else None, options.models):
                pass


def settings(options):
    """What is the same in all records of a file."""
    return {"threads": options.threads, "repetitions": options.repetitions, "ours_options": options.ours_options,
            "peer_options": options.peer_options, "peer_reply": options.peer_reply, "probe_bytes": pages(options.probe_bytes),
            "machine": compare.machine()}


def measure_all(options, records):
    known = {record["cell"] for record in records if record["outcome"] != "failed"}
    todo = [(path, cell) for path in options.models for cell in cells(name_of(path), options) if cell not in known]
    for index, (path, cell) in enumerate(todo):
        tell(f"{index + 1} of {len(todo)}: {cell}")
        record = measure(path, cell, options)
        tell(f"    {outcome_line(record)}")
        records.append(record)
        if options.json:
            with open(options.json, "a", encoding="utf-8") as file:
                print(json.dumps(record | {"cell": cell._asdict()}), file=file)


def cells(model, options):
    for limit in options.limits:
        for round_number in range(options.rounds):
            for cell in cells_of_round(model, limit, round_number, options):
                if options.only in (None, cell.who):
                    yield cell


def cells_of_round(model, limit, round_number, options):
    """One round, in which what is compared runs close together."""
    def cell(who, prompt, reply, read_ahead="default", capped=False):
        return Cell(model, limit, who, prompt, reply, read_ahead, capped, round_number)

    first, *others = options.prompt or [0]
    aheads = options.peer_read_ahead if limit else options.peer_read_ahead[:1]
    if first or options.reply:
        yield cell("ours", first, options.reply)
    for kib in aheads if options.reply else []:
        yield cell("peer", 0, options.peer_reply[kib != "default"] if limit else options.reply, kib)
    for kib in aheads if first else []:
        yield cell("peer", first, 0, kib)
    for prompt in others:
        yield cell("ours", prompt, 0)
        for kib in aheads:
            yield cell("peer", prompt, 0, kib)
    if limit and round_number == 0:
        yield cell("ours", *SHORT, capped=True)


def measure(path, cell, options):
    """Runs one process, and tells all that is known of it."""
    command = ours_command(path, cell, options) if cell.who == "ours" else peer_command(path, cell, options)
    probed = cell.who == "ours" and cell.reply > 0 and cell.limit and not cell.capped
    under_limit.drop(path)
    before = probe(path, options.probe_bytes) if probed else None
    started = datetime.datetime.now().isoformat(timespec="seconds")
    found, ahead, out, err = run(path, command, cell, options.timeout)
    after = probe(path, options.probe_bytes) if probed else None
    outcome, results, error = judge(cell, found, out, err, options.timeout)
    return {"cell": cell, "started": started, "outcome": outcome, "results": results, "error": error,
            "disk_gb_per_s": [before, after] if before and after else None, "read_ahead_kib": ahead, "process": found,
            "model_bytes": os.path.getsize(path), "timeout_s": options.timeout, "command": shlex.join(command),
            "settings": settings(options)}


def ours_command(path, cell, options):
    memory = ["--memory", str(cell.limit)] if cell.limit else []
    return [options.ours, "bench", path, *tests(cell, options), *memory, "--json", *shlex.split(options.ours_options)]


def peer_command(path, cell, options):
    return [options.peer, "-m", path, *tests(cell, options), "--repack", "0", "-o", "json", *shlex.split(options.peer_options)]


def tests(cell, options):
    """Both programs name these options alike."""
    return ["-p", str(cell.prompt), "-n", str(cell.reply), "-t", str(options.threads), "-r", str(options.repetitions)]


def run(path, command, cell, timeout):
    """What under_limit.py tells of a process, the read-ahead that it had, and its output."""
    kib = None if cell.read_ahead == "default" else cell.read_ahead
    limit = cell.limit if cell.who == "peer" or cell.capped else None
    with (tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err,
          under_limit.read_ahead(kib, [path]), under_limit.memory_group(limit) as (group, names)):
        setting = under_limit.read_ahead_setting(path)
        ahead = int(under_limit.read(setting)) if setting else None
        found = under_limit.measure(group, names, command, timeout, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        return found, ahead, text_of(out), text_of(err)


def text_of(file):
    file.seek(0)
    return file.read().decode(errors="replace").strip()


def judge(cell, found, out, err, timeout):
    """How a process ended, the speeds that it printed, and what went wrong."""
    if found["exit_status"] == 0:
        try:
            return "done", ours_results(json.loads(out)) if cell.who == "ours" else peer_results(json.loads(out)), None
        except (ValueError, TypeError, KeyError) as error:
            return "failed", {}, f"its output cannot be read: {error!r}"
    error = err.splitlines()[-1] if err else None
    if found["signal"] == "SIGKILL" and not found["oom_kills"] and found["seconds"] >= timeout:
        return f"over {timeout:g} s", {}, error
    if found["oom_kills"] or found["signal"] == "SIGKILL":
        return "killed for memory", {}, error
    return "failed", {}, error


def ours_results(report):
    found = lambda result: {"tokens_per_s": result["tokens_per_s"]["runs"], "experts": result["experts"]}
    return {result["test"]: found(result) for result in report["results"]}


def peer_results(report):
    name = lambda result: f"tg{result['n_gen']}" if result["n_gen"] else f"pp{result['n_prompt']}"
    return {name(result): {"tokens_per_s": result["samples_ts"]} for result in report}


def probe(path, length):
    """GB a second that threads read from random places of a file, past the page cache; none where that cannot be done."""
    length = pages(length)
    places = os.path.getsize(path) // mmap.PAGESIZE - length // mmap.PAGESIZE
    if places < 1:
        return tell("    no probe: the file is smaller than its reads")
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return tell(f"    no probe: this file system does not read past the page cache: {error.strerror}")
    try:
        return probe_file(file, places, length)
    except OSError as error:
        return tell(f"    no probe: reading past the page cache: {error.strerror}")
    finally:
        os.close(file)


def probe_file(file, places, length):
    started, counts, errors = time.monotonic(), [], []

    def read_on():
        count = 0
        try:
            # A map begins at a page.
            with mmap.mmap(-1, length) as room:
                while time.monotonic() < started + PROBE_SECONDS:
                    count += os.preadv(file, [room], random.randrange(places + 1) * mmap.PAGESIZE)
        except OSError as error:
            errors.append(error)
        counts.append(count)

    threads = [threading.Thread(target=read_on) for _ in range(PROBE_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts) / (time.monotonic() - started) / 1e9


def pages(length):
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE


def tell(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def outcome_line(record):
    speeds = [f"{test} {shown(result['tokens_per_s'])} tok/s" for test, result in record["results"].items()]
    disk = record["disk_gb_per_s"]
    return "; ".join([*speeds, *([record["outcome"]] if record["outcome"] != "done" else []), under_limit.summary(record["process"]),
                      *([f"disk {disk[0]:.2f} and {disk[1]:.2f} GB/s"] if disk else []), *filter(None, [record["error"]])])


def print_tables(records):
    if not records:
        return
    # What was measured again counts alone.
    records = list({record["cell"]: record for record in records}.values())
    rows = rows_of(records)
    print_setting(records)
    if any(record["cell"].who == "ours" for record in records):
        print_ours(records, rows)
    print_both(records, rows)


def print_setting(records):
    machines = sorted({record["settings"]["machine"] for record in records})
    threads = sorted({record["settings"]["threads"] for record in records})
    sizes = {record["cell"].model: record["model_bytes"] / 1e9 for record in records}
    models = ", ".join(f"{stem(model)} {size:.1f} GB" for model, size in sizes.items())
    dates = sorted(record["started"][:10] for record in records)
    print(f"{', '.join(machines)}; {', '.join(map(str, threads))} threads; {models}; {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}\n")


def print_ours(records, rows):
    """goldcrest alone. In bold: what is above its limit, or below the share that is wanted."""
    prompts = prompts_of(records)
    columns = ["model", "limit", "decode, tok/s", "of bound", "disk before, after, GB/s", "read a token, MB", "in memory", "waited",
               *(f"prefill {prompt}, tok/s" for prompt in prompts), "peak with page cache, GiB", "rss, GiB", "under the limit"]
    print_line(columns)
    print_line(["---"] * len(columns))
    for model, limit in rows:
        of_row = picked(records, model, limit, "ours")
        full = [record for record in of_row if not record["cell"].capped]
        short = [record["outcome"] for record in of_row if record["cell"].capped]
        experts = [found["experts"] for found in results(full, "tg") if found["experts"]]
        done = [record["process"] for record in full if record["outcome"] == "done"]
        peak, rss = (max((process[key] for process in done), default=None) for key in ("peak_bytes", "peak_rss_bytes"))
        holds = "-" if not short else "runs" if short == ["done"] else bold(short[0])
        print_line([stem(model), limit_name(limit), speed(full, "tg"), of_bound(records, model, limit), disk(full), *use(experts),
                    *(speed(full, f"pp{prompt}") for prompt in prompts), bold(gib(peak), limit and peak and peak > limit), gib(rss), holds])
    print()


def print_both(records, rows):
    """Beside llama.cpp, for each of its read-aheads."""
    aheads = list(dict.fromkeys(record["cell"].read_ahead for record in records if record["cell"].who == "peer"))
    if not aheads:
        return
    columns = ["model", "limit", "work", "goldcrest, tok/s"]
    for kib in aheads:
        columns += [f"llama.cpp, {ahead_name(records, kib)}, tok/s", "ratio"]
    print_line(columns)
    print_line(["---"] * len(columns))
    for model, limit in rows:
        for work, kind in [("decode", "tg")] + [(f"prefill {prompt}", f"pp{prompt}") for prompt in prompts_of(records)]:
            ours = [record for record in picked(records, model, limit, "ours") if not record["cell"].capped]
            line = [stem(model), limit_name(limit), work, speed(ours, kind)]
            for kib in aheads:
                peer = [record for record in picked(records, model, limit, "peer") if record["cell"].read_ahead == kib]
                line += [speed(peer, kind), ratio(rates(ours, kind), rates(peer, kind))]
            if set(line[3:]) != {"-"}:
                print_line(line)


def print_line(columns):
    print(f"| {' | '.join(columns)} |")


def rows_of(records):
    """Models in the order of measurement, each with its limits from the smallest to none."""
    rows = {(record["cell"].model, record["cell"].limit) for record in records}
    models = list(dict.fromkeys(record["cell"].model for record in records))
    return sorted(rows, key=lambda row: (models.index(row[0]), row[1] is None, row[1] or 0))


def prompts_of(records):
    return sorted({record["cell"].prompt for record in records if record["cell"].prompt and not record["cell"].capped})


def picked(records, model, limit, who):
    return [record for record in records if record["cell"][:3] == (model, limit, who)]


def results(records, kind):
    """What some processes printed of one kind of work: "tg" for replies, or "pp512"."""
    kind_of = lambda test: "tg" if test.startswith("tg") else test
    return [result for record in records for test, result in record["results"].items() if kind_of(test) == kind]


def rates(records, kind):
    return [rate for result in results(records, kind) for rate in result["tokens_per_s"]]


def speed(records, kind):
    """The speeds of some work, or why there are none."""
    found = rates(records, kind)
    if found:
        return shown(found)
    wanted = [record for record in records if kind == f"pp{record['cell'].prompt}" or (kind == "tg" and record["cell"].reply)]
    return wanted[-1]["outcome"] if wanted else "-"


def of_bound(records, model, limit):
    """The share of what the disk and the processor allow that decoding reaches, and that bound."""
    without = picked(records, model, None, "ours")
    measured = [record for record in picked(records, model, limit, "ours") if record["disk_gb_per_s"]]
    if not rates(without, "tg") or not rates(measured, "tg"):
        return "-"
    compute = 1 / statistics.median(rates(without, "tg"))
    pairs = [(rates([record], "tg"), bound(record, compute)) for record in measured if rates([record], "tg")]
    share = statistics.median(statistics.median(runs) / most for runs, most in pairs)
    return bold(f"{share:.2f}", share < WANTED) + f" of {number(statistics.median(most for _, most in pairs))}"


def bound(record, compute):
    experts = results([record], "tg")[0]["experts"]
    missed = experts["bytes_read_per_token"] if experts else 0
    return 1 / (compute + missed / (statistics.mean(record["disk_gb_per_s"]) * 1e9))


def use(experts):
    """Bytes read a token, hits and time waited, where experts were read at all."""
    if not experts:
        return ["-"] * 3
    mean = lambda key: statistics.mean(found[key] for found in experts)
    return [f"{mean('bytes_read_per_token') / 1e6:.0f}", *(f"{mean(key) * 100:.0f} %" for key in ("hit_share", "waited_share"))]


def disk(records):
    pairs = [record["disk_gb_per_s"] for record in records if record["disk_gb_per_s"]]
    return "; ".join(f"{before:.2f}, {after:.2f}" for before, after in pairs) or "-"


def ratio(ours, peer):
    return bold(number(statistics.median(ours) / statistics.median(peer))) if ours and peer else "-"


def shown(runs):
    middle = number(statistics.median(runs))
    return middle if len(runs) == 1 else f"{middle} [{number(min(runs))}..{number(max(runs))}]"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def bold(text, wrong=True):
    return f"**{text}**" if wrong else text


def gib(count):
    return "-" if count is None else f"{count / 2**30:.2f}"


def limit_name(limit):
    if limit is None:
        return "none"
    return f"{limit / 2**30:g} GiB" if limit >= 2**30 else f"{limit / 2**20:g} MiB"


def ahead_name(records, kib):
    if kib != "default":
        return f"{kib} KiB ahead"
    found = sorted({record["read_ahead_kib"] for record in records if record["cell"].read_ahead == kib and record["read_ahead_kib"]})
    return f"{' or '.join(map(str, found))} KiB ahead (default)" if found else "default"


def name_of(path):
    return os.path.basename(path)


def stem(model):
    return model.removesuffix(".gguf")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
