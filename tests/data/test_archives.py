"""Archives that are sound come out whole; hostile and damaged ones leave nothing."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from src.data.archives import unpack
from src.data.errors import DataError

FILES = {"top.txt": b"top", "a/b/deep.bin": bytes(range(256)) * 8, "a/empty": b""}
MOST = {"most_bytes": 10_000, "most_files": 5}


def tar_of(*members: tuple[str, bytes | str], **kinds: bytes) -> bytes:
    """A tar of (name, content) and of members of a type, whose content is what they link to."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if name in kinds:
                info.type, info.linkname = kinds[name], str(content)
                archive.addfile(info)
                continue
            assert isinstance(content, bytes)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(*members: tuple[str, bytes], mode: int = 0, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, method
            archive.writestr(info, content)
    return buffer.getvalue()


def put(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder / name


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(lambda: tar_of(*FILES.items()), id="tar"),
        pytest.param(lambda: gzip.compress(tar_of(*FILES.items())), id="tgz"),
        pytest.param(lambda: zip_of(*FILES.items()), id="zip"),
        pytest.param(
            lambda: zip_of(*((name.replace("/", "\\"), body) for name, body in FILES.items())),
            id="zip of Windows",
        ),
        pytest.param(lambda: tar_of(*((f"./{name}", body) for name, body in FILES.items())), id="dots"),
    ],
)
def test_a_sound_archive_comes_out_whole_with_plain_permissions(
    tmp_path: Path, packed: Callable[[], bytes]
) -> None:
    archive = put(tmp_path / "in", "data.any", packed())
    unpack(archive, tmp_path / "out" / "data", **MOST)
    assert contents(tmp_path / "out") == {f"data/{name}": body for name, body in FILES.items()}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out/data").rglob("*.*")}
    assert all(mode & 0o7000 == 0 and mode & 0o111 == 0 for mode in modes)


def encrypted() -> bytes:
    body = bytearray(zip_of(("secret", b"x" * 50)))
    # The flag stands in the local header and in the directory at the end.
    for head, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        body[body.index(head) + offset] |= 1
    return bytes(body)


def lying_zip() -> bytes:
    """A zip whose headers say 10 bytes of a member that has a million."""
    body = bytearray(zip_of(("big", b"\0" * 1_000_000)))
    for head, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = body.index(head) + offset
        body[place : place + 4] = (10).to_bytes(4, "little")
    return bytes(body)


def sparse_tar() -> bytes:
    """A member that claims to be a gigabyte with a hole, in GNU's old format."""
    info = tarfile.TarInfo("holes")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    # One piece of data of 512 bytes at 0; the real size is 2**30.
    header[386:398], header[398:410] = b"00000000000\0", b"00000001000\0"
    header[483:495] = b"10000000000\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + b"d" * 512 + bytes(10240)


