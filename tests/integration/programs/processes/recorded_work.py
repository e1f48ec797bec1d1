"""Runs functions for known shares of its time; with ``threads`` also others that begin, end, and are deep."""

import sys
import threading


def spin(count: int) -> int:
    total = 0
    for number in range(count):
        total += number * number % 7
    return total


def three_quarters() -> int:
    return spin(6000)


def one_quarter() -> int:
    return spin(2000)


def descend(depth: int, begun: threading.Event) -> None:
    if depth:
        descend(depth - 1, begun)
    begun.set()
    while True:
        spin(5000)


def short_lived() -> None:
    spin(20000)


def begin_and_end() -> None:
    while True:
        thread = threading.Thread(target=short_lived)
        thread.start()
        thread.join()


def main() -> None:
    sys.setrecursionlimit(5000)
    begun = threading.Event()
    if "threads" in sys.argv:
        threading.Thread(target=threading.Event().wait, name="idle", daemon=True).start()
        threading.Thread(target=descend, args=(800, begun), name="deep", daemon=True).start()
        begun.wait()
        threading.Thread(target=begin_and_end, name="starter", daemon=True).start()
    print("ready", flush=True)
    while True:
        three_quarters()
        one_quarter()


main()
