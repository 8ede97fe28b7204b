# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Folders that any framework has written, kept in memory and on storage: no torch needed.

::

    checkpointer = rover_kf.DirectoryCheckpointer()
    shutil.rmtree("/dev/shm/begin", ignore_errors=True)  # of a process before this one in the pod
    start = checkpointer.restore("/dev/shm/begin")    # 0: nothing was saved, and no folder is made
    ...
    engine.save_checkpoint("/dev/shm/state")          # DeepSpeed, TensorFlow, JAX
    checkpointer.save(step, "/dev/shm/state")

A save reads the files once, at memory speed where they are in memory, and needs the folder no more.
Outside rover-kf (no ROVER_HOME) the same lines do nothing but say so once.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import mmap
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping

from rover_kf import errors
from rover_kf.api.checkpoints import RejectedState
from rover_kf.api.states import State
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import (
    metrics as format_metrics,
)
from rover_kf.checkpoint.format import (
    plain_data,
    snapshot,
    tensor_layout,
)
from rover_kf.checkpoint.format.snapshot import STATE_KEY, Entry, Snapshot
from rover_kf.checkpoint.format.tensor_layout import TensorLayout
from rover_kf.system import process_end
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.directory import folder_scan as folders
from rover_kf.trainer.directory.folder_scan import FolderListing
from rover_kf.trainer.restore_client import PATIENCE_SECONDS, RestoreClient, open_slot
from rover_kf.trainer.settings import InactiveNotice, TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.staging.reentrancy import ReentrancyGuard
from rover_kf.trainer.step_counter import checked_step, step_counter_of
from rover_kf.trainer.step_reporter import StepReporter


@contextlib.contextmanager
def staged_folder(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield an empty folder next to ``root``, which is to be created; remove it at the end.

    A process may be killed in every restore, and each would leave a whole state, mostly in memory.
    So abandoned folders are removed, too.

    Raises:
        OSError: the file system refused.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{root.name}-rover-"
    for left in root.parent.glob(f"{glob.escape(prefix)}*"):
        _remove_if_abandoned(left)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root.parent) as made:
        path = pathlib.Path(made)
        with _open_folder(path) as descriptor:
            # The kernel drops it with its process. Where folders have no locks nothing is removed.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield path


