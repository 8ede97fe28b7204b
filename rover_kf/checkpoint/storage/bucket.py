# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One prefix of a bucket, by obstore; the only module that knows it. Every method blocks.

Credentials, endpoint and region come from the process's environment, by the names that the stores'
own tools use (AWS_*, GOOGLE_*, AZURE_*), and credentials from a mounted Secret before that.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import obstore
from obstore import exceptions, store

from rover_kf import errors
from rover_kf.checkpoint.storage import bucket_errors, credentials

PART_BYTES = 8 << 20
"""Of an upload and of a read; several are under way at once."""
_CONCURRENT = 4
_MAX_PARTS = 9_000
"""S3 takes 10,000."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a request may take before it is an error, all in seconds."""

    connect_seconds: float = 5.0
    part_seconds: float = 60.0
    """For one part of a rank's file."""
    small_seconds: float = 10.0
    """For a listing, a manifest, a removal: training may be waiting for what they say."""
    retries: int = 4
    """Of a request that got no answer or a server's error, while its seconds last."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object, as a listing tells of it."""

    size: int
    """Bytes."""
    etag: str
    """What a write changes."""


class Bucket:
    """Objects below a prefix.

    Args:
        url: ``s3://bucket/prefix``, ``gs://bucket/prefix`` or ``az://container/prefix``.
        timeouts: with the store.
        credentials: credentials that go before those of the environment, by their variables' names.

    Raises:
        StorageError: the environment lacks what the store needs.
    """

    def __init__(self, url: str, timeouts: Timeouts, credentials: Mapping[str, str]) -> None:
        self._url, self._conditional = url, True
        with self._storage_errors("cannot be opened"):
            self._parts = _open_store(url, timeouts, timeouts.part_seconds, credentials)
            self._small = _open_store(url, timeouts, timeouts.small_seconds, credentials)

    def write_stream(self, key: str, content: Iterable[memoryview], length: int) -> None:
        """Upload an object from pieces; it appears whole or not at all.

        A few parts are in memory at a time. If the pieces end with an error, the upload is given
        up and the error is raised.

        Args:
            key: below the prefix.
            content: pieces that may be overwritten when the next is asked for.
            length: of all, bytes; the parts' size depends on it.

        Raises:
            StorageError: the store refused or did not answer in time.
        """
        # The client keeps views of what it is given: each piece has to be its own bytes.
        copies = (bytes(piece) for piece in content)
        with self._storage_errors(f"{key} cannot be written"):
            if length <= PART_BYTES:
                obstore.put(self._parts, key, b"".join(copies), use_multipart=False)
                return
            obstore.put(
                self._parts,
                key,
                copies,
                chunk_size=max(PART_BYTES, -(-length // _MAX_PARTS)),
                max_concurrency=_CONCURRENT,
            )

    def create(self, key: str, content: bytes) -> bool:
        """Write a small object; False if there is one of that name already.

        Raises:
            StorageError: the store refused or did not answer in time.
        """
        with self._storage_errors(f"{key} cannot be written"):
            try:
                if self._conditional:
                    obstore.put(self._small, key, content, mode="create")
                    return True
            except exceptions.AlreadyExistsError:
                return False
            except exceptions.BaseError as error:
                if not bucket_errors.is_unsupported(error):
                    raise
                self._conditional = False
            # All that a server without conditional writes leaves: to look first.
            if self.has(key):
                return False
            obstore.put(self._small, key, content, use_multipart=False)
            return True

    def has(self, key: str) -> bool:
        """Whether there is an object of that name.

        Raises:
            StorageError: the store refused or did not answer in time.
        """
        with self._storage_errors(f"{key} cannot be looked for"):
            try:
                # A byte, and not HEAD: where that is refused, no body says why.
                obstore.get_range(self._small, key, start=0, length=1)
            except FileNotFoundError:
                return False
            except exceptions.BaseError as error:
                if not bucket_errors.is_beyond_end(error):
                    raise
            return True

    def read(self, key: str, max_bytes: int) -> bytes:
        """A small object.

        Args:
            key: below the prefix.
            max_bytes: that it may have; of a larger one nothing is read.

        Raises:
            CorruptSnapshot: it is larger.
            StorageError: it is not there, or the store refused or did not answer in time.
        """
        with self._storage_errors(f"{key} cannot be read"):
            return self._read_bounded(key, max_bytes)

    def find(self, key: str, max_bytes: int) -> bytes | None:
        """A small object, as ``read``; None if there is none.

        Raises:
            CorruptSnapshot: it is larger.
            StorageError: the store refused or did not answer in time.
        """
        with self._storage_errors(f"{key} cannot be read"), contextlib.suppress(FileNotFoundError):
            return self._read_bounded(key, max_bytes)
        return None

    def read_range(self, key: str, offset: int, length: int) -> Iterator[memoryview]:
        """A range of an object, a few parts ahead.

        Raises:
            CorruptSnapshot: the object ends before the range does.
            StorageError: it is not there, or the store refused or did not answer in time.
        """
        waiting: collections.deque[Future[memoryview]] = collections.deque()
        with ThreadPoolExecutor(_CONCURRENT, thread_name_prefix="object-read") as pool:
            for begin in range(offset, offset + length, PART_BYTES):
                size = min(PART_BYTES, offset + length - begin)
                waiting.append(pool.submit(self._read_part, key, begin, size))
                if len(waiting) == _CONCURRENT:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def list_objects(self, prefix: str = "") -> Mapping[str, ObjectInfo]:
        """Every object, by its key.

        Args:
            prefix: only those below it; whole names, such as ``step-000000000002-1``.

        Raises:
            StorageError: the store refused or did not answer in time.
        """
        with self._storage_errors(f"{prefix} cannot be listed".lstrip()):
            chunks = obstore.list(self._small, prefix or None, chunk_size=1000)
            return {
                item["path"]: ObjectInfo(item["size"], f"{item['e_tag']} {item['last_modified']}")
                for chunk in chunks
                for item in chunk
            }

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone is no error.

        Raises:
            StorageError: the store refused or did not answer in time.
        """
        with self._storage_errors("cannot be tidied"), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._small, list(keys))

    def _read_bounded(self, key: str, max_bytes: int) -> bytes:
        response = obstore.get(self._small, key)
        if response.meta["size"] > max_bytes:
            raise errors.CorruptSnapshot(f"{self._url}/{key} has more than {max_bytes} bytes")
        return bytes(response.bytes())

    def _read_part(self, key: str, begin: int, size: int) -> memoryview:
        with self._storage_errors(f"{key} cannot be read"):
            try:
                part = memoryview(obstore.get_range(self._parts, key, start=begin, length=size))
            except exceptions.BaseError as error:
                if not bucket_errors.is_beyond_end(error):
                    raise
                part = memoryview(b"")
        if len(part) != size:
            raise errors.CorruptSnapshot(
                f"{self._url}/{key} has {begin + len(part)} bytes or fewer where "
                f"{begin + size} were expected"
            )
        return part

    @contextlib.contextmanager
    def _storage_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as cause:  # a panic of the client is no Exception
            if not _is_client_error(cause):
                raise
            # Not chained: what the client knows of the request must reach no log.
            message = f"{self._url}: {what}: {bucket_errors.explain_store_error(cause)}"
            raise errors.StorageError(message) from None


def _is_client_error(error: BaseException) -> bool:
    """Whether the client refuses. Its panic is no Exception, and a type that cannot be imported."""
    known = (exceptions.BaseError, OSError, ValueError)
    return isinstance(error, known) or type(error).__name__ == "PanicException"


def _open_store(
    url: str, timeouts: Timeouts, seconds: float, keys: Mapping[str, str]
) -> store.ObjectStore:
    config: Any = dict(keys)  # Which keys there are depends on the URL.
    plain = url.startswith("s3://") and credentials.s3_endpoint(os.environ).startswith("http://")
    return store.from_url(
        url,
        config=config,
        client_options={
            "allow_http": plain,
            "connect_timeout": dt.timedelta(seconds=timeouts.connect_seconds),
            "timeout": dt.timedelta(seconds=seconds),
        },
        retry_config={
            "max_retries": timeouts.retries,
            # A request that takes all its time may be tried once more.
            "retry_timeout": dt.timedelta(seconds=seconds),
        },
    )
