"""How the compiled code is built, kept and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coterie.client.lanes import network as native
from coterie.client.lanes.network import LanesNetworks, library
from coterie.core.model import Model
from coterie.zoo import LeNet

compiled = pytest.mark.skipif(library() is None, reason="no C++ compiler here")

SMALL = 'extern "C" { long lanes() { return 4; } void gradient() {} void outputs() {} }'  # built in no time


@pytest.fixture
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    library.cache_clear()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "lanes.cpp").write_text(SMALL)
    monkeypatch.setattr(native, "NATIVE", tmp_path / "native")
    yield
    library.cache_clear()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(("name", "value"), [("COTERIE_LANES", "off"), ("CXX", "no-such-compiler"), ("CXX", "false")])
def test_without_a_compiler_everything_is_left_to_torch(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert LanesNetworks(Model.of(LeNet()((1, 28, 28), 4))).of((1, 28, 28)) is None


@compiled
@pytest.mark.usefixtures("_fresh")
def test_what_is_built_is_private_and_used_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() is not None
    (built,) = (tmp_path / "coterie" / "lanes").iterdir()
    assert [place.stat().st_mode & 0o077 for place in (built, built.parent)] == [0, 0]
    before = built.stat().st_mtime_ns
    library.cache_clear()
    assert library() is not None
    assert built.stat().st_mtime_ns == before


@compiled
@pytest.mark.usefixtures("_fresh")
def test_nothing_is_loaded_from_where_others_may_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = tmp_path / "coterie" / "lanes"
    place.mkdir(parents=True)
    place.chmod(0o777)
    assert library() is None
    assert not list(place.iterdir())
    library.cache_clear()
    place.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    assert library() is None


def _compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """A compiler that does as told with "$out", what it is to write."""
    place = folder / "compiler"
    place.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nout="$2"\n{script}\n')
    place.chmod(0o700)
    monkeypatch.setenv("CXX", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("script", ['echo half > "$out"; kill -9 $$', 'echo half > "$out"; exit 1', "exit 0"])
def test_an_interrupted_compiler_leaves_nothing(script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _compiler(monkeypatch, tmp_path, script)
    assert library() is None
    assert not list((tmp_path / "cache" / "coterie" / "lanes").iterdir())


@pytest.mark.usefixtures("_fresh")
def test_without_a_place_to_write_everything_is_left_to_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _compiler(monkeypatch, tmp_path, 'echo anything > "$out"')
    (tmp_path / "cache").write_text("a file, where the folder would be")
    assert library() is None


@compiled
@pytest.mark.usefixtures("_fresh")
def test_processes_that_build_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each builds its own, whoever is last puts it in place, and all load a whole one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
    assert library() is not None
    (built,) = (tmp_path / "first" / "coterie" / "lanes").iterdir()
    _compiler(monkeypatch, tmp_path, f'head -c 999 "{built}" > "$out"; sleep 0.1; cat "{built}" > "$out"')
    with ThreadPoolExecutor(4) as pool:
        places = {str(place) for place in pool.map(native._built, [str(tmp_path / "compiler")] * 4)}
    (place,) = places
    assert Path(place).read_bytes() == built.read_bytes()
    assert [found.name for found in Path(place).parent.iterdir()] == [Path(place).name]
    assert library() is not None


@compiled
@pytest.mark.usefixtures("_fresh")
def test_another_processor_gets_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library() is not None
    monkeypatch.setattr(native, "_processor", lambda: "flags: fewer")
    library.cache_clear()
    assert library() is not None
    assert len(list((tmp_path / "coterie" / "lanes").iterdir())) == 2
