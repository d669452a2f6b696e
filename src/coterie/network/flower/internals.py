"""Everything of Flower that is not its public interface, in one place.

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


def require_flower(what: str) -> None:
    """Say how to install it."""
    if find_spec("flwr") is None:
        raise CoterieError(f"{what} needs Flower: pip install 'coterie[flower]'", code="extra-missing")


HOMES: Mapping[str, tuple[str, ...]] = {
    "flwr.cli.build": ("build_fab_from_disk",),
    "flwr.cli.cli_client_interceptor": ("CliClientHttpInterceptor",),
    "flwr.common.constant": (
        *("ErrorCode", "SubStatus"),
        *("SYSTEM_TIME_TOLERANCE", "TIMESTAMP_HEADER", "TIMESTAMP_TOLERANCE"),
    ),
    "flwr.common.serde": ("fab_to_proto", "run_from_proto"),
    "flwr.proto.control_pb2": (
        *("ListNodesRequest", "RegisterNodeRequest", "StartRunRequest", "UnregisterNodeRequest"),
    ),
    "flwr.proto.message_pb2": ("ConfirmMessageReceivedRequest",),
    "flwr.proto.runtime_pb2": (
        *("AcquireTaskRequest", "PullAppMessagesRequest", "PullTaskInputRequest"),
        *("PushTaskOutputRequest", "SendTaskHeartbeatRequest"),
    ),
    "flwr.supercore.constant": ("FLEET_HTTP_PUBLIC_KEY_HEADER", "FLEET_HTTP_SIGNATURE_HEADER"),
    "flwr.supercore.control": ("ControlHttpClient",),
    "flwr.supercore.date": ("now",),
    "flwr.supercore.error": ("ApiErrorCode", "FlowerError"),
    "flwr.supercore.fab": ("Fab",),
    "flwr.supercore.inflatable.inflatable_object": ("iterate_object_tree",),
    "flwr.supercore.inflatable.inflatable_protobuf_utils": ("make_pull_object_fn_protobuf",),
    "flwr.supercore.inflatable.inflatable_utils": (
        *("ObjectPullError", "ObjectUnavailableError", "inflate_object_from_contents"),
    ),
    "flwr.supercore.interceptors": (
        *("RuntimeTokenHttpInterceptor", "RuntimeVersionHttpInterceptor", "SuperExecAuthHttpInterceptor"),
    ),
    "flwr.supercore.primitives.asymmetric": ("bytes_to_public_key", "verify_signature"),
    "flwr.supercore.retry": ("RetryInvoker", "exponential"),
    "flwr.supercore.run": ("RunNotRunningException",),
    "flwr.supercore.runtime": ("RuntimeHttpClient",),
    "flwr.supercore.task_identity": ("TaskIdentity",),
    "flwr.superlink.extensions": ("_SGXT_MODULE", "get_middleware"),
    "flwr.superlink.grid.http_grid": ("HttpGrid",),
    "flwr.supernode.runtime.run_clientapp": ("pull_task_input", "push_message", "push_task_output"),
}
# Names that are replaced in Flower's own processes (see launcher.py and guard.py).
REPLACED: Mapping[str, tuple[str, ...]] = {
    "flwr.supercore.heartbeat": ("HEARTBEAT_DEFAULT_INTERVAL", "exponential"),
    "flwr.supercore.retry.http_retry": ("MAX_RETRY_DELAY",),
    "flwr.supernode.fleet_http_connection": ("HEARTBEAT_DEFAULT_INTERVAL",),
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
