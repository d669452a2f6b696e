"""Targets: configurations, the command line, checkpoints, run directories and the dashboard over them."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import yaml
from data_files import in_file, place
from target import Target

import coterie
from coterie.core.errors import CoterieError
from coterie.core.registry import NO_CODE
from coterie.training import checkpoint
from coterie.training.build import build_method, named_model
from coterie.training.config import read, split_words
from coterie.training.run_directory import belongs
from coterie.training.status import read as read_status

KEYS = tuple(
    f"{key}: ".encode()
    for key in ("rounds", "seed", "data", "model", "method", "local", "engine", "name", "k", "lr", "participation")
)
NAMES = (b"wecfl", b"halves", b"csv", b"digits", b"linear", b"mlp", b"batched", b"os:system", b"module:Class")
LAUGHS = b"a: &a [x, x]\nb: &b [*a, *a]\nrounds: 3\n"


@cache
def small_run() -> Path:
    """A finished run of four clients."""
    path = place() / "run"
    words = [
        "data.partition.clients=4",
        "rounds=2",
        "local.epochs=1",
        "method.name=wecfl",
        "method.k=2",
        "model=linear",
    ]
    from coterie.training.execute import execute

    execute(read(None, [*words, "checkpoint_every=1", "engine.name=sequential"]), path)
    return path


def configurations() -> list[bytes]:
    """YAML files."""
    whole = yaml.safe_dump(read(None).dump()).encode()
    short = b"method: wecfl\ndata: {name: csv, path: a.csv, y: y}\nrounds: 3\nlocal: {lr: auto, steps: 2}\n"
    return [whole, short, LAUGHS, b"data: digits\nwhen: 2020-01-02\nx: 0x10\ny: 1e3\n"]


def _read_configuration(file: Path) -> object:
    config = read(file)
    with contextlib.suppress(CoterieError):
        named_model("linear", config.model.params, SHAPE, NO_CODE)
    return None if ":" in config.method.name else build_method(config)


@cache
def _shape() -> Any:
    return coterie.load(small_run()).known


class _Shape:
    """The form of the small run's data, built when it is first needed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_shape(), name)


SHAPE: Any = _Shape()


def commands() -> list[bytes]:
    """Words of a command, separated by zero bytes."""
    lines = (
        *("run rounds=3 method.name=wecfl method.k=4 --out runs/a", "run --resume runs/a --more 50 --with new.csv"),
        *("data show csv path=a.csv y=y", "report runs/a --out a.html", "predict runs/a --data a.csv --client 3"),
        *("sweep my.yaml method.k=2,3,4 --trials 3", "compare wecfl ifca --seeds 3", "certs certs --host a --days 3"),
        *("client --data csv path=a.csv", "export runs/a --cluster 0 --format onnx", "bench network --links 50"),
    )
    return [line.replace(" ", "\0").encode() for line in lines]


@cache
def _command() -> Any:
    import typer

    from coterie.tools.cli.main import app

    return typer.main.get_command(app)


def read_command(data: bytes) -> object:
    """Parse the words as a shell would hand them over; the command itself is not carried out."""
    import click
    import typer

    words = data.decode("utf-8", "surrogateescape").split("\0")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            _parse(_command(), words)
        except (click.exceptions.ClickException, click.exceptions.Exit, typer.Exit, SystemExit):
            return None
        except Exception as error:
            if any(base.__module__.split(".")[0] in ("click", "typer") for base in type(error).__mro__):
                return None  # typer may bring a copy of click of its own
            raise
    if words[0] == "run":
        split_words(words[1:])
        read(None, [word for word in words[1:] if "=" in word and not word.startswith("-")])
    return None


def _parse(command: Any, words: list[str]) -> None:
    context = command.make_context("coterie", list(words), resilient_parsing=False)
    if not hasattr(command, "resolve_command"):
        return
    rest = [*getattr(context, "_protected_args", []), *context.args]
    if rest:
        _, below, args = command.resolve_command(context, rest)
        if below is not None:
            _parse(below, args)


# ------------------------------------------------------------------------------------------------------- checkpoints


def checkpoints() -> list[bytes]:
    """The newest checkpoint of the small run."""
    return [max((small_run() / "checkpoints").glob("round-*.safetensors")).read_bytes()]