def long_header_tar() -> bytes:
    """A name that is said to be two gigabytes long."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 2**31
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


def devices() -> bytes:
    return tar_of(("null", ""), null=tarfile.CHRTYPE)


PLAIN = tar_of(*FILES.items())
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "tar dots": (lambda: tar_of(("ok", b"1"), ("../evil", b"2")), "'../evil' leaves the folder"),
    "tar inner dots": (lambda: tar_of(("a/../../evil", b"2")), "leaves the folder"),
    "tar absolute": (lambda: tar_of(("/evil", b"2")), "'/evil' leaves the folder"),
    "tar backslash": (
        lambda: tar_of(("..\\evil", b"2")),
        "has a backslash, which is a folder's end on Windows",
    ),
    "tar drive": (lambda: tar_of(("C:evil", b"2")), "'C:evil' leaves the folder"),
    "tar symlink": (lambda: tar_of(("s", "/etc"), s=tarfile.SYMTYPE), "'s' is a link"),
    "tar hard link": (lambda: tar_of(("s", "/etc/passwd"), s=tarfile.LNKTYPE), "'s' is a link"),
    "tar through link": (
        lambda: tar_of(("s", ".."), ("s/evil", b"2"), s=tarfile.SYMTYPE),
        "'s' is a link",
    ),
    "tar device": (devices, "'null' is a special file"),
    "tar fifo": (lambda: tar_of(("pipe", ""), pipe=tarfile.FIFOTYPE), "'pipe' is a special file"),
    "tar sparse": (sparse_tar, "'holes' is sparse"),
    "tar long header": (long_header_tar, "has a header of 2,147,483,648 bytes"),
    "tar twice": (lambda: tar_of(("a", b"1"), ("./a", b"2")), "has './a' twice"),
    "tar below a file": (lambda: tar_of(("a", b"1"), ("a/b", b"2")), "has 'a/b' below a file"),
    "tar too many": (lambda: tar_of(*((str(n), b"") for n in range(6))), "has more than 5 files"),
    "tar too many folders": (lambda: tar_of(("a/b/c/d/e/f/g", b"")), "has more than 5 folders"),
    "tar long name": (lambda: tar_of(("n" * 300, b"")), "is no name for a file"),
    "tgz bomb": (lambda: gzip.compress(tar_of(("zeros", bytes(2_000_000)))), "more than 10,000 bytes"),
    "tgz bomb behind": (
        lambda: gzip.compress(PLAIN + bytes(9_000_000)),
        "more bytes than its files may have",
    ),
    "zip dots": (lambda: zip_of(("../evil", b"2")), "'../evil' leaves the folder"),
    "zip backslash": (lambda: zip_of(("..\\evil", b"2")), "'../evil' leaves the folder"),
    "zip backslashes": (lambda: zip_of(("\\\\host\\evil", b"2")), "leaves the folder"),
    "zip absolute": (lambda: zip_of(("/evil", b"2")), "leaves the folder"),
    "zip link": (lambda: zip_of(("s", b"/etc/passwd"), mode=stat.S_IFLNK | 0o777), "'s' is a link"),
    "zip fifo": (lambda: zip_of(("p", b""), mode=stat.S_IFIFO | 0o666), "'p' is a special file"),
    "zip bomb": (lambda: zip_of(("zeros", bytes(2_000_000))), "more than 10,000 bytes, at 'zeros'"),
    "zip lies": (lying_zip, "cut short or damaged"),
    "zip encrypted": (encrypted, "'secret' is encrypted"),
    "zip twice": (lambda: zip_of(("a", b"1"), ("./a", b"2")), "has './a' twice"),
    "zip too many": (lambda: zip_of(*((str(n), b"") for n in range(6))), "has more than 5 files"),
    "zip method": (lambda: zip_of(("a", b"1"), method=zipfile.ZIP_LZMA), "compressed by method 14"),
    "zip cut": (lambda: zip_of(*FILES.items())[:-30], "cut short or damaged"),
    "zip altered": (lambda: zip_of(("a", b"abcd"), method=0).replace(b"abcd", b"abce", 1), "damaged"),
    "tar cut between": (lambda: tar_of(("a", b"1"), ("b", b"2"))[:1024], "cut short or damaged"),
    "tar cut within": (lambda: tar_of(("a", b"1" * 2000))[:1200], "cut short or damaged"),
    "tar altered header": (lambda: tar_of(("a", b"1"), ("b", b"2")).replace(b"b\0", b"c\0"), "damaged"),
    "tgz cut": (lambda: gzip.compress(PLAIN)[:-5], "cut short or damaged"),
    "tgz altered": (lambda: gzip.compress(PLAIN)[:-8] + bytes(8), "cut short or damaged"),
    "no archive": (lambda: b"<html>please log in</html>" * 100, "cut short or damaged"),
    "empty": (lambda: b"", "cut short or damaged"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_or_damaged_archive_is_refused_in_a_sentence_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    make, says = HOSTILE[name]
    archive = put(tmp_path / "in", "data.any", make())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError) as refusal:
        unpack(archive, tmp_path / "in" / "data", **MOST)
    assert str(refusal.value).startswith("data.any: ") and says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_whatever_bytes_are_altered_it_is_whole_or_refused(tmp_path: Path) -> None:
    dice = random.Random(0)
    sound = [PLAIN, gzip.compress(PLAIN), zip_of(*FILES.items()), zip_of(*FILES.items(), method=0)]
    outcomes = set()
    for _ in range(250):
        body = bytearray(dice.choice(sound))
        for _ in range(dice.randint(1, 4)):
            # Most in the first header, or in a zip's directory at the end.
            place = dice.choice(
                [dice.randrange(600), dice.randrange(len(body)), len(body) - dice.randrange(1, 200)]
            )
            body[place % len(body)] = dice.choice([0, 255, dice.randrange(256)])
        archive = put(tmp_path, "a", bytes(body))
        try:
            unpack(archive, tmp_path / "out", **MOST)
        except DataError:
            outcomes.add("refused")
        else:
            outcomes.add("whole")
            shutil.rmtree(tmp_path / "out")
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert outcomes == {"whole", "refused"}


def test_folders_may_be_members_and_sizes_may_just_fit(tmp_path: Path) -> None:
    body = tar_of(("d", ""), ("d/e", ""), ("d/e/f", b"x" * 10), d=tarfile.DIRTYPE, **{"d/e": tarfile.DIRTYPE})
    unpack(put(tmp_path, "a.tar", body), tmp_path / "a", most_bytes=10, most_files=2)
    assert contents(tmp_path / "a") == {"d/e/f": b"x" * 10}


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    mine = put(tmp_path / "a", "mine", b"mine")
    with pytest.raises(DataError, match="can't be used"):
        unpack(put(tmp_path, "a.tar", PLAIN), tmp_path / "a", **MOST)
    assert mine.read_bytes() == b"mine"
