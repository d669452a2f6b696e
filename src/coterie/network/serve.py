"""`coterie server`: a SuperLink of its own, the run that goes through it, and a new one of both where it is lost.

Flower forgets a run when its SuperLink dies. What matters is in the run directory, so a new SuperLink and a new run of
Flower's go on from the last round.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from coterie.errors import CoterieError
from coterie.events import Listener
from coterie.network import runtime
from coterie.network.certs import ServerFiles, server_files
from coterie.network.conduct import conduct
from coterie.network.flowerpost import FlowerPost, LinkDownError
from coterie.network.pki import public_pem
from coterie.network.runtime import Address
from coterie.network.settings import ServerConfig
from coterie.result import Result
from coterie.store import FLOWER

APP = Path(__file__).parent / "app"
PROGRAM = "flwr-serverapp"
START = 60.0  # seconds a SuperLink has to listen
AGAIN = 5.0  # seconds before a lost SuperLink is replaced


@dataclass(frozen=True)
class Listening:
    """Where clients find the server, and how it proves itself."""

    host: str
    port: int
    certs: Path | None  # None: without TLS and keys, only where asked for by name

    def files(self) -> ServerFiles | None:
        """The certificates, read anew: clients may have been added."""
        return None if self.certs is None else server_files(self.certs)

    @property
    def address(self) -> Address:
        """As this machine itself reaches it; the certificate always vouches for the loopback."""
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return Address(here, self.port, None if self.certs is None else self.certs / "ca.crt")


@dataclass
class Link:
    """A SuperLink that is running."""

    at: Listening
    home: Path
    process: subprocess.Popen[bytes]
    secret: bytes
    names: dict[str, str] = field(default_factory=dict)  # of the registered clients, by public key

    def register(self) -> Mapping[str, str]:
        """Let in the clients whose keys are there by now; returns their names by key."""
        files = self.at.files()
        new = {} if files is None else {public_pem(key): name for name, key in files.clients}
        for key, name in new.items():
            if key not in self.names:
                with self._control() as control, _unless_known():
                    control.RegisterNode(RegisterNodeRequest(public_key=(key + "\n").encode(), name=name))
        self.names = new
        return self.names

    def begin(self) -> int:
        """Start a run of Flower's; returns its number."""
        content = build_fab_from_disk(APP)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        with self._control() as control:
            return int(control.StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id)

    @contextmanager
    def grid(self, run: int) -> Iterator[HttpGrid]:
        """The grid of a run, whose task this process takes."""
        token = self._token(run)
        at = self.at.address
        grid = HttpGrid(str(at), at.ca is None, None if at.ca is None else at.ca.read_bytes(), token=token)
        grid._retry_invoker = runtime.patience(AGAIN)
        status = SubStatus.FAILED
        try:
            with runtime.beating(grid._runtime_client):
                found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
                # Flower's messages look up in this class whose they are.
                TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
                TaskIdentity.node_id = found.context.node_id
                grid.set_run(run_from_proto(found.run))
                yield grid
            status = SubStatus.COMPLETED
        finally:
            if self.process.poll() is None:
                with suppress(httpx.HTTPError):
                    grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            grid.close()

    def _token(self, run: int) -> str:
        with runtime.talking(self.at.address, AGAIN, *runtime.for_tasks(self.secret)) as client:
            until = time.monotonic() + START
            while time.monotonic() < until:
                taken = runtime.acquire(client, PROGRAM)
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
            retry_invoker=runtime.patience(AGAIN),
        )
        try:
            yield client
        finally:
            client.close()


@contextmanager
def linked(at: Listening, home: Path) -> Iterator[Link]:
    """A SuperLink, ended afterwards."""
    files = at.files()
    runtime.check_free(at.host, at.port)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = runtime.secret_file(home)
    command = ["flower-superlink", "--host", at.host, "--port", str(at.port), "--isolation", "process"]
    command += ["--database", str(home / "state.db"), "--superexec-auth-secret-file", str(secret)]
    if files is None:
        command.append("--insecure")
    else:
        command += ["--ssl-certfile", str(files.certificate), "--ssl-keyfile", str(files.key)]
        command += ["--ssl-ca-certfile", str(files.ca), "--enable-supernode-auth"]
    process = runtime.start(command, home)
    try:
        runtime.wait_for_port(process, at.address, home, "flower-superlink", START)
        yield Link(at, home, process, secret.read_bytes())
    finally:
        runtime.stop(process)
        secret.unlink(missing_ok=True)


class _DoorPost(FlowerPost):
    """The post of a server with a door: whoever's key is there by now may come."""

    def __init__(self, grid: HttpGrid, link: Link) -> None:
        super().__init__(grid)
        self._link = link

    def present(self) -> Mapping[int, str]:
        """See `Post.present`."""
        if self._link.process.poll() is not None:
            raise LinkDownError("the SuperLink has ended")
        self._link.register()
        return super().present()


def serve(
    config: ServerConfig,
    path: Path,
    at: Listening,
    *,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Result[Any]:
    """Listen, and train with whoever comes, until all rounds are done."""
    while True:
        try:
            with linked(at, path / FLOWER) as link:
                names = link.register()
                say(
                    f"listening on {at.host}:{at.port}"
                    + (f", {len(names)} keys known" if at.certs else ", WITHOUT TLS")
                )
                with link.grid(link.begin()) as grid:
                    return conduct(
                        *(_DoorPost(grid, link), config, path),
                        resume=resume,
                        keys=None if at.certs is None else lambda: link.names,
                        listeners=listeners,
                        say=say,
                    )
        except (LinkDownError, httpx.HTTPError) as error:
            say(f"{error}; a new one goes on from the last round")
            resume = (path / "config.yaml").is_file()
            time.sleep(AGAIN)


@contextmanager
def _unless_known() -> Iterator[None]:
    """A key that a SuperLink knows from before is refused as a double, which is as good."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        found = FlowerError.from_json(error.response.text)
        if found is None or found.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
            raise CoterieError(f"the SuperLink does not take a client's key: {error.response.text[:200]}") from None
