"""Actors in layers that call down and wait, several callers at each, with refs passed on as arguments."""

import random
import time
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Shelf:
    def fetch(self, book: int) -> int:
        time.sleep(random.uniform(0, 0.1))
        return book


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Librarian:
    def __init__(self, shelves: list[Any]) -> None:
        self.shelves = shelves

    def find(self, book: int) -> int:
        return int(ray.get(self.shelves[book % len(self.shelves)].fetch.remote(book)))

    def pack(self, *books: int) -> int:
        time.sleep(0.05)
        return len(books)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Reader:
    def __init__(self, librarians: list[Any]) -> None:
        self.librarians = librarians

    def read(self, books: int) -> int:
        found = [random.choice(self.librarians).find.remote(book) for book in range(books)]
        parcels = [librarian.pack.remote(*found) for librarian in self.librarians]
        return sum(ray.get(parcels))


def library() -> list[Any]:
    shelves = [Shelf.remote() for _ in range(2)]
    librarians = [Librarian.remote(shelves) for _ in range(2)]
    readers = [Reader.remote(librarians) for _ in range(2)]
    ray.get([reader.read.remote(1) for reader in readers])
    return readers


def read(readers: list[Any]) -> None:
    assert ray.get([reader.read.remote(6) for reader in readers]) == [12, 12]


def main() -> None:
    ray.init()
    play_for_ever(library, read)


if __name__ == "__main__":
    main()
