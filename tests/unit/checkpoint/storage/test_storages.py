# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What every Storage promises, asked of a folder and of a real S3 server."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import threading
from collections.abc import Iterator

import crc32c
import pytest

from rover_kf import errors
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage.claim import Claim
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.retention import KeepBest, RetentionExceptions
from rover_kf.checkpoint.storage.storage_protocol import Storage
from tests.support.servers.object_server import object_server, offer
from tests.support.states import identities

# The first fixture may compile the server: that has a limit of its own.
pytestmark = pytest.mark.timeout(300, func_only=True)

SIZES = [0, 1, 4096, (8 << 20) - 1, (8 << 20) + 1, (20 << 20) + 7]


@dataclasses.dataclass
class Place:
    """A storage and the files that it comes down to."""

    storage: Storage
    files: pathlib.Path

    def file(self, folder: CheckpointFolder, name: str) -> pathlib.Path:
        return self.files / folder.name / name


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with object_server(tmp_path_factory.mktemp("s3") / "server") as running:
        yield running


@pytest.fixture(params=["directory", "s3"])
def place(request, tmp_path, monkeypatch):
    if request.param == "directory":
        return Place(open_storage(str(tmp_path), "demo"), tmp_path / "demo")
    server = request.getfixturevalue("server")
    offer(server, monkeypatch)
    storage = open_storage(f"s3://checkpoints/{tmp_path.name}/", "demo")
    return Place(storage, server.bucket / tmp_path.name / "demo")


