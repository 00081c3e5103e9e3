"""How long each thread of another process has run, again and again; for `timeline.py`, and quick to start.

    python thread_times.py <pid> <seconds between looks> <file.npz>

Writes `times` `[T]` (seconds), `threads` `[N]` and `nanoseconds` `[T, N]` when standard input ends. Prints one byte
when it begins.
"""

import os
import select
import sys
import time

import numpy as np


def main() -> None:
    folder, interval, path = f"/proc/{sys.argv[1]}/task", float(sys.argv[2]), sys.argv[3]
    rows, ran = [], {}
    sys.stdout.write(".")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], interval)[0]:
        now = time.monotonic()
        for thread in os.listdir(folder):
            try:
                with open(f"{folder}/{thread}/schedstat") as file:
                    ran[int(thread)] = int(file.read().split()[0])
            except OSError:  # a thread that has ended meanwhile, and keeps what it had
                continue
        rows.append((now, dict(ran)))
    threads = sorted(ran)
    first = {thread: next(one[thread] for _, one in rows if thread in one) for thread in threads}
    nanoseconds = np.array([[one.get(thread, first[thread]) for thread in threads] for _, one in rows], np.int64)
    np.savez(path, times=np.array([now for now, _ in rows]), threads=threads, nanoseconds=nanoseconds)


if __name__ == "__main__":
    main()
