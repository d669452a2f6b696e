"""Everything of Flower that is not its public interface, in one place, with the reason for each name.

Flower's public interface (`flwr.app`, `flwr.serverapp`) is for apps that Flower starts itself, a process for every
message, from code that the SuperLink sends. Here the server and every client are long-running processes that run this
library only, so they take the part of Flower's executors: that is most of what follows.

A name is imported when it is first used. If a release of Flower lacks one, the error says so; `missing` lists all that
an installed release lacks, which a test compares with the release that `coterie[flower]` asks for.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from coterie.core.errors import CoterieError

RELEASES = ((1, 41), (1, 42))  # of Flower: the first and the last that this file was compared with


def require_flower(what: str) -> None:
    """Say which release to install where Flower is missing or was never tried."""
    if find_spec("flwr") is None:
        raise CoterieError(f"{what} needs Flower: pip install 'coterie[flower]'", code="extra-missing")
    installed = version("flwr")
    first, last = RELEASES
    numbers = tuple(int(part) if part.isdigit() else -1 for part in installed.split(".")[:2])
    if not first <= numbers <= last:
        raise CoterieError(
            f"{what} works with Flower {first[0]}.{first[1]} to {last[0]}.{last[1]}, and flwr {installed} is "
            "installed: pip install 'coterie[flower]'",
            code="network-version",
        )


HOMES: Mapping[str, tuple[str, ...]] = {
    # the bundle that every run must have; ours is empty of code that anybody runs
    "flwr.cli.build": ("build_fab_from_disk",),
    # the operator's credentials for the control interface, as `flwr` itself sends them
    "flwr.cli.cli_client_interceptor": ("CliClientHttpInterceptor",),
    # why a message has no answer, how a task ended; the signature of a request and how old it may be
    "flwr.common.constant": (
        *("ErrorCode", "SubStatus"),
        *("SYSTEM_TIME_TOLERANCE", "TIMESTAMP_HEADER", "TIMESTAMP_TOLERANCE"),
    ),
    # a bundle and a run, to and from protobuf
    "flwr.common.serde": ("fab_to_proto", "run_from_proto"),
    # what the operator asks for: a run, keys added and removed
    "flwr.proto.control_pb2": (
        *("ListNodesRequest", "RegisterNodeRequest", "StartRunRequest", "UnregisterNodeRequest"),
    ),
    # tells the SuperLink that it may throw an answer away
    "flwr.proto.message_pb2": ("ConfirmMessageReceivedRequest",),
    # what an executor asks for: a task, its input, its answers, signs of life
    "flwr.proto.runtime_pb2": (
        *("AcquireTaskRequest", "PullAppMessagesRequest", "PullTaskInputRequest"),
        *("PushTaskOutputRequest", "SendTaskHeartbeatRequest"),
    ),
    # the headers by which the guard knows a registered client before it reads a body
    "flwr.supercore.constant": ("FLEET_HTTP_PUBLIC_KEY_HEADER", "FLEET_HTTP_SIGNATURE_HEADER"),
    # the control interface: keys are added and revoked while the server runs
    "flwr.supercore.control": ("ControlHttpClient",),
    # the clock that signatures are checked by
    "flwr.supercore.date": ("now",),
    # tells a key that is registered already from one that is refused
    "flwr.supercore.error": ("ApiErrorCode", "FlowerError"),
    # the bundle as a value
    "flwr.supercore.fab": ("Fab",),
    # the parts of an answer: they are counted before any is fetched
    "flwr.supercore.inflatable.inflatable_object": ("iterate_object_tree",),
    # fetches one part; the public way waits two hours for one that never comes
    "flwr.supercore.inflatable.inflatable_protobuf_utils": ("make_pull_object_fn_protobuf",),
    # puts the parts together, and says which are not there yet
    "flwr.supercore.inflatable.inflatable_utils": (
        *("ObjectPullError", "ObjectUnavailableError", "inflate_object_from_contents"),
    ),
    # the credentials of an executor, and of a task
    "flwr.supercore.interceptors": (
        *("RuntimeTokenHttpInterceptor", "RuntimeVersionHttpInterceptor", "SuperExecAuthHttpInterceptor"),
    ),
    # checks the signature of a request
    "flwr.supercore.primitives.asymmetric": ("bytes_to_public_key", "verify_signature"),
    # how long to try again; by default a grid tries for ever
    "flwr.supercore.retry": ("RetryInvoker", "exponential"),
    # what a grid raises when the SuperLink has forgotten the run
    "flwr.supercore.run": ("RunNotRunningException",),
    # the interface of SuperLink and SuperNode to their executors
    "flwr.supercore.runtime": ("RuntimeHttpClient",),
    # where messages look up whose they are; an executor sets it
    "flwr.supercore.task_identity": ("TaskIdentity",),
    # where a SuperLink looks for middleware: the guard
    "flwr.superlink.extensions": ("_SGXT_MODULE", "get_middleware"),
    # the grid of `ServerApp`, made by whoever acquires the task
    "flwr.superlink.grid.http_grid": ("HttpGrid",),
    # a message and its answer, as an executor of a client takes and gives them
    "flwr.supernode.runtime.run_clientapp": ("pull_task_input", "push_message", "push_task_output"),
}
# Names that are replaced in Flower's own processes (see launcher.py): there is no option, variable or hook for them.
REPLACED: Mapping[str, tuple[str, ...]] = {
    # a killed client would be taken for alive for a minute, and nobody could have its name
    "flwr.supercore.heartbeat": ("HEARTBEAT_DEFAULT_INTERVAL", "exponential"),
    # a SuperNode that lost its SuperLink would try again only every twenty seconds
    "flwr.supercore.retry.http_retry": ("MAX_RETRY_DELAY",),
    # the same interval, which this module has copied
    "flwr.supernode.fleet_http_connection": ("HEARTBEAT_DEFAULT_INTERVAL",),
    # an idle SuperNode would look for messages every three seconds, whatever --look says
    "flwr.supernode.start_client_internal": ("time",),
}
_MODULE_OF = {name: module for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A name of `HOMES`, imported now."""
    if name not in _MODULE_OF:
        raise AttributeError(name)
    found = find(_MODULE_OF[name], name)
    globals()[name] = found
    return found


