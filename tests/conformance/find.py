"""Search for random programs that a backend gets wrong, and print each as a test.

    python tests/conformance/find.py --programs 20000 -n 2 --results found.jsonl     # again to go on where it stopped
    python tests/conformance/find.py --table found.jsonl

Programs are judged in chunks, each from its own seed; the first failure of a chunk is shrunk and ends it. `--control N` judges
every Nth program under aot_eager as well.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

CHUNK = 200


class Wrong(Exception):
    """A program that the backend gets wrong; the text is a test."""


def verdict_of(source, backend, device="cpu"):
    """Returns the verdict, or why the program cannot be judged."""
    import torch

    from pytest_fusealias.build import Program, ProgramError
    from pytest_fusealias.check import check
    from pytest_fusealias.model import Spec

    program, make = source.functions()

    def build():
        with torch.device(device):
            return Program(program, make())

    try:
        return check(build, Spec(backend=backend, allow_fallback=True, device=device))
    except ProgramError as error:
        return f"not judged: {error}"


def failed_checks(verdict):
    """Returns the failed checks as text, empty where none failed."""
    if isinstance(verdict, str):
        return ""
    found = [f"{c.check}: {c.findings[0].path}: {c.findings[0].text}" for c in verdict.failures if c.findings]
    return ("REFUSED " if verdict.refused else "") + "; ".join(found) if found else ""


def search(number, given):
    """Judges one chunk and returns its entry."""
    from hypothesis import HealthCheck, Phase, seed, settings
    from hypothesis import given as drawn
    from random_programs import sources

    counts, shared, dynamo = Counter(), {}, {}
    ending = time.monotonic() + given.chunk_seconds

    @seed(number)
    @settings(
        max_examples=CHUNK, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False, print_blob=False,
    )  # fmt: skip
    @drawn(sources())
    def judge(source):
        if time.monotonic() > ending:
            return  # shrinking must not go on for ever
        counts["programs"] += 1
        verdict = verdict_of(source, "fusion_core", given.device)
        if isinstance(verdict, str):
            counts["not_judged"] += 1
            return
        counts[verdict.outcome.value] += 1
        failure = failed_checks(verdict)
        if given.control and counts["programs"] % given.control == 0:
            control = failed_checks(verdict_of(source, "aot_eager", given.device))
            counts["control"] += 1
            if control:
                counts["control_wrong"] += 1
                keep(shared, control, source)
        if failure and (traced := failed_checks(verdict_of(source, "eager", given.device))):
            counts["wrong_in_dynamo"] += 1  # its graph is wrong already, or there is none
            keep(dynamo, traced, source)
        elif failure:
            raise Wrong(source.as_test(failure))

    entry = {"chunk": number}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            judge()
    except Wrong as wrong:
        entry["found"] = str(wrong)
    except Exception as error:  # noqa: BLE001 - a chunk that breaks off is told, and the search goes on
        entry["broken"] = f"{type(error).__name__}: {str(error)[:300]}"
    return entry | {"counts": dict(counts), "control": shared, "dynamo": dynamo}


def keep(shortest, failure, source):
    """Keeps the shortest program for each set of failed checks."""
    kind = " ".join(dict.fromkeys(part.split(":")[0].strip() for part in failure.split("; ")))
    text = source.as_test(failure)
    shortest[kind] = min(shortest.get(kind, text), text, key=len)


def read(path):
    """Returns the finished chunks by number."""
    done = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the line that a killed process was writing
        done[entry["chunk"]] = entry
    return done


def table(done):
    """Returns counts, what was found in fusion_core, and the shortest program for each kind of failure of aot_eager."""
    total, shortest = Counter(), {}
    for entry in done.values():
        total.update(entry["counts"])
        for where, name in (("aot_eager", "control"), ("Dynamo, with any backend", "dynamo")):
            for kind, text in entry[name].items():
                shortest[where, kind] = min(shortest.get((where, kind), text), text, key=len)
    lines = [f"{len(done)} chunks: {dict(total)}"]
    lines += [f"\nBROKEN chunk {n}: {e['broken']}" for n, e in done.items() if "broken" in e]
    lines += [f"\nFOUND in chunk {n}:\n{e['found']}" for n, e in done.items() if "found" in e]
    lines += [f"\n{where}, {kind}:\n{text}" for (where, kind), text in shortest.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("found.jsonl"))
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first chunk, which is its seed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--control", type=int, default=0, help="judge every Nth program under aot_eager as well"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--chunk-seconds", type=float, default=300.0)
    parser.add_argument("-n", type=int, default=1, help="processes")
    parser.add_argument("--table", action="store_true", help="print what the file holds, and run nothing")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    numbers = range(given.first, given.first + -(-given.programs // CHUNK))
    if given.worker is not None:
        work(given, [n for n in numbers if n % given.n == given.worker])
        return
    if not given.table:
        command = [sys.executable, "-W", "ignore", *sys.argv]
        processes = [subprocess.Popen([*command, "--worker", str(w)]) for w in range(given.n)]
        for process in processes:
            process.wait()
    done = {n: e for path in parts(given.results) for n, e in read(path).items()}
    sys.stdout.write(table(done))


def parts(results):
    """Returns the files of all workers."""
    return sorted([results, *results.parent.glob(f"{results.name}.*")])


def work(given, numbers):
    """Judges the chunks of one worker."""
    import torch

    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)  # Dynamo logs a page for each program that it cannot trace
    done = {n for path in parts(given.results) for n in read(path)}
    ending = time.monotonic() + given.seconds
    with given.results.with_name(f"{given.results.name}.{given.worker}").open("a") as file:
        for number in numbers:
            if number in done or time.monotonic() > ending:
                continue
            file.write(json.dumps(search(number, given)) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
