"""A cycle through a future and the thread that computes it.

The editor lets a thread of a pool wait for the printer, and waits for the future of that thread. The printer asks the
editor for the title; this call is queued, because the editor is busy.

Expected: deadlock
Members: Editor.publish, Printer.print, Editor.title
Points at: pages: int = pool.submit(ray.get, printer.print.remote(editor)).result()
Next step: Raise max_concurrency of Editor to 2 (now 1)
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray


class Editor:
    def title(self) -> str:
        return "On Waiting"

    def publish(self, printer: Any) -> int:
        editor = ray.get_runtime_context().current_actor
        with ThreadPoolExecutor(max_workers=1) as pool:
            pages: int = pool.submit(ray.get, printer.print.remote(editor)).result()
        return pages


class Printer:
    def print(self, editor: Any) -> int:
        title: str = ray.get(editor.title.remote())
        return len(title)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    editor: Any = ray.remote(Editor).options(name="editor").remote()
    printer: Any = ray.remote(Printer).options(name="printer").remote()
    ray.get([editor.__ray_ready__.remote(), printer.__ray_ready__.remote()])
    pages = editor.publish.remote(printer)
    print("ready", flush=True)
    print(ray.get(pages))


if __name__ == "__main__":
    main()
