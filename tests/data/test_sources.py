"""Only verified bytes arrive, whatever the sources do; all servers and tools here are local ones."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from src.data import downloads
from src.data.errors import DataError, DataMistake, clear_disk_errors
from src.data.sources import fetch
from tests.support import fill

GOOD = {"images": b"i" * 5_000 + b"!", "labels": bytes(range(250))}


class Mirror:
    """A server on 127.0.0.1. /good/ serves, /altered/ serves other bytes, /short/ hangs up half-way.

    /unsized/ serves without saying how much.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                folder, name = self.path.strip("/").split("/")
                body = GOOD[name.removesuffix(".gz")]
                if folder == "missing":
                    self.send_error(404)
                    return
                if folder == "altered":
                    body = body[::-1]
                if name.endswith(".gz"):
                    body = gzip.compress(body)
                if folder == "truncated":
                    body = body[: len(body) // 2]
                self.send_response(200)
                if folder != "unsized":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if folder == "short" else body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    mirror = Mirror()
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in front of PATH, for stand-ins of npm and apt-get."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\necho \"$@\" >> '{path}.calls'\n{body}\n")
    path.chmod(0o755)


def calls(path: Path) -> list[str]:
    log = Path(f"{path}.calls")
    return log.read_text().splitlines() if log.exists() else []


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def dataset(*entries: dict[str, str]) -> dict[str, Any]:
    files = {name: hashlib.sha256(body).hexdigest() for name, body in GOOD.items()}
    return {"name": "toy", "files": files, "sources": list(entries)}


