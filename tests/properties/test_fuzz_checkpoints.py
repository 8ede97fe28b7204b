# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes stand in a slot or on storage: what they say,
 or CorruptSnapshot; never more memory
or time than the bytes are worth, and never a file of another place."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.checkpoint.arena.slot_record import CONTROL_BYTES, SlotRecord
from rover_kf.checkpoint.format import (
    checksum,
    manifest,
    metrics,
    plain_data,
    snapshot,
    tensor_layout,
)
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, RankFile
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from tests.support.malformed_messages import (
    BUDGET,
    DEEP,
    anything,
    as_bytes,
    damaged,
    plain,
    rubbish,
)
from tests.support.states import identities

FOLDER = CheckpointFolder(identities.state(7), "/checkpoints/job/step-000000000007-1")
TENSOR = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*snapshot.WIDTHS, "?"]),
        "shape": st.lists(st.integers(0, 4), max_size=3),
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2),
    }
)
PIECE = st.tuples(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)), st.integers(0, 3))
HEADER = st.fixed_dictionaries(
    {
        "__metadata__": st.fixed_dictionaries(
            {},
            optional={
                snapshot.TYPES_KEY: st.dictionaries(st.sampled_from("ab"), anything).map(
                    json.dumps
                ),
                tensor_layout.LAYOUT_KEY: st.fixed_dictionaries(
                    {
                        "own": st.lists(st.sampled_from("ab")),
                        "pieces": st.dictionaries(st.sampled_from("ab"), PIECE),
                    }
                ).map(json.dumps),
                metrics.METRICS_KEY: anything.map(json.dumps),
                snapshot.STATE_KEY: anything.map(json.dumps),
            },
        )
    },
    optional={"a": TENSOR, "b": TENSOR},
)


def whole(header: bytes, length: int | None = None, tensors: bytes = b"") -> bytes:
    """A file with that header."""
    size = len(header) if length is None else length
    return size.to_bytes(8, "little") + header + tensors


def look(data: bytes) -> bool:
    """Read all that a reader reads of a header; whether it was taken."""
    try:
        found = snapshot.read(data)
        tensor_layout.read_tensor_layout(found)
        metrics.read_metrics(found)
        text = found.metadata.get(snapshot.STATE_KEY)
        if text is not None:
            plain_data.decode(plain_data.parse(text), lambda name: name)
    except errors.CorruptSnapshot:
        return False
    ends = [place.end for place in found.tensors.values()]
    assert max(ends, default=len(data)) == len(data)
    return True


@BUDGET
@given(rubbish, st.sampled_from([0, 1, -1, 2**62]), st.binary(max_size=8))
def test_bytes_that_are_no_snapshot_are_refused(header, off, tensors):
    """Any header, of any stated length."""
    look(header)
    look(whole(header, max(len(header) + off, 0), tensors))


def test_a_header_with_a_strange_part_is_read_or_refused():
    """Types, shapes, offsets, pieces, metrics, plain data: each may be anything."""
    counts = {True: 0, False: 0}

    @settings(BUDGET, max_examples=5 * BUDGET.max_examples)
    @given(damaged(HEADER), st.integers(0, 24))
    def check(header, spare):
        counts[look(whole(as_bytes(header), None, bytes(spare)))] += 1

    check()
    assert all(counts.values())
    print(f"headers: {counts[True]} read, {counts[False]} refused")


@BUDGET
@given(anything | rubbish.map(lambda data: data.decode("latin-1")))
def test_plain_data_that_was_not_encoded_is_refused(data):
    """What a state is restored from."""
    try:
        plain_data.decode(data, lambda name: name)
    except errors.CorruptSnapshot:
        return


@pytest.mark.parametrize("text", ["[" * 20_000, '{"l":[' * 20_000, "nonsense", '{"l":1}', "\ud800"])
def test_a_state_that_cannot_be_read_is_torn(text):
    """However deep it is nested."""
    with pytest.raises(errors.CorruptSnapshot):
        plain_data.decode(plain_data.parse(text), lambda name: name)


