# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders of files through the memory and through storage, against real sidecar processes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from rover_kf import DirectoryCheckpointer, errors
from rover_kf.api.checkpoints import RejectedState
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.export import export
from rover_kf.checkpoint_tools.locate import locate
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.directory import folder_scan as folders
from tests.support.pods import checkpoint_pod
from tests.support.states import identities

ROOT = pathlib.Path(__file__).parents[4]


def _checkpointer(
    pod: checkpoint_pod.Pod, *, replicated: bool = False, **world: int
) -> DirectoryCheckpointer:
    settings = trainer_settings.read(pod.environment(**world))
    return DirectoryCheckpointer(replicated=replicated, settings=settings)


def _written(folder: pathlib.Path, seed: int = 1) -> pathlib.Path:
    """As frameworks leave it: files in folders, empty ones, a program, links inside, odd names."""
    (folder / "global_step7" / "zero").mkdir(parents=True)
    (folder / "nothing here").mkdir()
    (folder / "nothing here").chmod(0o700)
    (folder / "latest").write_text("global_step7")
    (folder / "global_step7" / "zero" / "0.pt").write_bytes(bytes([seed]) * 5_000_001)
    (folder / "global_step7" / "mp_rank_00.pt").write_bytes(bytes(range(256)) * 401)
    (folder / "global_step7" / "übrig\n['x']").write_bytes(b"")
    (folder / "recover.sh").write_text("#!/bin/sh\n")
    (folder / "recover.sh").chmod(0o755)
    (folder / "shut" / "inside").mkdir(parents=True)
    (folder / "shut" / "inside" / "state").write_bytes(b"x")
    (folder / "newest").symlink_to("global_step7")
    (folder / "global_step7" / "up").symlink_to("../latest")
    (folder / "shut" / "inside").chmod(0o500)
    (folder / "shut").chmod(0o555)
    return folder


