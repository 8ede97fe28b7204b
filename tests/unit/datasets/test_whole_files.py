# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files as samples, one each: in fixed order and leased."""

from __future__ import annotations

import functools
import pickle

import pytest
from torch.utils.data import DataLoader

from rover_kf import ElasticDataLoader, FileDataset, ShardedDataset, errors
from rover_kf.data_sharding.dispatcher import ShardDispatcher
from rover_kf.data_sharding.lease_terms import LeaseTerms
from rover_kf.datasets.whole_files import FileSample
from rover_kf.trainer.data import lease_client

NAMES = (*(f"cat/{n}.img" for n in range(4)), "dog/old/7.img", "dog/x.img", "z.img")


@pytest.fixture
def folder(tmp_path):
    """Seven pictures of two kinds and of none, each with its own name in it; other files."""
    folder = tmp_path / "train"
    for name in (*NAMES, "cat/readme.txt", "_SUCCESS.img", ".cache/1.img", "cat/.2.img"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"picture {name}")
    return folder


def decoded(file):
    """What the picture shows; some cannot be read as one."""
    word, name = file.content.decode().split()
    assert word == "picture", f"begins with {word}"
    return name, file.label


def images(folder, **options):
    return FileDataset(folder, **{"decode": decoded, "endings": (".img",), **options})


def test_each_file_is_a_sample(folder):
    """In the order of names, with its folder's number; in another process as well."""
    data = images(folder)
    assert data.classes == ("cat", "dog")
    expected = list(zip(NAMES, (0, 0, 0, 0, 1, 1, -1), strict=True))
    for found in (data, pickle.loads(pickle.dumps(data))):
        assert [found[number] for number in range(len(found))] == expected
    for number in (-1, 7):
        with pytest.raises(IndexError):
            data[number]
    (batch,) = DataLoader(images(folder, decode=None), 7)
    assert isinstance(batch, FileSample)
    assert list(batch.name) == list(NAMES)
    assert batch.content[6] == b"picture z.img"
    assert batch.label.tolist() == [label for _, label in expected]


def test_sources_follow_each_other(folder):
    """Single files take any name; folders are sorted, each for itself."""
    data = images([folder / "cat" / "readme.txt", folder / "dog", str(folder / "z.img")])
    names = [data[number][0] for number in range(len(data))]
    assert names == ["cat/readme.txt", "dog/old/7.img", "dog/x.img", "z.img"]
    assert data.classes == ("old",)
    assert [data[number][1] for number in range(4)] == [-1, 0, -1, -1]


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_workers_read_them(folder, way):
    """Any order of them costs the same, so none goes by blocks."""
    data = images(folder)
    loader = ElasticDataLoader(
        data, 3, rank=0, world_size=1, num_workers=2, multiprocessing_context=way, seed=1
    )
    found = [name for names, _ in loader for name in names]
    assert sorted(found) == sorted(NAMES)
    assert found != sorted(found)
    assert loader.state_dict()["lanes"] == []


def test_leases_of_them(folder):
    """Each once an epoch."""
    data = ShardedDataset(images(folder), shard_size=2, epochs=2)
    loader = data.loader(3, num_workers=1)
    while data.epoch < 2:
        assert sorted(name for names, _ in loader for name in names) == sorted(NAMES)
    data.close()


@pytest.mark.parametrize(
    "made",
    [
        lambda data: ElasticDataLoader(data, 3, rank=0, world_size=1),
        lambda data: ShardedDataset(data, shard_size=2),
    ],
)
def test_a_place_in_other_files_is_refused(folder, tmp_path, made):
    """As many of other names or sizes; not those of another mount, written again alike."""
    state = made(images(folder)).state_dict()
    moved = folder.rename(tmp_path / "elsewhere")
    (moved / "cat" / "1.img").write_text("picture cat/1.img")
    made(images(moved)).load_state_dict(state)
    (moved / "cat" / "1.img").write_text("picture cat/1.img again")
    with pytest.raises(errors.CheckpointError, match=r"fingerprint.*train on the same data"):
        made(images(moved)).load_state_dict(state)
    (moved / "cat" / "1.img").rename(moved / "cat" / "9.img")
    (moved / "cat" / "9.img").write_text("picture cat/1.img")
    with pytest.raises(errors.CheckpointError, match=r"fingerprint.*train on the same data"):
        made(images(moved)).load_state_dict(state)