def find(module: str, name: str) -> Any:
    """A name of one of Flower's modules."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise CoterieError(
            f"flwr {version('flwr')} has no {module}.{name}, which this release of coterie needs; "
            "install the release of flwr that it asks for: pip install 'coterie[flower]'",
            code="network-version",
        ) from None


def replace(module: str, name: str, value: object) -> None:
    """Put another value in place of one of `REPLACED`; refused if Flower no longer has it."""
    assert name in REPLACED[module]
    find(module, name)
    setattr(importlib.import_module(module), name, value)


def extend_superlink(middleware: Callable[[], tuple[Any, ...]]) -> None:
    """Give the SuperLink of this process middleware. It asks an extension module for it, which this one then is."""
    name = str(find("flwr.superlink.extensions", "_SGXT_MODULE"))
    extension = ModuleType(name)
    extension.get_middleware = middleware  # type: ignore[attr-defined]
    sys.modules[name] = extension


def missing() -> list[str]:
    """What the installed release of Flower lacks, as module.name."""
    lacking = []
    for module, names in (*HOMES.items(), *REPLACED.items()):
        for name in names:
            try:
                find(module, name)
            except CoterieError:
                lacking.append(f"{module}.{name}")
    return lacking


# ------------------------------------------------------------------------------------------- private parts of a grid


def runtime_client(grid: Any) -> Any:
    """The client by which a grid talks to its SuperLink."""
    return grid._runtime_client


def limit_calls(grid: Any, retry: Any, timeout: object) -> None:
    """How a grid tries a call again, and how long each call may take."""
    grid._retry_invoker = retry
    grid._runtime_client._client.timeout = timeout
