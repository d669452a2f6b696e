"""`coterie server`: starts a SuperLink and a run on it, and replaces both if the SuperLink dies.

Flower forgets a run when its SuperLink dies. What matters is in the run directory, so that a new SuperLink and a new
Flower run continue from the last round.
"""

from __future__ import annotations

import hashlib
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coterie.core.errors import CoterieError
from coterie.core.processes import Interruption
from coterie.insight.inspect import Inspection
from coterie.network.audit import AuditEntry, AuditLog, no_audit
from coterie.network.certificates import ServerFiles, check_not_shared, public_pem, server_files
from coterie.network.config import Network, ServerConfig
from coterie.network.engine import Transport
from coterie.network.flower import guard, processes
from coterie.network.flower.internals import (
    ApiErrorCode,
    CliClientHttpInterceptor,
    ControlHttpClient,
    Fab,
    FlowerError,
    HttpGrid,
    ListNodesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    SubStatus,
    TaskIdentity,
    UnregisterNodeRequest,
    build_fab_from_disk,
    fab_to_proto,
    limit_calls,
    run_from_proto,
    runtime_client,
)
from coterie.network.flower.launcher import AUDIT, CONNECTIONS, REQUESTS
from coterie.network.flower.processes import Address
from coterie.network.flower.transport import FlowerTransport, LinkDownError
from coterie.network.server import inspect_with_clients, train_with_clients
from coterie.training.events import Listener
from coterie.training.result import Result
from coterie.training.run_directory import AUDIT_LOG, FLOWER

APP = Path(__file__).parent / "app_template"
PROGRAM = "flwr-serverapp"
CONTROL = "/v1/control/start-run"  # what only this machine may ask for
START = 60.0  # seconds a SuperLink has to listen
CALL = (10.0, 30.0)  # seconds in which the SuperLink, on this machine, must answer: at least, and at most
AGAIN = 5.0  # seconds before a lost SuperLink is replaced


@dataclass(frozen=True)
class ServerEndpoint:
    """Where clients find the server, and how it proves itself."""

    host: str
    port: int
    certs: Path | None  # None: without TLS and keys, only where asked for by name

    def files(self) -> ServerFiles | None:
        """The certificates, read again: clients may have been added."""
        return None if self.certs is None else server_files(self.certs)

    @property
    def address(self) -> Address:
        """As this machine itself reaches it; the certificate always vouches for the loopback."""
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return Address(here, self.port, None if self.certs is None else self.certs / "ca.crt")