def test_files_that_change_under_training_are_an_error(folder):
    """Samples would be others than those of the checkpoint."""
    data = images(folder, stand_in=lambda name: (name, 0))
    (folder / "cat" / "1.img").write_text("picture dog")
    with pytest.raises(
        errors.DatasetReadError, match=r"cat/1.img was changed while the job trains"
    ):
        data[1]
    (folder / "cat" / "2.img").unlink()
    with pytest.raises(errors.DatasetReadError, match=r"cat/2.img cannot be opened"):
        data[2]


def test_a_damaged_file_is_named(folder):
    """In the worker that reads it, with what decode said; others are read."""
    (folder / "dog" / "x.img").write_text("noise here")
    data = images(folder)
    assert data[4] == ("dog/old/7.img", 1)
    says = r"dog/x.img: AssertionError: begins with noise"
    with pytest.raises(errors.DatasetReadError, match=says):
        list(DataLoader(data, 7, num_workers=1))


def test_something_else_may_count_in_its_place(folder, caplog):
    """Steps have as many samples as before, and a warning names the file."""
    (folder / "dog" / "x.img").write_text("noise here")
    data = images(folder, stand_in=lambda name: (f"not {name}", -100))
    loader = ElasticDataLoader(data, 7, rank=0, world_size=1, shuffle=False)
    ((names, labels),) = loader
    assert list(names) == [*NAMES[:5], "not dog/x.img", "z.img"]
    assert labels.tolist() == [0, 0, 0, 0, 1, -100, -1]
    assert "dog/x.img: AssertionError: begins with noise" in caplog.text


def test_of_leased_files_a_damaged_one_is_set_aside(folder, monkeypatch, caplog):
    """By its name, and it alone."""
    monkeypatch.setattr(
        lease_client,
        "ShardDispatcher",
        functools.partial(ShardDispatcher, LeaseTerms(tries=2, retry_seconds=0.0)),
    )
    (folder / "dog" / "x.img").write_bytes(b"\xff\xd8")
    data = ShardedDataset(images(folder), shard_size=4)
    found = sorted(name for names, _ in data.loader(3) for name in names)
    data.close()
    assert found == sorted({*NAMES} - {"dog/x.img"})
    assert data.epoch == 1
    assert "dog/x.img: UnicodeDecodeError" in caplog.text


def test_links_are_followed_but_in_no_circle(folder, tmp_path):
    """A folder that is mounted elsewhere belongs to the data set."""
    more = tmp_path / "more"
    more.mkdir()
    (more / "1.img").write_text("picture cow")
    (folder / "cow").symlink_to(more)
    data = images(folder)
    assert data.classes == ("cat", "cow", "dog")
    assert data[4] == ("cow", 1)
    (more / "back").symlink_to(folder)
    with pytest.raises(errors.InputError, match=r"cow/back leads back to .*train; remove that"):
        images(folder)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda folder: FileDataset(folder / "none"), "there is no .*none"),
        (lambda _: FileDataset([]), "no files"),
        (lambda _: FileDataset("nosuch://bucket"), "nosuch"),
        (lambda folder: FileDataset(folder, endings=[".png"]), "no files that end with .png"),
        (lambda folder: FileDataset([folder, folder / "empty"]), "empty has no files"),
        (lambda folder: FileDataset(f"file://{folder}/empty"), "empty has no files"),
    ],
)
def test_bad_input_is_refused(folder, made, words):
    """Before training, with what to do."""
    (folder / "empty").mkdir()
    with pytest.raises(errors.InputError, match=words):
        made(folder)