def _bytes(length: int, seed: int = 0) -> bytes:
    block = bytes((value * 31 + seed) % 251 for value in range(9973))
    return (block * (length // len(block) + 1))[:length]


def _pieces(content: bytes, size: int = 1 << 20) -> Iterator[memoryview]:
    """As they come from a slot: one buffer, filled anew for each."""
    buffer = bytearray(size)
    for begin in range(0, len(content), size):
        piece = content[begin : begin + size]
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]


def _read(pieces: Iterator[memoryview]) -> bytes:
    """Each before the next is asked for."""
    found = bytearray()
    for piece in pieces:
        found += piece
    return bytes(found)


def _write(storage: Storage, step: int, generation: int = 1, *, world: int = 2) -> Manifest:
    folder = storage.folder(identities.state(step, generation))
    files = []
    for rank in range(world):
        content = _bytes(3000, step * 7 + rank)
        files.append(storage.write_rank(folder, rank, _pieces(content, 700), len(content)))
    return Manifest(
        "",
        identities.state(step, generation),
        identities.state(step, generation),
        world_size=world,
        replicated=False,
        files=tuple(files),
    )


def _save(storage: Storage, step: int, generation: int = 1) -> CheckpointFolder:
    return storage.write_manifest(_write(storage, step, generation))


def test_nothing_is_there_at_first(place):
    """No folder or prefix yet: empty answers, not errors."""
    assert place.storage.folders() == place.storage.complete_folders() == ()
    assert place.storage.collect(1, current=identities.round_id(5)) == ()


def test_a_file_that_is_named_like_a_checkpoint_is_none(place):
    """Somebody's own, in the way of nothing: listings and retention go on."""
    for step in (1, 2):
        _save(place.storage, step)
    stray = place.file(place.storage.folder(identities.state(9)), "")
    stray.write_text("somebody's own")
    assert [folder.step for folder in place.storage.folders()] == [1, 2]
    assert [folder.step for folder in place.storage.complete_folders()] == [1, 2]
    assert place.storage.sizes(place.storage.folder(identities.state(9))) == {}
    assert [folder.step for folder in place.storage.collect(1, current=identities.round_id(1))] == [
        1
    ]
    assert stray.exists()


@pytest.mark.parametrize("size", SIZES)
def test_a_file_is_read_as_it_was_written(place, size):
    """Any size, parts of uploads included; the checksum is that of the bytes."""
    content = _bytes(size)
    folder = place.storage.folder(identities.state(7, 3))
    file = place.storage.write_rank(folder, 4, _pieces(content), size)
    name = "rank-00004.safetensors"
    assert file == RankFile(4, name, size, crc32c.crc32c(content))
    assert place.file(folder, name).read_bytes() == content
    assert _read(place.storage.read_range(folder, file, 0, size)) == content


def test_ranges_are_what_was_asked_for(place):
    """Within a part, over its edges, to the end; past the end is torn."""
    content = _bytes((20 << 20) + 7)
    folder = place.storage.folder(identities.state(1))
    file = place.storage.write_rank(folder, 0, _pieces(content), len(content))
    edge = 8 << 20
    for offset, length in [
        (0, 1), (5, 0), (edge - 1, 2), (edge, edge), (edge - 3, edge + 6), (len(content) - 9, 9),
    ]:  # fmt: skip
        found = _read(place.storage.read_range(folder, file, offset, length))
        assert found == content[offset : offset + length]
    for offset, length in [(len(content) - 1, 2), (len(content) + 10, 5), (edge, 2 * edge)]:
        with pytest.raises(errors.CorruptSnapshot):
            list(place.storage.read_range(folder, file, offset, length))


def test_only_a_manifest_makes_a_checkpoint(place):
    """Files alone are nothing; with the manifest it is whole, and written twice it is the same."""
    content = _write(place.storage, 2)
    (folder,) = place.storage.folders()
    assert (folder.step, folder.state.round.number, place.storage.complete_folders()) == (2, 1, ())
    for _ in range(2):
        assert place.storage.write_manifest(content) == folder
        assert place.storage.complete_folders() == (folder,)
        assert place.storage.load(folder) == place.storage.verify(folder) == content


def test_a_manifest_needs_its_files_whole(place):
    """One is missing or has another size: refused, named, and there is no checkpoint."""
    content = _write(place.storage, 2)
    last = content.files[-1]
    for wrong in (
        dataclasses.replace(last, name="rank-00009.safetensors"),
        dataclasses.replace(last, length=last.length + 1),
    ):
        files = (content.files[0], wrong)
        with pytest.raises(errors.StorageError, match=f"{wrong.name} has "):
            place.storage.write_manifest(dataclasses.replace(content, files=files))
        assert place.storage.complete_folders() == ()


@pytest.mark.parametrize("size", [5000, 20 << 20])
def test_a_source_that_fails_leaves_no_file(place, size):
    """An error half-way, too few bytes, too many: no file of that name; the next write is whole."""
    content, folder = _bytes(size), place.storage.folder(identities.state(3))

    def broken() -> Iterator[memoryview]:
        yield from list(_pieces(content, size // 10))[:6]
        raise errors.CorruptSnapshot("the slot was overwritten")

    path = place.file(folder, "rank-00000.safetensors")
    sources = [broken(), _pieces(content[:-1]), _pieces(content + b"x")]
    for source in sources:
        with pytest.raises(errors.CorruptSnapshot):
            place.storage.write_rank(folder, 0, source, size)
        assert not path.parent.exists() or not list(path.parent.iterdir())
    place.storage.write_rank(folder, 0, _pieces(content), size)
    assert path.read_bytes() == content


def test_a_checkpoints_files_are_never_replaced(place):
    """A rank that writes a step again once it is committed is refused, and changes nothing."""
    folder = _save(place.storage, 1)
    content = _bytes(3000, seed=9)
    with pytest.raises(
        errors.CheckpointExists, match=r"step-000000000001-1 is a checkpoint already"
    ):
        place.storage.write_rank(folder, 0, _pieces(content), len(content))
    place.storage.verify(folder)


def test_a_file_that_was_reported_is_never_replaced(place):
    """Written again before the commit, as after a restart: whichever was reported last is there,
    and the others go once there is a manifest, which names that one."""
    first = _write(place.storage, 1)
    folder = place.storage.folder(identities.state(1))
    again = [
        place.storage.write_rank(folder, 0, _pieces(_bytes(2000, seed)), 2000) for seed in (8, 9)
    ]
    for file in (first.files[0], *again):
        path = place.file(folder, file.name)
        assert crc32c.crc32c(path.read_bytes()) == file.checksum
    assert manifest.is_safe_file_name(again[-1].name)
    newest = dataclasses.replace(first, files=(again[-1], first.files[1]))
    place.storage.write_manifest(newest)
    assert place.storage.verify(folder) == newest
    assert place.storage.collect(1, current=identities.round_id(1)) == ()
    named = {manifest.NAME, *(file.name for file in newest.files)}
    assert place.storage.sizes(folder).keys() == named
    assert place.storage.verify(folder) == newest
    place.storage.remove(folder)
    assert place.storage.folders() == ()


@pytest.mark.parametrize("size", [5000, 9 << 20])
def test_two_writers_of_a_rank_never_replace_each_others_file(place, size):
    """Both begin before either is done, as of a coordinator that was cut off and its successor."""
    folder, inner = place.storage.folder(identities.state(1)), []

    def meanwhile() -> Iterator[memoryview]:
        content = _pieces(_bytes(size, 1))
        inner.append(other.submit(place.storage.write_rank, folder, 0, content, size).result())
        yield from _pieces(_bytes(size, 2))

    with concurrent.futures.ThreadPoolExecutor(1) as other:
        outer = place.storage.write_rank(folder, 0, meanwhile(), size)
    assert outer.name != inner[0].name
    for file in (outer, *inner):
        assert crc32c.crc32c(place.file(folder, file.name).read_bytes()) == file.checksum


@pytest.mark.parametrize("attempt", range(5))
def test_of_two_jobs_that_claim_a_folder_at_once_one_owns_it(place, attempt):
    """Each asks several times at once, as a coordinator's scan and its first commit do."""
    together = threading.Barrier(8)

    def claims(owner: str) -> str:
        together.wait()
        try:
            place.storage.claim(Claim(owner, attempt))
        except errors.NotOwner:
            return ""
        return owner

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(claims, ["team/a", "team/b"] * 4))
    (owner,) = set(answers) - {""}
    assert answers.count(owner) == 4, answers
    assert json.loads((place.files / "owner.json").read_bytes()) == {"owner": owner}
    (marker,) = (place.files / "generations").iterdir()
    assert marker.name == str(attempt)


def test_a_small_file_that_is_large_is_not_read(place, monkeypatch):
    """Somebody has put it there; a sidecar has no memory for it."""
    folder = _save(place.storage, 1)
    assert place.storage.create_small("owner.json", b"12345678")
    monkeypatch.setattr(manifest, "MAX_BYTES", 7)
    with pytest.raises(errors.CorruptSnapshot, match=r"owner\.json .* 7"):
        place.storage.read_small("owner.json")
    with pytest.raises(errors.CorruptSnapshot, match=r"manifest\.json .* 7"):
        place.storage.read_manifest(folder)
    monkeypatch.setattr(manifest, "MAX_BYTES", 8)
    assert place.storage.read_small("owner.json") == b"12345678"
    assert place.storage.read_small("another") is None


def test_damage_is_found_and_named(place):
    """A byte, an end, a file, the manifest: CorruptSnapshot with the name of what is wrong."""
    folder = _save(place.storage, 1)
    for name in ("rank-00000.safetensors", "rank-00001.safetensors", manifest.NAME):
        path = place.file(folder, name)
        content = path.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 4
        for wrong in (bytes(flipped), content[:-1], b""):
            path.write_bytes(wrong)
            with pytest.raises(errors.CorruptSnapshot, match=name):
                place.storage.verify(folder)
        path.write_bytes(content)
        place.storage.verify(folder)
    place.file(folder, "rank-00001.safetensors").unlink()
    with pytest.raises(errors.CorruptSnapshot, match=r"rank-00001\.safetensors is missing"):
        place.storage.load(folder)


def test_retention_keeps_the_newest_good_ones(place):
    """Two stay, and what the running round may still be writing; a damaged one does not count."""
    for step in (1, 2, 3, 4):
        _save(place.storage, step)
    _write(place.storage, 9, 0)
    _write(place.storage, 5, 2)
    place.file(place.storage.folder(identities.state(4)), "rank-00000.safetensors").write_bytes(
        b"cut"
    )
    gone = place.storage.collect(2, current=identities.round_id(2))
    assert [(folder.state.round.number, folder.step) for folder in gone] == [(0, 9), (1, 1), (1, 4)]
    left = [(folder.state.round.number, folder.step) for folder in place.storage.folders()]
    assert left == [(1, 2), (1, 3), (2, 5)]
    assert [folder.step for folder in place.storage.complete_folders()] == [2, 3]


def test_retention_spares_the_best_and_every_so_many(place):
    """As manifests tell; decided anew each time, so a new best one takes an old one's place."""
    spare = RetentionExceptions(every=10, best=KeepBest("accuracy", highest=True, count=1))
    accuracies = {4: 0.5, 10: 0.1, 12: 0.9, 15: 0.9, 16: 0.2, 17: None}
    for step, accuracy in accuracies.items():
        content = _write(place.storage, step)
        metrics = {} if accuracy is None else {"accuracy": accuracy}
        place.storage.write_manifest(dataclasses.replace(content, metrics=metrics))
        place.storage.collect(1, current=identities.round_id(1), spare=spare)
        left = [folder.step for folder in place.storage.complete_folders()]
        best = {4: 4, 10: 4, 12: 12}.get(step, 15)
        assert left == sorted({best, step} | ({10} if step >= 10 else set()))
    place.file(place.storage.folder(identities.state(15)), "rank-00000.safetensors").write_bytes(
        b"cut"
    )
    place.storage.collect(1, current=identities.round_id(1), spare=spare)
    assert [folder.step for folder in place.storage.folders()] == [10, 17]


def test_retention_removes_nothing_where_a_later_coordinator_writes(place):
    """It has replaced this one, which still runs: as behind a network that is cut in two."""
    ours = [_save(place.storage, step, 1) for step in (100, 200)]
    theirs = _save(place.storage, 10, 2)
    with pytest.raises(errors.Superseded, match="it was replaced") as refused:
        place.storage.collect(1, current=identities.round_id(1))
    assert theirs.location in str(refused.value)
    assert place.storage.complete_folders() == (*ours, theirs)


def test_retention_takes_what_was_given_up(place):
    """Older than the step that all ranks have come to, of the running round, without a manifest."""
    damaged = _save(place.storage, 1, 2)
    place.file(damaged, "rank-00000.safetensors").write_bytes(b"cut")
    for step, generation in ((9, 1), (2, 2), (3, 2), (4, 2)):
        _write(place.storage, step, generation)
    gone = place.storage.collect(1, current=identities.round_id(2), below=identities.state(4, 2))
    assert [(folder.state.round.number, folder.step) for folder in gone] == [(2, 2), (2, 3)]
    left = [(folder.state.round.number, folder.step) for folder in place.storage.folders()]
    assert left == [(1, 9), (2, 1), (2, 4)]


def test_retention_leaves_all_when_nothing_is_good(place):
    """A damaged checkpoint may be all that a person has."""
    folder = _save(place.storage, 1)
    place.file(folder, "rank-00000.safetensors").write_bytes(b"cut")
    _write(place.storage, 2)
    assert place.storage.collect(1, current=identities.round_id(9)) == ()
    assert len(place.storage.folders()) == 2


@pytest.mark.parametrize(
    "change",
    [{"format": 3}, {"world_size": [2, 4]}, {"files": {"0": "rank-00000.safetensors"}}],
    ids=["format", "field", "files"],
)
def test_retention_leaves_what_another_release_wrote(place, change):
    """It is whole and unharmed; the error names it, and the others are collected as ever."""
    for step in (800, 900):
        _save(place.storage, step, 1)
    newer = _save(place.storage, 1000, 2)
    path = place.file(newer, manifest.NAME)
    tree = json.loads(path.read_bytes())["manifest"] | change
    path.write_bytes(_signed_anew(json.dumps({"manifest": tree}).encode()))
    _save(place.storage, 910, 3)
    with pytest.raises(errors.UnknownFormat, match="cannot read it"):
        place.storage.load(newer)
    with pytest.raises(errors.StorageError, match=newer.name):
        place.storage.collect(2, current=identities.round_id(3))
    assert [folder.step for folder in place.storage.complete_folders()] == [900, 1000, 910]


def test_retention_leaves_a_manifest_of_another_kind(place):
    """JSON without the two keys that each release of this format writes."""
    newer = _save(place.storage, 1, 1)
    place.file(newer, manifest.NAME).write_bytes(b'{"checkpoint": {}, "sha256": "00"}')
    for step in (2, 3):
        _save(place.storage, step, 2)
    with pytest.raises(errors.StorageError, match=newer.name):
        place.storage.collect(1, current=identities.round_id(2))
    assert [folder.step for folder in place.storage.folders()] == [1, 3]


def test_a_checkpoint_of_format_1_is_read(place):
    """Its folder says step and round; it has no owner."""
    content = b"a state of an earlier format"
    folder = place.storage.folder(identities.state(7, 3))
    assert folder.name == "step-000000000007-3"
    file = place.storage.write_rank(folder, 0, iter([memoryview(content)]), len(content))
    plain = {
        "step": 7, "generation": 3, "world_size": 1, "replicated": True,
        "files": [dataclasses.asdict(file)], "saved_at": 9.5, "format": 1, "pieces": False,
        "metrics": {"loss": 0.25},
    }  # fmt: skip
    path = place.file(folder, manifest.NAME)
    path.write_bytes(_signed_anew(json.dumps({"manifest": plain}).encode()))
    found = place.storage.verify(place.storage.complete_folders()[0])
    assert (found.state, found.origin) == (folder.state, folder.state)
    assert (found.owner, found.saved_at, found.metrics) == ("", 9.5, {"loss": 0.25})
    assert found.files == (file,)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "manifest.json", "..", ""]
)
def test_a_name_that_leads_elsewhere_is_refused(place, name):
    """In a report: no manifest is written. In a manifest: it is torn, and nothing is read."""
    content = _write(place.storage, 1)
    strange = dataclasses.replace(content.files[0], name=name)
    named = dataclasses.replace(content, files=(strange, content.files[1]))
    with pytest.raises(errors.ProtocolError, match="not the name of a rank's file"):
        place.storage.write_manifest(named)
    assert place.storage.complete_folders() == ()
    folder = place.storage.write_manifest(content)
    path = place.file(folder, manifest.NAME)
    plain = content.files[0].name.encode()
    path.write_bytes(_signed_anew(path.read_bytes().replace(plain, name.encode())))
    with pytest.raises(errors.CorruptSnapshot, match="names a file"):
        place.storage.load(folder)


def _signed_anew(data: bytes) -> bytes:
    """The manifest with the checksum that its content asks for."""
    parsed = json.loads(data)
    parsed["crc32c"] = crc32c.crc32c(manifest._canonical(parsed["manifest"]))
    return json.dumps(parsed).encode()