@dataclass
class SuperLink:
    """A SuperLink that is running."""

    at: ServerEndpoint
    home: Path
    process: subprocess.Popen[bytes]
    secret: bytes
    note: Callable[[AuditEntry], None] = no_audit
    say: Callable[[str], None] = lambda _: None
    names: dict[str, str] = field(default_factory=dict)  # of the registered clients, by public key

    def register(self) -> Mapping[str, str]:
        """Register the clients whose keys were added, and remove those whose keys were revoked, replaced or have
        expired; returns the names of all by key."""
        files = self.at.files()
        new = {} if files is None else {public_pem(key): name for name, key in files.clients}
        for key, name in new.items():
            if key not in self.names:
                with self._control() as control, _ignoring_known_keys():
                    control.RegisterNode(RegisterNodeRequest(public_key=(key + "\n").encode(), name=name))
                self.note(AuditEntry("key-added", client=name))
        gone = {key: name for key, name in self.names.items() if key not in new}
        for name in gone.values():
            why = "replaced" if name in new.values() else "revoked, or it has expired"
            self.note(AuditEntry("key-removed", why, client=name))
            self.say(f"client '{name}': its key was {why}; it is refused from now on")
        # A SuperLink remembers a removed key for good. Where none is left, somebody may have moved the directory.
        if new and (gone or not self.names):
            self._remove_others(new)
        self.names = new
        return self.names

    def _remove_others(self, keys: Mapping[str, str]) -> None:
        """Have the SuperLink itself refuse every other key, also those of before this server was started."""
        with self._control() as control:
            for node in control.ListNodes(ListNodesRequest()).nodes_info:
                if node.status != "unregistered" and node.public_key.decode(errors="replace").strip() not in keys:
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))

    def begin(self) -> int:
        """Start a Flower run; returns its id."""
        content = build_fab_from_disk(APP)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._control() as control:
            return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)

    @contextmanager
    def grid(self, run: int, within: float) -> Iterator[HttpGrid]:
        """The grid of a run, whose task this process acquires. within: seconds for each call to the SuperLink."""
        token = self._token(run)
        at = self.at.address
        grid = HttpGrid(str(at), at.ca is None, None if at.ca is None else at.ca.read_bytes(), token=token)
        limit_calls(grid, processes.patience(AGAIN), httpx.Timeout(within))
        status = SubStatus.FAILED
        try:
            with processes.beating(runtime_client(grid)):
                found = runtime_client(grid).PullTaskInput(PullTaskInputRequest())
                # Flower's messages look up in this class whose they are.
                TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
                TaskIdentity.node_id = found.context.node_id
                grid.set_run(run_from_proto(found.run))
                yield grid
            status = SubStatus.COMPLETED
        finally:
            if self.process.poll() is None:
                with suppress(httpx.HTTPError):
                    runtime_client(grid).PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            grid.close()

    def _token(self, run: int) -> str:
        with processes.talking(self.at.address, AGAIN, *processes.for_tasks(self.secret)) as client:
            until = time.monotonic() + START
            while time.monotonic() < until:
                taken = processes.acquire(client, PROGRAM)
                if taken is not None and taken.run == run:
                    return taken.token
                time.sleep(0.1)  # a task of another run is nobody's: strangers cannot have this process work for them
        raise LinkDownError("the SuperLink has no task for its run")

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        at = self.at.address
        client = ControlHttpClient.from_server_address(
            server_address=str(at),
            insecure=at.ca is None,
            root_certificates=None if at.ca is None else at.ca.read_bytes(),
            interceptors=[CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
            retry_invoker=processes.patience(AGAIN),
        )
        try:
            yield client
        finally:
            client.close()


@contextmanager
def running_superlink(
    at: ServerEndpoint,
    home: Path,
    limits: Network | None = None,
    audit: AuditLog | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[SuperLink]:
    """A SuperLink, ended afterwards."""
    limits = limits or Network()
    files = at.files()
    processes.check_free(at.host, at.port)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = processes.secret_file(home)
    command = ["flower-superlink", "--host", at.host, "--port", str(at.port), "--isolation", "process"]
    command += ["--database", str(home / "state.db"), "--superexec-auth-secret-file", str(secret)]
    if files is None:
        command.append("--insecure")
    else:
        command += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
        command += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth"]
    more = {CONNECTIONS: str(limits.connections), REQUESTS: str(limits.requests)}
    more |= {} if audit is None else {AUDIT: str(audit.path.absolute())}
    process = processes.start(command, home, more)
    try:
        processes.wait_for_port(process, at.address, home, "flower-superlink", START)
        check_guard(at.address)
        yield SuperLink(at, home, process, secret.read_bytes(), no_audit if audit is None else audit.note, say)
    finally:
        processes.stop(process)
        secret.unlink(missing_ok=True)


def check_guard(at: Address) -> None:
    """Refuse to go on if the SuperLink is open to whoever reaches its port."""
    context = True if at.ca is None else ssl.create_default_context(cafile=str(at.ca))
    url = f"{'http' if at.ca is None else 'https'}://{at}"
    fix = "install the release of flwr that coterie[flower] asks for"
    with httpx.Client(verify=context, timeout=CALL[1], trust_env=False) as client:
        status = client.get(f"{url}{guard.HERE}").status_code
        as_stranger = client.post(f"{url}{CONTROL}", headers={guard.STRANGER.decode(): "1"}).status_code
    if status != httpx.codes.OK:
        raise CoterieError(
            f"the guard in front of the SuperLink does not answer (HTTP {status}): {fix}", code="network-process-failed"
        )
    statuses = [as_stranger]
    # As another machine would ask, really; not every system has a second address for it. Marked for the audit log.
    if ":" not in at.host:
        stranger = httpx.HTTPTransport(verify=context, local_address="127.0.0.2")
        with httpx.Client(transport=stranger, timeout=CALL[1], trust_env=False) as client, suppress(httpx.ConnectError):
            statuses.append(client.post(f"{url}{CONTROL}", headers={guard.STRANGER.decode(): "1"}).status_code)
    for status in statuses:
        if status != httpx.codes.FORBIDDEN:
            raise CoterieError(
                f"the SuperLink's control interface can be reached from another address (HTTP {status}): {fix}",
                code="network-process-failed",
            )


class _RegisteringTransport(FlowerTransport):
    """Registers the keys of clients that were added since the last round."""

    def __init__(self, grid: HttpGrid, link: SuperLink) -> None:
        super().__init__(grid)
        self._link = link

    def connected(self) -> Mapping[int, str]:
        """See `Transport.connected`."""
        if self._link.process.poll() is not None:
            raise LinkDownError("the SuperLink has ended")
        self._link.register()
        return super().connected()


def serve(
    config: ServerConfig,
    path: Path,
    at: ServerEndpoint,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> Result[Any]:
    """Listen and train with the clients that connect, until all rounds are done."""
    check_not_shared(path)
    audit, interruption = AuditLog(path / AUDIT_LOG), interruption or Interruption()
    told: dict[str, Any] = {"listeners": listeners, "say": say, "note": audit.note, "interruption": interruption}
    while True:
        try:
            with _listening(config, at, path / FLOWER, say, audit) as (transport, keys):
                return train_with_clients(transport, config, path, resume=resume, keys=keys, **told)
        except (LinkDownError, httpx.HTTPError) as error:
            interruption.heed()
            say(f"{error}; a new one goes on from the last round")
            resume = (path / "config.yaml").is_file()
            time.sleep(AGAIN)


def serve_inspection(
    config: ServerConfig, at: ServerEndpoint, say: Callable[[str], None] = lambda _: None
) -> Inspection:
    """Listen, inspect the clients that connect, and end; nothing is trained."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as home:
        while True:
            try:
                with _listening(config, at, Path(home) / FLOWER, say) as (transport, keys):
                    return inspect_with_clients(transport, config, keys=keys, say=say)
            except (LinkDownError, httpx.HTTPError) as error:
                say(f"{error}; a new one begins again")
                time.sleep(AGAIN)


@contextmanager
def _listening(
    config: ServerConfig, at: ServerEndpoint, home: Path, say: Callable[[str], None], audit: AuditLog | None = None
) -> Iterator[tuple[Transport, Callable[[], dict[str, str]] | None]]:
    """A SuperLink with a run on it: the transport, and the names of clients by their keys, where keys are used."""
    with running_superlink(at, home, config.network, audit, say) as link:
        names = link.register()
        say(f"listening on {at.host}:{at.port}" + (f", {len(names)} keys known" if at.certs else ", WITHOUT TLS"))
        with link.grid(link.begin(), min(max(config.network.deadline, CALL[0]), CALL[1])) as grid:
            yield _RegisteringTransport(grid, link), None if at.certs is None else lambda: link.names


@contextmanager
def _ignoring_known_keys() -> Iterator[None]:
    """A SuperLink refuses a key that it already has; that is fine."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        found = FlowerError.from_json(error.response.text)
        if found is None or found.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
            raise CoterieError(
                f"the SuperLink does not accept a client's key: {error.response.text[:200]}", code="certificate-invalid"
            ) from None
