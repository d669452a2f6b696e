"""`python -m coterie.network.tethered flower-superlink ...`: a Flower program that ends when its parent does.

A SuperNode looks for messages as often as it is told to.

A SuperLink serves clients (fleet), its executors (runtime) and its operator (control) on one port.
The last asks for no login: whoever reaches the port could register keys, start runs and stop them. Here only the
machine itself may.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

from coterie.pool import end_with_parent

LOOK = "COTERIE_LOOK"  # in the environment: seconds between two looks for a message
FOR_CLIENTS = ("/v1/fleet/",)


class OnlyFleet:
    """Answers strangers on other machines for nothing but what clients need."""

    def __init__(self, app: Any, local: tuple[str, ...]) -> None:
        self.app, self.local = app, local

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            path, peer = str(scope["path"]), (scope.get("client") or ("", 0))[0]
            if not path.startswith(FOR_CLIENTS) and path != "/health" and peer not in self.local:
                from starlette.responses import PlainTextResponse

                await PlainTextResponse("not for clients", 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def close_to_strangers(host: str) -> None:
    """Put `OnlyFleet` before the SuperLink that this process is about to become."""
    from flwr.superlink import extensions
    from starlette.middleware import Middleware

    # This machine reaches itself from the loopback, or from the one address that it listens on.
    local = tuple({"127.0.0.1", "::1", host} - {"0.0.0.0", "::"})
    extensions.get_middleware = lambda: (Middleware(OnlyFleet, local=local),)


def look_more_often(seconds: float) -> None:
    """A SuperNode with nothing to do would look for messages every three seconds only."""
    from flwr.supernode import start_client_internal as node

    node.time = SimpleNamespace(**vars(time) | {"sleep": lambda pause: time.sleep(min(pause, seconds))})


def main() -> None:
    """Run the program named first, with the arguments after it."""
    end_with_parent()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "flower-superlink":
        close_to_strangers(sys.argv[sys.argv.index("--host") + 1])
    else:
        look_more_often(float(os.environ.get(LOOK, "3")))
    (program,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(program.load()())


if __name__ == "__main__":
    main()
