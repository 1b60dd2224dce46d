"""Run the whole operator database, resumable and in shards.

    python tests/conformance/run.py --results opinfo.jsonl -n 2            # two processes; again to go on where it stopped
    python tests/conformance/run.py --results opinfo.jsonl --shard 1/4     # a quarter, on another machine
    python tests/conformance/run.py --results norms.jsonl --only nn_functional_layer_norm/   # cases whose keys begin so
    python tests/conformance/run.py --table part1.jsonl part2.jsonl        # the table of what is there

A process that dies takes one case with it, which is recorded as crashed when it has died twice.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent


def read(paths):
    """Returns finished results by key, and how often each unfinished case was begun."""
    done, begun = {}, Counter()
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that a killed process was writing
            if "begun" in entry:
                begun[entry["begun"]] += 1
            else:
                done[entry["key"]] = entry
    return done, begun


def work(given, path, part, parts):
    """Judges every case of a shard that no file has yet."""
    import torch
    from opinfo_cases import cases
    from opinfo_judge import Result, judge

    torch.set_num_threads(1)
    dtypes = tuple(getattr(torch, name) for name in given.dtype) if given.dtype else None
    done, begun = read([given.results, path])
    with path.open("a") as file:

        def write(entry):
            file.write(json.dumps(entry) + "\n")
            file.flush()

        ending = time.monotonic() + given.seconds
        for number, case in enumerate(cases(given.device, dtypes, given.only)):
            if number % parts != part or case.key in done:
                continue
            if time.monotonic() > ending:
                return
            if begun[case.key] >= 2:
                write(Result(case.key, case.last - case.first, ours=[f"{case.key}: crashed"]).to_dict())
                continue
            write({"begun": case.key})
            start = time.monotonic()
            result = judge(case, given.device).to_dict()
            write(result | {"seconds": round(time.monotonic() - start, 3)})


def table(results):
    """Returns the summary as markdown, and what is ours to mend."""
    forms: dict[str, Counter] = {}
    for key, entry in results.items():
        form = key.split("/")[-2]
        counts = forms.setdefault(form, Counter())
        counts["cases"] += 1
        counts["samples"] += entry["samples"]
        counts["passed"] += entry["passed"]
        counts["raised"] += entry.get("raised", 0)
        for name in ("ours", "shared", "not_judged"):
            counts[name] += len(entry[name])
    heads = ("samples", "passed", "raised", "shared", "not_judged", "ours")
    lines = [f"| form | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    lines += [f"| {form} | {' | '.join(str(c[h]) for h in heads)} |" for form, c in sorted(forms.items())]
    total = sum(forms.values(), Counter())
    lines.append(f"| all | {' | '.join(str(total[h]) for h in heads)} |")
    entries = {key.rsplit("/", 3)[0] for key in results}
    lines.append(f"\n{len(entries)} entries of the database.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("opinfo.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", action="append", help="only this dtype (repeatable)")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        metavar="BEGINNING",
        help="only cases whose keys begin with one of these",
    )
    parser.add_argument("--shard", default="1/1", help="part/parts")
    parser.add_argument("-n", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--table", type=Path, nargs="+", help="print what files hold, and run nothing")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        report(read(given.table)[0])
        return
    part, parts = (int(v) for v in given.shard.split("/"))
    if given.worker:
        own, processes = (int(v) for v in given.worker.split("/"))
        path = given.results.with_name(f"{given.results.name}.{part}.{own}")
        work(given, path, (part - 1) * processes + own, parts * processes)
        return
    run_workers(given)
    written = re.compile(
        re.escape(given.results.name) + r"\.\d+\.\d+"
    )  # by workers; other files beside are not ours
    files = sorted(p for p in given.results.parent.iterdir() if written.fullmatch(p.name))
    done, _ = read([given.results, *files])
    given.results.write_text("".join(json.dumps(e) + "\n" for e in done.values()))
    for path in files:
        path.unlink()
    report(done)


def run_workers(given):
    """Keeps one process a worker alive until it has finished."""
    command = [sys.executable, "-W", "ignore", *sys.argv]
    alive = {n: subprocess.Popen([*command, "--worker", f"{n}/{given.n}"]) for n in range(given.n)}
    while alive:
        time.sleep(0.5)
        for number, process in list(alive.items()):
            code = process.poll()
            if code == 0:
                del alive[number]
            elif code is not None and code < 0:  # killed by a signal: an operator crashed it
                alive[number] = subprocess.Popen([*command, "--worker", f"{number}/{given.n}"])
            elif code is not None:
                sys.exit(f"worker {number} ended with code {code}; its message stands above")


def report(done):
    ours = [f"OURS {text}" for entry in done.values() for text in entry["ours"]]
    sys.stdout.write("\n".join([table(done), *ours, ""]))


if __name__ == "__main__":
    main()