def test_a_header_cannot_ask_for_more_memory_than_it_has_bytes():
    """Lengths and shapes are compared before anything is made of them."""
    huge = {"a": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}
    many = {"a": {"dtype": "U8", "shape": [2**63] * 20_000, "data_offsets": [0, 1]}}
    for data in (whole(b"", 2**63), whole(as_bytes(huge)), whole(as_bytes(many)), whole(DEEP)):
        tracemalloc.start()
        try:
            with pytest.raises(errors.CorruptSnapshot):
                snapshot.read(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 40 * len(data) + (1 << 20)


def test_a_manifest_with_a_strange_part_is_read_or_refused():
    """Also with a good checksum of its own: who writes the folder can make one."""
    counts = {True: 0, False: 0}

    @settings(BUDGET, max_examples=5 * BUDGET.max_examples)
    @given(damaged(plain(Manifest)), st.booleans())
    def check(content, ours):
        if ours and isinstance(content, dict):
            content = {**content, "state": codec.encode(FOLDER.state), "format": manifest.FORMAT}
        try:
            body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        except TypeError:  # keys of several types
            return
        data = as_bytes({"manifest": content, "crc32c": checksum.extend(0, body)})
        try:
            found = manifest.from_bytes(data, FOLDER)
        except errors.CorruptSnapshot:
            counts[False] += 1
            return
        counts[True] += 1
        assert all("/" not in file.name and file.length >= 0 for file in found.files)

    check()
    assert all(counts.values())
    print(f"manifests: {counts[True]} read, {counts[False]} refused")


@BUDGET
@given(rubbish)
def test_bytes_that_are_no_manifest_are_refused(data):
    """Any bytes."""
    with pytest.raises(errors.CorruptSnapshot):
        manifest.from_bytes(data, FOLDER)


@pytest.mark.parametrize(
    "name",
    ["../token", "/etc/passwd", "..", ".", "", "a/b.safetensors", "rank\n.safetensors",
     "manifest.json", "-.safetensors", "\u202erank.safetensors", "rank-00000.safetensors/../../x",
     "a\0.safetensors"],
)  # fmt: skip
def test_a_file_of_another_place_is_not_named(name):
    """Neither read from a manifest nor written into one."""
    content = Manifest(
        "",
        identities.state(7),
        identities.state(7),
        world_size=1,
        replicated=True,
        files=(RankFile(0, name, 1, 1),),
    )
    with pytest.raises(errors.ProtocolError, match="name of a rank's file"):
        manifest.to_bytes(content)
    body = json.dumps(codec.encode(content), sort_keys=True, separators=(",", ":")).encode()
    data = as_bytes({"manifest": codec.encode(content), "crc32c": checksum.extend(0, body)})
    with pytest.raises(errors.CorruptSnapshot, match="names a file"):
        manifest.from_bytes(data, FOLDER)


@BUDGET
@given(st.text(max_size=40) | st.from_regex(r"(\.\./|/)*step-\d{10,14}(-\d+){1,3}(/\.\.)?"))
def test_a_folder_is_ours_by_its_whole_name(name):
    """What is parsed leads to that very folder and nowhere else."""
    found = manifest.parse_folder(name)
    assert found is None or name.endswith(found.name)


@pytest.mark.parametrize(
    "name",
    ["step-" + "\u0660" * 11 + "\u0667-1",
     "step-0000000000007-1", "step-000000000007-01", "step-000000000007-1/",
     "step-000000000007-1/..",
     "step-" + "9" * 5000 + "-1", "step-000000000007-1\n", "step--00000000007-1",
     "step-000000000007-0-1-1", "step-000000000007-1-2", "step-000000000007-0-01-2",
     "step-000000000007-1-2-03"],
)  # fmt: skip
def test_a_folder_written_in_another_way_is_not_ours(name):
    """Two names of one step would let a stale folder stand for a newer one."""
    assert manifest.parse_folder(name) is None


def test_links_on_storage_lead_nowhere(tmp_path):
    """A checkpoint's folder, manifest or file that is a link is none: it may lead to a secret."""
    storage, secret = DirectoryStorage(tmp_path / "job"), tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_bytes(b"secret")
    folder = storage.folder(identities.state(7))
    file = storage.write_rank(folder, 0, iter([memoryview(b"secret")]), 6)
    storage.write_manifest(
        Manifest(
            "",
            identities.state(7),
            identities.state(7),
            world_size=1,
            replicated=True,
            files=(file,),
        )
    )
    assert storage.verify(folder)
    path = tmp_path / "job" / folder.name / file.name
    path.unlink()
    path.symlink_to(secret / "token")  # the same bytes: its checksum is right
    with pytest.raises((errors.CorruptSnapshot, errors.StorageError)):
        storage.verify(folder)
    real = tmp_path / "job" / folder.name
    real.rename(secret / folder.name)
    real.symlink_to(secret / folder.name)
    assert storage.folders() == ()
    storage.collect(1, current=identities.round_id(9))
    assert (secret / folder.name / manifest.NAME).exists()


@BUDGET
@given(st.binary(max_size=CONTROL_BYTES))
def test_a_control_file_of_any_bytes_is_read(tmp_path_factory, data):
    """What is no record counts as none."""
    path = tmp_path_factory.getbasetemp() / "control"
    path.write_bytes(data)
    for seal in SlotRecord(path).read():
        assert seal is None or SlotRecord(path).read_checksum(seal) is None


def test_a_forged_record_says_no_more_than_a_slot_has(tmp_path):
    """A record's checksum is no secret: the length that it states is compared with the file's."""
    from rover_kf.checkpoint.format import chunks  # noqa: PLC0415 - beside its use

    path = tmp_path / "control"
    body = struct.pack("<8sHHIQQQIIQQI", b"ROVERSL1", 2, 0, 1, 1, 1, 2**63, 0, 1, 0, 1, 1)
    path.write_bytes((body + struct.pack("<I", zlib.crc32(body))).ljust(CONTROL_BYTES, b"\0"))
    (seal, _) = SlotRecord(path).read()
    assert seal is not None
    (tmp_path / "slot-0").write_bytes(b"x" * 100)
    descriptor = os.open(tmp_path / "slot-0", os.O_RDONLY)
    try:
        with pytest.raises(errors.CorruptSnapshot):
            chunks.map_readonly(descriptor, seal.length)
        with pytest.raises(errors.CorruptSnapshot):
            for _ in chunks.read(descriptor, 0, seal.length):
                pass
    finally:
        os.close(descriptor)
