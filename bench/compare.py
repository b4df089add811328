#!/usr/bin/env python3
"""Measures goldcrest and llama.cpp in turn on the same model file, and prints the ratio of their medians.

    bench/compare.py MODEL.gguf --peer target/peers/llama.cpp/native/bin/llama-bench -p 512 -n 128 -d 0,4096 -t 2

Each round runs each program once; the order turns round from one to the next, so that a machine that drifts favours nobody. Each
repetition of a test comes after one that is not counted, in both programs. llama.cpp is measured with and without repacking its
weights, and each test is compared with the better of the two. "of read" is what goldcrest's decoding reads of its weights in a second as
a share of what a probe reads beside it (--roofline).
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main():
    options = parse_options()
    ours, peer, shares, reads = {}, {}, {}, {}
    commands = {"ours": ours_command(options), "peer": peer_command(options)}
    for round_number in range(options.rounds):
        print(f"round {round_number + 1} of {options.rounds}", file=sys.stderr)
        order = ["ours", "peer"] if round_number % 2 == 0 else ["peer", "ours"]
        for who in order:
            report = run(commands[who])
            if who == "ours":
                add_ours(report, ours, shares, reads)
            else:
                add_peer(report, peer)
    rows = [row(test, ours[test], peer, shares.get(test, []), reads.get(test, [])) for test in ours]
    if options.json:
        report = {"model": os.path.basename(options.model), "model_bytes": os.path.getsize(options.model),
                  "machine": machine(), "threads": options.threads, "rounds": options.rounds,
                  "commands": {who: shlex.join(command) for who, command in commands.items()}, "results": rows}
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print_table(rows)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--peer", required=True, metavar="PATH", help="llama-bench")
    parser.add_argument("--ours", default=os.path.join(ROOT, "target/release/goldcrest"), metavar="PATH", help="goldcrest")
    parser.add_argument("--peer-options", default="", metavar="TEXT", help="more options of llama-bench")
    parser.add_argument("--ours-options", default="", metavar="TEXT", help="more options of goldcrest bench")
    parser.add_argument("-p", "--prompt", default="512", metavar="N,N,...", help="tokens of prompts; 0: none")
    parser.add_argument("-n", "--reply", default="128", metavar="N,N,...", help="tokens of replies; 0: none")
    parser.add_argument("-d", "--depth", default="0", metavar="N,N,...", help="tokens of context before")
    parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("-r", "--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--json", action="store_true", help="print JSON with every run")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("at least one round and one thread are needed")
    return options


def tests(options):
    """Both programs name these options alike."""
    return ["-p", options.prompt, "-n", options.reply, "-d", options.depth, "-t", str(options.threads), "-r", "1"]


def ours_command(options):
    return [options.ours, "bench", options.model, *tests(options), "--roofline", "--json", *shlex.split(options.ours_options)]


def peer_command(options):
    return [options.peer, "-m", options.model, *tests(options), "--repack", "0,1", "-o", "json", *shlex.split(options.peer_options)]


def run(command):
    """The JSON that a program prints."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
    except OSError as error:
        sys.exit(f"error: {command[0]}: {error.strerror}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {shlex.join(command)} failed:\n{error.stderr[-2000:]}")
    return json.loads(done.stdout)


def add_ours(report, rates, shares, reads):
    for result in report["results"]:
        test = result["test"]
        rates.setdefault(test, []).extend(result["tokens_per_s"]["runs"])
        # Prompts reuse each weight for many tokens: what they read says nothing.
        if test.startswith("tg"):
            shares.setdefault(test, []).append(result["share_of_read"])
        reads.setdefault(test, []).append(result["probe"]["read_gb_per_s"])


def add_peer(report, rates):
    """Rates by test, then by whether weights are repacked."""
    for result in report:
        prompt, reply, depth = result["n_prompt"], result["n_gen"], result["n_depth"]
        test = (f"pp{prompt}" if reply == 0 else f"tg{reply}") + (f"@d{depth}" if depth else "")
        settings = rates.setdefault(test, {})
        settings.setdefault("repack" if result["repack"] else "no repack", []).extend(result["samples_ts"])


def row(test, ours, peer, shares, reads):
    if test not in peer:
        sys.exit(f"error: the peer did not measure {test}, but {', '.join(peer)}")
    settings = {setting: spread(runs) for setting, runs in peer[test].items()}
    best = max(settings, key=lambda setting: settings[setting]["median"])
    ours = spread(ours)
    return {"test": test, "ours": ours, "peer": settings, "peer_best": best,
            "ratio": ours["median"] / settings[best]["median"],
            "share_of_read": statistics.median(shares) if shares else None,
            "probe_read_gb_per_s": spread(reads)}


def spread(runs):
    return {"median": statistics.median(runs), "min": min(runs), "max": max(runs), "runs": runs}


def machine():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            names = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else 'unknown processor'}, {len(os.sched_getaffinity(0))} CPUs"


def print_table(rows):
    shown = lambda rates: f"{rates['median']:.1f} [{rates['min']:.1f}..{rates['max']:.1f}]"
    print("| test | goldcrest, tok/s | llama.cpp, tok/s | its setting | ratio | of read | probe, GB/s |")
    print("|---|---|---|---|---|---|---|")
    for found in rows:
        share = "-" if found["share_of_read"] is None else f"{found['share_of_read']:.0%}"
        print(f"| {found['test']} | {shown(found['ours'])} | {shown(found['peer'][found['peer_best']])} | {found['peer_best']} "
              f"| **{found['ratio']:.2f}** | {share} | {shown(found['probe_read_gb_per_s'])} |")


if __name__ == "__main__":
    main()