def _remove_if_abandoned(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError), _open_folder(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open_folder(path: pathlib.Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_PREFIX = "folder/"
"""In front of a file's path, in the snapshot's names."""


class DirectoryCheckpointer:
    """Saves folders of files to memory and puts them back after whatever happened.

    Args:
        replicated: whether every rank saves the same files: then they restore in a world of any
            size, and on storage they are written once. Else each rank's folder is its own, and the
            world keeps its size.
        settings: of the process; read from the environment if not given.

    Raises:
        InputError: a variable of the environment is wrong.
    """

    def __init__(
        self, *, replicated: bool = False, settings: TrainerSettings | None = None
    ) -> None:
        self._settings, self._replicated = settings or trainer_settings.read(), replicated
        home = self._settings.shared_dir
        self._sidecar = SidecarClient(home) if home else None
        self._reporter = StepReporter(self._settings, self._sidecar) if self._sidecar else None
        self._inactive, self._steps = InactiveNotice(), step_counter_of(self._settings)
        self._session, self._guard = object(), ReentrancyGuard()
        self.restored_from = "none"
        """Where restore found its files: ``memory``, ``peer``, ``storage`` or ``none``."""
        self.restored_state: State | None = None
        if self._reporter is not None:
            process_end.register(self.close)

    def save(
        self,
        step: int,
        folder: str | os.PathLike[str],
        *,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Take a folder's files into memory as one step; every rank must save the step.

        Args:
            step: its number, from 1 on; never below one that was saved or restored.
            folder: nobody writes to it meanwhile.
            metrics: what was measured of this state, such as ``{"accuracy": 0.9}``; rank 0's go to
                the checkpoint on storage, where ``checkpoint.keep-best`` reads them. One that is
                not finite counts as not measured.

        Raises:
            InputError: there is no such folder, or no file in it, a metric is no number, or the
                step is below 1 or goes back.
            UnsupportedState: it has links that lead out of it, or what is neither file nor folder.
            CheckpointError: a file changed while it was read, another process or another
                checkpointer saves as this rank, or a signal handler calls it in the middle of a
                save: set a flag there, and save after the step.
            ArenaTooSmall: the files do not fit; the message has the size to set.
            SidecarUnavailable: the arena has to grow and the sidecar does not answer.
        """
        told, root = format_metrics.to_metadata(metrics), folders.require_path(folder)
        if self._sidecar is None or self._reporter is None:
            self._inactive.warn_once()
            return
        begun = time.perf_counter()
        step = checked_step(step, self._steps.last)
        self._steps.claim_save(self._session)
        self._steps.writer_check.check_save()
        state = self._steps.next_state(step)
        try:
            with self._guard.held():
                seal = self._stage(state, root, folders.scan(root), told)
        except OSError as cause:
            raise errors.CheckpointError(
                f"step {step} is not saved: {root} cannot be read to its end ({cause}); nobody may "
                "write or remove files meanwhile"
            ) from cause
        self._steps.writer_check.record_seal(seal)
        self._steps.record_saved(state)
        self._reporter.report_seal(seal, time.perf_counter() - begun)

    def restore(
        self, folder: str | os.PathLike[str], *, refused: tuple[RejectedState, ...] = ()
    ) -> int:
        """Put back the newest files that all ranks have in common; every rank must call it.

        Args:
            folder: to be made; there whole or not at all. What a process before this one was given
                there has to be removed before.
            refused: states (``restored_state``) that this program cannot resume from: an older one
                is requested. Only in a world of one process.

        Returns:
            The step that was saved; 0, and no folder, if there is nothing to restore.

        Raises:
            InputError: something is there already, a volume is mounted there, or no path is given.
            SidecarUnavailable: the process runs under rover-kf and its sidecar does not answer.
            CheckpointError: there is a state that this world cannot take, or no folder's; it cannot
                be written; steps were saved since the process asked first, or by another process;
                or another checkpointer of this one has restored.
        """
        named = folders.require_path(folder)
        if self._sidecar is None:
            self._inactive.warn_once()
            return 0
        root = folders.resolve_target(named)
        self._steps.claim_restore(self._session)
        self._steps.begin_restore()
        self._steps.writer_check.check()
        reply = RestoreClient(self._settings, self._sidecar).request_slot(refused=refused)
        self._steps.record_restored(reply)
        self.restored_state = reply.state
        if reply.state is None:
            return 0
        with open_slot(reply) as (found, buffer):
            state = plain_data.decode(json.loads(found.metadata[STATE_KEY]), lambda _: None)
            try:
                with staged_folder(root) as staged:
                    made = staged / root.name
                    made.mkdir()
                    write_files(folders.from_plain(state), found, buffer, made)
                    made.rename(root)
            except OSError as cause:
                raise errors.CheckpointError(
                    f"step {reply.step} cannot be put into {root}: {cause}; name a folder that can "
                    f"be made, where {reply.snapshot_bytes} bytes are free"
                ) from cause
        self.restored_from = reply.source
        return reply.state.step

    def wait(self, step: int, level: str = "durable", timeout: float = 600.0) -> bool:
        """Wait until a step (or a newer one) is safe.

        Args:
            step: that was saved.
            level: ``memory``, ``replica`` (in another pod's memory) or ``durable`` (on storage).
            timeout: seconds.

        Returns:
            Whether it is; the reason why not is logged.

        Raises:
            InputError: an unknown level.
            SidecarUnavailable: the sidecar does not answer.
        """
        if self._sidecar is None:
            self._inactive.warn_once()
            return False
        state = self._steps.state_of(step)
        return self._sidecar.wait(state, level, timeout=timeout, patience=PATIENCE_SECONDS)

    def close(self) -> None:
        """Report what is left; safe to call twice."""
        process_end.unregister(self.close)
        self._steps.release(self._session)
        if self._reporter is not None:
            self._reporter.close()

    def _stage(
        self,
        state: State,
        root: pathlib.Path,
        listing: FolderListing,
        metric_metadata: Mapping[str, str],
    ) -> Seal:
        """Copy the files into a slot and seal it as that state."""
        files = {_PREFIX + file.path: file for file in listing.files}
        metadata = {
            STATE_KEY: json.dumps(plain_data.encode({"folder": listing.to_plain()})),
            tensor_layout.LAYOUT_KEY: TensorLayout(
                frozenset(() if self._replicated else files)
            ).to_text(),
            **metric_metadata,
        }
        entries = (Entry(name, "U8", (file.size,), 1) for name, file in files.items())
        layout = snapshot.plan(entries, metadata)
        head = snapshot.header(layout, metadata)
        assert head is not None  # noqa: S101 - a new layout has room for its own header
        with self._arena(layout.length).fill() as filling:
            os.pwrite(filling.descriptor, head, 0)
            for place in layout.tensors:
                os.lseek(filling.descriptor, place.begin, os.SEEK_SET)
                folders.read_into(root, files[place.entry.name], filling.descriptor)
            return filling.seal(
                state=state,
                length=layout.length,
                rank=self._settings.rank,
                world_size=self._settings.world_size,
                replicated=self._replicated,
            )

    def _arena(self, length: int) -> Arena:
        assert self._sidecar is not None  # noqa: S101 - no save gets here without one
        rank = self._settings.local_rank
        reply = self._sidecar.request_arena(rank, length, patience=PATIENCE_SECONDS)
        return Arena(pathlib.Path(reply.directory))


def write_files(
    listing: FolderListing, header: Snapshot, buffer: mmap.mmap, root: pathlib.Path
) -> None:
    """Write a snapshot's files into the empty folder ``root``, as its state lists them.

    Raises:
        OSError: the file system refused.
    """
    for path in listing.folders:
        (root / path).mkdir()
    with memoryview(buffer) as view:
        for file in listing.files:
            place = header.tensors[_PREFIX + file.path]
            with (root / file.path).open("xb") as target:
                target.write(view[place.begin : place.end])
            (root / file.path).chmod(file.mode)
    # Last, so that nothing is written through one.
    for path, target_path in listing.links:
        (root / path).symlink_to(target_path)
    # What is in them is there: they may be shut, the inner ones first.
    for path, mode in reversed(list(zip(listing.folders, listing.modes, strict=False))):
        (root / path).chmod(mode)