@cache
def _mine() -> tuple[Any, Any, dict[str, str]]:
    result = coterie.load(small_run())
    known = belongs(result.method, result.model, result.known, result.settings)
    return result.state, result.method, known


def read_checkpoint(file: Path) -> object:
    """As a resumed run reads it."""
    state, method, known = _mine()
    return checkpoint.load(file, state, method, known)


def headers() -> list[bytes]:
    """What a checkpoint says of itself, as JSON."""
    with safetensors.safe_open(max((small_run() / "checkpoints").glob("round-*")), framework="pt") as file:
        found = dict(file.metadata())
    del found["crc32"]
    return [json.dumps(found).encode(), json.dumps({**found, "also": '{"map": {}}'}).encode()]


def read_signed(data: bytes) -> object:
    """A checkpoint whose header is anything, with a checksum that fits."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return None
    tensors = safetensors.torch.load(checkpoints()[0])
    header.pop("crc32", None)
    try:
        sum_ = str(checkpoint._checksum(header, tensors))
        safetensors.torch.save_file(tensors, place() / "signed.safetensors", metadata={**header, "crc32": sum_})
    except (UnicodeError, TypeError, safetensors.SafetensorError):
        return None
    return read_checkpoint(place() / "signed.safetensors")


# --------------------------------------------------------------------------------------------------- run directories

FILES = (
    *("config.yaml", "run.json", "rounds.jsonl", "trace.jsonl", "status.json", "clients.json"),
    *("assignments.json", "serving.json", "sketch.safetensors"),
)


def run_files() -> list[bytes]:
    """A byte that says which file it is, then the file."""
    return [bytes([number]) + (small_run() / name).read_bytes() for number, name in enumerate(FILES)]


def read_directory(data: bytes) -> object:
    """A run directory in which one file is anything: loaded, listed, reported and looked at."""
    from coterie.tools.report.record import read_run, read_summary

    path = place() / "changed"
    if not path.exists():
        shutil.copytree(small_run(), path)
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    (path / name).write_bytes(data[1:])
    try:
        read_run(path)
        read_summary(path)
        read_status(path)
        return coterie.load(path)
    finally:
        (path / name).write_bytes((small_run() / name).read_bytes())


# --------------------------------------------------------------------------------------------------------- dashboard


@cache
def make_browser() -> Any:
    """What carries requests to the application."""
    import httpx

    from coterie.tools.report.live import make_app

    small_run()
    return httpx.ASGITransport(make_app(place()))


def requests() -> list[bytes]:
    """A method and an address."""
    pages = ("/", "/?run=run", "/?run=run&run=other", "/live?run=run&seen=x", "/live", "/plotly.js", "/../app.py")
    return [f"GET {path}".encode() for path in pages] + [b"POST /live?run=run"]


def ask(data: bytes) -> object:
    """Answered, with a code that is not 500; nothing from outside the directory."""
    method, _, address = data.partition(b"\n")[0].decode("latin-1").partition(" ")
    if not address.startswith("/") or address.startswith("//") or method not in ("GET", "POST"):
        return None
    import httpx

    async def answered() -> Any:
        async with httpx.AsyncClient(transport=make_browser(), base_url=HERE) as client:
            return await client.request(method, "".join(c for c in address if c >= " "))

    try:
        answer = asyncio.run(answered())
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):  # an address that no browser could send
        return None
    if b"root:" in answer.content and b":0:0:" in answer.content:
        raise AssertionError("a file from outside was sent")
    return answer.status_code


HERE = "http://127.0.0.1"
PATHS = (b"run=run", b"..%2f..%2f", b"%00", b"seen=", b"/live?", b"%2e%2e/")

TARGETS = (
    Target("config", configurations, in_file("a.yaml", _read_configuration), (*KEYS, *NAMES)),
    Target("command-line", commands, read_command, (b"\0", b"--", b"=", b"--out", *NAMES)),
    Target("checkpoint", checkpoints, in_file("a.safetensors", read_checkpoint), (b"state/0", b'"crc32"')),
    Target("checkpoint-signed", headers, read_signed, (b"tensor", b"same", b"number", b"has", b"map", b"float", b"is")),
    Target("run-directory", run_files, read_directory, KEYS),
    Target("dashboard", requests, ask, PATHS),
)
