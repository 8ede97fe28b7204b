# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL of its own in a folder; ends with the block."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pwd
import shutil
import subprocess
from collections.abc import Iterator

ACCOUNT = "postgres"
"""PostgreSQL refuses to run as root; its Debian package makes this account."""


def programs() -> pathlib.Path | None:
    """The folder of initdb and pg_ctl: on the path, or where Debian puts them."""
    found = shutil.which("initdb")
    places = [pathlib.Path(found).resolve().parent] if found else []
    places += sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "pg_ctl").exists()), None)


@contextlib.contextmanager
def postgres(folder: pathlib.Path) -> Iterator[str]:
    """Serve on a Unix socket in the folder; yields the SQLAlchemy URL of an empty database.

    Args:
        folder: short enough for a socket's address, and to be reached by any account.
    """
    place = programs()
    assert place is not None, "no PostgreSQL; python3 tests/cluster/testcluster/packages.py"
    data, log = folder / "data", folder / "log"
    user = _owner(folder)

    def run(program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(place / program), *arguments],
            user=user,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        told = log.read_text() if log.exists() else ""
        assert done.returncode == 0, f"{program}: {done.stderr}{told}"

    run("initdb", "-D", str(data), "-U", "rover", "-A", "trust", "-N", "-E", "UTF8")
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    control = ("-D", str(data), "-w", "-t", "90")
    run("pg_ctl", *control, "-l", str(log), "-o", options, "start")
    try:
        yield f"postgresql+psycopg://rover@/postgres?host={folder}"
    finally:
        run("pg_ctl", *control, "-m", "immediate", "stop")


def _owner(folder: pathlib.Path) -> int | None:
    """The account that runs it; None if it is our own."""
    if os.getuid() != 0:
        return None
    entry = pwd.getpwnam(ACCOUNT)
    os.chown(folder, entry.pw_uid, entry.pw_gid)
    return entry.pw_uid