def _content(folder: pathlib.Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = path.readlink()
        elif path.is_dir():
            found[name] = ("folder", path.stat().st_mode & 0o777)
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def test_a_killed_process_without_torch_has_its_files_again(tmp_path):
    """Every byte, name, permission, link and empty folder; the folder itself may be gone, and
    Python has nothing installed."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "import rover_kf\n"
        "rover_kf.DirectoryCheckpointer().save(7, sys.argv[2])\n"
        "assert 'torch' not in sys.modules\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        written = _written(tmp_path / "written")
        expected = _content(written)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, str(ROOT), str(written)],
            env=pod.environment(),
            timeout=60,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        written.rename(tmp_path / "gone")
        second = _checkpointer(pod, round_=2)
        assert second.restore(tmp_path / "a" / "restored") == 7
        assert second.restored_from == "memory"
        assert _content(tmp_path / "a" / "restored") == expected
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["restored"]
        print(f"{len(expected)} files, folders and links came back")


def test_the_lines_of_the_page_outlive_a_kill_after_the_other(tmp_path):
    """Two ranks of a pod, whose processes find what those before were given; the lines are those
    that docs/frameworks.md shows."""
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (lines,) = re.findall(
        r"^```python\n(checkpointer = rover_kf.DirectoryC.*?)^```", page, re.MULTILINE | re.DOTALL
    )
    begin, _, step = lines.replace("/dev/shm", str(tmp_path)).partition("...\n")
    code = (
        "import os, pathlib, shutil, signal, types\n"
        "import rover_kf\n"
        "def save_checkpoint(folder):\n"
        "    os.makedirs(folder, exist_ok=True)\n"
        "    pathlib.Path(folder, 'weights').write_text(f'{step}')\n"
        "engine = types.SimpleNamespace(save_checkpoint=save_checkpoint)\n"
        f"{begin}"
        "assert not start or pathlib.Path(own, 'begin/weights').read_text() == f'{start}'\n"
        "step = start + 1\n"
        f"{step}"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with checkpoint_pod.pods(tmp_path / "pods", 1) as (pod,):
        for round_ in range(1, 5):
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env=os.environ
                    | pod.environment(rank=rank, world_size=2, round_=round_)
                    | {"LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT)},
                )
                for rank in range(2)
            ]
            assert [rank.wait(timeout=60) for rank in ranks] == [-signal.SIGKILL] * 2


def test_who_is_killed_in_a_restore_leaves_nothing_for_good(tmp_path):
    """As for memory, which what is restored takes, too: the next one begins with the room."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "import rover_kf\n"
        "from rover_kf.trainer.directory import checkpointer as directory\n"
        "write_files = directory.write_files\n"
        "def stopped(*words):\n"
        "    write_files(*words)\n"
        "    print('written', flush=True)\n"
        "    sys.stdin.read()\n"
        "directory.write_files = stopped\n"
        "rover_kf.DirectoryCheckpointer().restore(sys.argv[2])\n"
    )
    begin = tmp_path / "pod" / "begin"
    with checkpoint_pod.pods(tmp_path / "pods", 1) as (pod,):
        _checkpointer(pod).save(3, _written(tmp_path / "written"))
        for round_ in (2, 3, 4):
            with subprocess.Popen(
                [sys.executable, "-I", "-c", code, str(ROOT), str(begin)],
                env=os.environ | pod.environment(round_=round_),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == "written\n"
                assert len(list(begin.parent.iterdir())) == 1
                process.kill()
        assert _checkpointer(pod, round_=5).restore(begin) == 3
        assert list(begin.parent.iterdir()) == [begin]
        assert _content(begin) == _content(tmp_path / "written")


def test_a_signal_handler_that_saves_in_a_save_is_told_at_once(tmp_path, monkeypatch):
    """It would wait for the slot that its own thread fills; the interrupted save is made."""
    refused: list[str] = []
    take = folders.read_into

    def interrupted(*words):
        if not refused:
            signal.raise_signal(signal.SIGUSR1)
        take(*words)

    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        checkpointer, written = _checkpointer(pod), _written(tmp_path / "written")
        checkpointer.save(1, written)

        def handler(*_):
            with pytest.raises(errors.CheckpointError, match="set a flag there") as told:
                checkpointer.save(3, written)
            refused.append(str(told.value))

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            monkeypatch.setattr(folders, "read_into", interrupted)
            checkpointer.save(2, written)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(refused) == 1
        assert _checkpointer(pod, round_=2).restore(tmp_path / "begin") == 2


def test_what_was_saved_since_is_not_taken_back_by_an_older_answer(tmp_path):
    """The round's answer is the step that the process began with."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        _checkpointer(pod).save(1, _written(tmp_path / "written"))
        second = _checkpointer(pod, round_=2)
        assert [second.restore(tmp_path / name) for name in ("a", "b")] == [1, 1]
        second.save(2, tmp_path / "written")
        with pytest.raises(errors.InputError, match="step 1 after step 2"):
            second.save(1, tmp_path / "written")
        with pytest.raises(errors.CheckpointError, match="steps were saved since"):
            second.restore(tmp_path / "c")
        assert not (tmp_path / "c").exists()


def test_each_ranks_own_files_come_back_from_storage(tmp_path):
    """All pods and their memory are lost; the same ranks get the same files from storage, where
    rank 0's metrics stand as well."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path / "old", 2, storage=storage) as pods:
        for rank, pod in enumerate(pods):
            first = _checkpointer(pod, rank=rank, world_size=2)
            measured = {"accuracy": 0.5 + rank, "loss": float("nan")}
            first.save(3, _written(tmp_path / f"written-{rank}", seed=rank), metrics=measured)
            first.close()
        assert first.wait(3, timeout=60)
    with checkpoint_pod.pods(tmp_path / "new", 2, storage=storage) as pods:
        again = [_checkpointer(p, rank=r, world_size=2, round_=2) for r, p in enumerate(pods)]
        restored = [tmp_path / f"restored-{rank}" for rank in range(2)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            steps = pool.map(DirectoryCheckpointer.restore, again, restored)
            assert list(steps) == [3, 3]
        assert [it.restored_from for it in again] == ["storage", "storage"]
    for rank in range(2):
        assert _content(restored[rank]) == _content(tmp_path / f"written-{rank}")
        out = tmp_path / f"exported-{rank}"
        place = locate(str(storage / "demo"))
        assert place.storage.load(place.checkpoint()).metrics == {"accuracy": 0.5}
        state = open_state(place.storage, place.checkpoint(), rank)
        with pytest.raises(errors.InputError, match="folder or safetensors is"):
            export(state, "torch", out)
        export(state, "folder", out)
        assert _content(out) == _content(restored[rank])
        with pytest.raises(errors.InputError, match="it stays"):
            export(state, "folder", out, force=True)


@pytest.mark.parametrize("replicated", [True, False])
def test_files_that_are_the_same_everywhere_serve_any_world(tmp_path, replicated):
    """Saved by two, restored by one; it is refused files that were each rank's own."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        written, restored = _written(tmp_path / "written"), tmp_path / "restored"
        for rank, pod in enumerate(pods):
            first = _checkpointer(pod, replicated=replicated, rank=rank, world_size=2)
            first.save(1, written)
            first.close()
        alone = _checkpointer(pods[0], round_=2)
        if replicated:
            assert alone.restore(restored) == 1
            assert _content(restored) == _content(written)
        else:
            with pytest.raises(
                errors.CheckpointError, match="saved by a world of 2, each rank its"
            ):
                alone.restore(restored)
            assert not restored.exists()


def test_what_could_not_be_put_back_is_refused(tmp_path):
    """Links out, absolute ones, pipes, sockets, no files, no folder: named, with what to do; and
    nothing is sealed, while the step before stays."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        checkpointer = _checkpointer(pod)
        checkpointer.save(1, _written(tmp_path / "good"))
        bad = tmp_path / "bad"
        bad.mkdir()
        with pytest.raises(errors.InputError, match="no file in it; save after"):
            checkpointer.save(2, bad)
        with pytest.raises(errors.InputError, match="is no folder"):
            checkpointer.save(2, bad / "missing")
        (bad / "file").write_text("x")
        (bad / "round").symlink_to("about")
        (bad / "about").symlink_to("round")
        for target in ("../good/latest", "/etc/hostname", "sub/../../good", str(bad / "file")):
            (bad / "link").symlink_to(target)
            with pytest.raises(
                errors.UnsupportedState, match=r"out of the folder.*remove the link"
            ):
                checkpointer.save(2, bad)
            (bad / "link").unlink()
        os.mkfifo(bad / "pipe")
        with pytest.raises(errors.UnsupportedState, match=r"bad/pipe is a socket, a pipe"):
            checkpointer.save(2, bad)
        (bad / "pipe").unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(bad / "socket"))
            with pytest.raises(errors.UnsupportedState, match=r"bad/socket is a socket"):
                checkpointer.save(2, bad)
        with pytest.raises(errors.InputError, match="is there already"):
            checkpointer.restore(bad)
        assert _checkpointer(pod, round_=2).restore(tmp_path / "restored") == 1


def test_a_file_that_changes_meanwhile_is_no_snapshot(tmp_path):
    """Its size was listed; it is shorter when read: an error, and the step before stays."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        checkpointer = _checkpointer(pod)
        written = _written(tmp_path / "written")
        checkpointer.save(1, written)
        listed = folders.scan(written)
        os.truncate(written / "latest", 3)
        with pytest.raises(
            errors.CheckpointError, match=r"latest changed while it was being saved"
        ):
            checkpointer._stage(identities.state(2), written, listed, {})
        assert _checkpointer(pod, round_=2).restore(tmp_path / "restored") == 1


@pytest.mark.parametrize(
    ("files", "links"),
    [
        (["../out"], []),
        (["/etc/passwd"], []),
        (["a//b"], []),
        (["in/file"], [["in", "elsewhere"]]),
    ],
)
def test_a_forged_list_leads_nowhere(files, links):
    """Names in a snapshot are not trusted either."""
    tree = {"folder": {"files": [(name, 0o644) for name in files], "folders": [], "links": links}}
    with pytest.raises(errors.CorruptSnapshot, match="leads out of it"):
        folders.from_plain(json.loads(json.dumps(tree)))


def test_a_list_without_the_modes_of_folders_is_read(tmp_path):
    """As it was written before there were any: folders have what the process gives them."""
    looked = folders.scan(_written(tmp_path / "written"))
    tree = json.loads(json.dumps({"folder": looked.to_plain()}))
    assert folders.from_plain(tree).modes == looked.modes
    del tree["folder"]["modes"]
    found = folders.from_plain(tree)
    assert (found.folders, found.modes) == (looked.folders, ())


def test_no_path_is_not_the_working_directory(tmp_path, monkeypatch):
    """An empty variable, say: neither is it saved nor is anything put there, under rover-kf or
    not."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    outside = DirectoryCheckpointer(settings=trainer_settings.read({}))
    for call in (lambda: outside.save(1, ""), lambda: outside.restore("")):
        with pytest.raises(errors.InputError, match=r"no path.*the framework.*'\.'"):
            call()


@pytest.fixture
def small_volume(tmp_path):
    """A file system of its own, which has room for little."""
    if os.geteuid() != 0:
        assert not os.environ.get("CI"), "a file system of its own is needed: mount"
        pytest.skip("mounting takes root")
    folder = tmp_path / "volume"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_folder_that_cannot_be_made_is_told_so_where_it_is_named(tmp_path, small_volume):
    """The root of a volume is refused before anything was saved, not after the crash; a link to an
    empty folder is followed; a volume that is too small is named, and nothing is left in it."""
    with checkpoint_pod.pods(tmp_path / "pods", 1, checkpoint_every=1) as (pod,):
        first = _checkpointer(pod)
        with pytest.raises(errors.InputError, match="name a folder in it"):
            first.restore(small_volume)
        assert first.restore(small_volume / "begin") == 0
        written = _written(tmp_path / "written")
        first.save(1, written)
        first.close()
        with pytest.raises(errors.CheckpointError, match=f"{small_volume}/begin.*bytes are free"):
            _checkpointer(pod, round_=2).restore(small_volume / "begin")
        assert list(small_volume.iterdir()) == []
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to("empty")
        assert _checkpointer(pod, round_=3).restore(tmp_path / "link") == 1
    assert _content(tmp_path / "empty") == _content(written)


def test_a_state_of_another_script_is_told_apart(tmp_path):
    """What is no folder is not put anywhere."""
    with pytest.raises(errors.CheckpointError, match=r"has \['model'\] and no folder"):
        folders.from_plain({"model": {}})
    outside = DirectoryCheckpointer(settings=trainer_settings.read({}))
    outside.save(1, tmp_path)
    assert outside.restore(tmp_path / "x") == 0
    assert not outside.wait(1)


def test_a_step_that_the_program_refuses_is_gone_back_behind(tmp_path):
    """First the newest in memory, then what storage has; each is told as a Warning, and is no more
    offered. Where nothing is left it begins with nothing."""
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "storage") as (pod,):
        saver, root = _checkpointer(pod), tmp_path / "written"
        root.mkdir()
        for step in (10, 20, 30):
            (root / "state").write_text(f"state {step}")
            saver.save(step, root)
            assert step > 10 or saver.wait(step)
        saver.close()
        reader, refused = _checkpointer(pod, round_=2), ()
        for step, source in ((30, "memory"), (20, "memory"), (10, "storage")):
            back = tmp_path / f"back-{step}"
            assert reader.restore(back, refused=refused) == step
            assert (reader.restored_from, (back / "state").read_text()) == (source, f"state {step}")
            refused += (RejectedState(reader.restored_state, f"file {step} is gone"),)
        assert reader.restore(tmp_path / "nothing", refused=refused) == 0
        assert not (tmp_path / "nothing").exists()


def test_a_second_training_in_a_process_is_refused(tmp_path):
    """It would go on from the first one's files."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        first, second = _checkpointer(pod), _checkpointer(pod)
        assert first.restore(tmp_path / "first") == 0
        first.save(3, _written(tmp_path / "state"))
        with pytest.raises(errors.CheckpointError, match="another Checkpointer"):
            second.restore(tmp_path / "second")
        with pytest.raises(errors.InputError, match="step 1 after step 3"):
            second.save(1, tmp_path / "state")
        first.close()
        second.close()