def assert_fetched(target: Path, cache: Path) -> None:
    assert {path.name: path.read_bytes() for path in target.iterdir()} == GOOD
    assert not list((cache / "incomplete").glob("*"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_mirror_is_asked_once_for_each_file(mirror: Mirror, target: Path, cache: Path, ending: str) -> None:
    toy = dataset({"url": f"{mirror.root}/good/{{file}}{ending}"})
    fetch(toy, target, cache)
    assert_fetched(target, cache)
    assert mirror.asked == [f"/good/images{ending}", f"/good/labels{ending}"]

    shutil.rmtree(target)
    fetch(toy, target, cache)
    assert_fetched(target, cache)
    assert len(mirror.asked) == 2, "the cache has them"


@pytest.mark.parametrize(
    ("folder", "ending", "reason"),
    [
        ("altered", "", "sha256"),
        ("altered", ".gz", "sha256"),
        ("short", "", "the connection was cut"),
        ("short", ".gz", "the connection was cut"),
        ("truncated", "", "sha256"),
        ("truncated", ".gz", "cut short or damaged"),
        ("missing", "", "404"),
    ],
)
def test_a_bad_file_is_refused_and_the_next_source_tried(
    mirror: Mirror,
    target: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    ending: str,
    reason: str,
) -> None:
    bad = f"{mirror.root}/{folder}/{{file}}{ending}"
    fetch(dataset({"url": bad}, {"url": f"{mirror.root}/good/{{file}}"}), target, cache)
    assert_fetched(target, cache)
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 2
    for name, line in zip(GOOD, warnings, strict=True):
        assert bad.replace("{file}", name) in line
        assert reason in line


def test_when_all_sources_fail_nothing_is_left_and_each_reason_is_told(
    mirror: Mirror, target: Path, cache: Path
) -> None:
    refused = f"http://127.0.0.1:{closed_port()}"
    entries = [
        {"url": f"{root}/{{file}}"} for root in (f"{mirror.root}/altered", f"{mirror.root}/short", refused)
    ]
    with pytest.raises(DataError) as failure:
        fetch(dataset(*entries), target, cache)
    sentence = str(failure.value)
    assert "\n" not in sentence
    assert "toy: images could not be fetched" in sentence
    for part in ("/altered/images (its bytes have sha256", "/short/images (the connection was cut", refused):
        assert part in sentence
    assert "Connection refused" in sentence
    assert not list(target.iterdir())
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_mirror_out_of_reach_is_asked_for_one_file_only(
    mirror: Mirror, target: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = f"http://127.0.0.1:{closed_port()}/{{file}}"
    fetch(dataset({"url": refused}, {"url": f"{mirror.root}/good/{{file}}"}), target, cache)
    assert_fetched(target, cache)
    assert capsys.readouterr().err.count("warning") == 1


def test_a_mirror_that_drops_packets_is_given_up_at_the_time_out(
    mirror: Mirror, target: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "CONNECT_SECONDS", 0.2)
    connect = socket.create_connection

    def drop(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        # Eight addresses that never answer, each with its own time-out.
        if address[0] == "silent.invalid":
            time.sleep(5)
            raise TimeoutError
        return connect(address, *arguments, **options)

    monkeypatch.setattr(socket, "create_connection", drop)
    start = time.monotonic()
    silent = {"url": "http://silent.invalid/{file}"}
    fetch(dataset(silent, {"url": f"{mirror.root}/good/{{file}}"}), target, cache)
    assert time.monotonic() - start < 3
    assert_fetched(target, cache)


def test_a_damaged_cache_file_is_fetched_again(mirror: Mirror, target: Path, cache: Path) -> None:
    toy = dataset({"url": f"{mirror.root}/good/{{file}}"})
    fetch(toy, target, cache)
    cached_labels = next((cache / "files").glob("*-labels"))
    cached_labels.write_bytes(b"x")  # the target's file is a hard link of it and is damaged with it
    fetch(toy, target, cache)
    assert_fetched(target, cache)
    assert mirror.asked == ["/good/images", "/good/labels", "/good/labels"]


def test_files_come_from_a_local_path(tmp_path: Path, target: Path, cache: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "images").write_bytes(GOOD["images"])
    (folder / "labels.gz").write_bytes(gzip.compress(GOOD["labels"]))
    fetch(dataset({"path": f"{folder}/{{file}}"}, {"path": f"{folder}/{{file}}.gz"}), target, cache)
    assert_fetched(target, cache)
    assert sorted(path.name for path in folder.iterdir()) == ["images", "labels.gz"]


@pytest.mark.parametrize(
    ("entry", "tool"),
    [({"npm": "toy@1.0.0", "member": "{file}"}, "npm"), ({"apt": "toy", "member": "{file}"}, "apt-get")],
)
def test_a_missing_tool_is_named(
    tmp_path: Path,
    target: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: dict[str, str],
    tool: str,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=rf"\({tool} is not installed\)$"):
        fetch(dataset(entry), target, cache)


def npm_archive(folder: Path, bodies: dict[str, bytes]) -> Path:
    data = folder / "package" / "data"
    data.mkdir(parents=True)
    for name, body in bodies.items():
        (data / name).write_bytes(body)
    archive = folder / "toy-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder / "package", "package")
    return archive


NPM = {"npm": "toy@1.0.0", "member": "package/data/{file}"}


def test_an_npm_package_is_downloaded_once_for_all_its_files(
    tmp_path: Path, tools: Path, target: Path, cache: Path
) -> None:
    archive = npm_archive(tmp_path / "registry", GOOD)
    script(tools / "npm", f"cp '{archive}' .")
    fetch(dataset(NPM), target, cache)
    assert_fetched(target, cache)
    shutil.rmtree(target)
    shutil.rmtree(cache / "files")
    fetch(dataset(NPM), target, cache)
    assert_fetched(target, cache)
    [call] = calls(tools / "npm")
    assert call.startswith("pack ")
    assert "--ignore-scripts" in call
    assert call.endswith("toy@1.0.0")


def test_an_altered_package_is_dropped_and_the_next_run_asks_again(
    tmp_path: Path, tools: Path, target: Path, cache: Path
) -> None:
    bad = npm_archive(tmp_path / "bad", dict.fromkeys(GOOD, b"other"))
    script(tools / "npm", f"cp '{bad}' .")
    with pytest.raises(DataError, match=r"npm package toy@1.0.0 \(its bytes have sha256"):
        fetch(dataset(NPM), target, cache)
    script(tools / "npm", f"cp '{npm_archive(tmp_path / 'good', GOOD)}' .")
    fetch(dataset(NPM), target, cache)
    assert_fetched(target, cache)
    assert len(calls(tools / "npm")) == 2


def test_the_registrys_complaint_is_told(tools: Path, target: Path, cache: Path) -> None:
    script(tools / "npm", "echo 'npm error code E404' >&2; exit 1")
    with pytest.raises(DataError, match="npm exited with 1: npm error code E404"):
        fetch(dataset(NPM), target, cache)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_apt_lists_are_updated_once_where_the_package_is_unknown(
    tmp_path: Path, tools: Path, target: Path, cache: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: toy\nVersion: 1\nArchitecture: all\nMaintainer: nobody <a@localhost>\nDescription: toy\n"
    )
    (tree / "usr/share/toy").mkdir(parents=True)
    for name, body in GOOD.items():
        (tree / "usr/share/toy" / f"{name}.gz").write_bytes(gzip.compress(body))
    package = tmp_path / "toy_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", tree, package], check=True, capture_output=True)
    updated = tmp_path / "updated"
    script(
        tools / "apt-get",
        f"""case "$*" in
*update) touch '{updated}' ;;
*) [ -e '{updated}' ] || {{ echo 'E: Unable to locate package toy' >&2; exit 100; }}; cp '{package}' . ;;
esac""",
    )
    fetch(dataset({"apt": "toy", "member": "usr/share/toy/{file}.gz"}), target, cache)
    assert_fetched(target, cache)
    assert [call.split()[-2:] for call in calls(tools / "apt-get")] == [
        ["download", "toy"],
        ["Acquire::http::Timeout=15", "update"],
        ["download", "toy"],
    ]


@pytest.mark.parametrize("entry", [{}, {"url": "http://a/{file}", "path": "/a/{file}"}, {"npm": "toy"}])
def test_a_source_that_says_too_little_or_too_much_is_refused(
    target: Path, cache: Path, entry: dict[str, str]
) -> None:
    with pytest.raises(DataError, match="a source"):
        fetch(dataset(entry), target, cache)


def test_files_that_only_the_user_can_bring_are_all_named(target: Path, cache: Path) -> None:
    said = {"registration": "Register at https://data.example.", "generator": "a.write"}
    with pytest.raises(DataMistake) as mistake:
        fetch(dataset() | said, target, cache)
    assert str(mistake.value) == (
        "toy: images, labels can't be fetched: Register at https://data.example; then give the folder that "
        "has the files, dataset.data_dir=FOLDER, or dataset.source=generated for a stand-in (in a study "
        "{name: toy, source: generated})"
    )


def test_a_full_disk_names_its_mount_point(mirror: Mirror, target: Path, disk: Path) -> None:
    fill(disk)
    with pytest.raises(DataError, match=f"the file system {disk} is full"):
        fetch(dataset({"url": f"{mirror.root}/unsized/{{file}}"}), target, disk / "cache")
    assert not [path for path in (disk / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    assert not [path for path in target.rglob("*") if path.is_file()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_kernels_own_full_disk_error_is_recognised() -> None:
    with (
        pytest.raises(DataError, match="is full"),
        clear_disk_errors(Path("/dev/full")),
        open("/dev/full", "wb") as file,
    ):
        file.write(b"x")
        file.flush()
