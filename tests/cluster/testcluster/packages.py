# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of the system that the cluster and other tests need, and their Debian packages.

`python3 tests/cluster/testcluster/packages.py` (standard library only, so that it runs before any
virtual environment) installs what is missing; `missing()` says what that would be.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

PROGRAMS = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "gcc": "gcc",
    "/usr/include/stdio.h": "libc6-dev",
    "pg_ctlcluster": "postgresql",
    # promtool, too
    "prometheus": "prometheus",
    # for the report and the live view
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    # a Kafka broker, for tests of streams
    "java": "openjdk-17-jre-headless",
    "mvn": "maven",
}
"""Program (or a file that must be there) to Debian package."""


def missing() -> dict[str, str]:
    """Programs that are not there, with their packages."""
    places = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return {
        name: package
        for name, package in PROGRAMS.items()
        if not (pathlib.Path(name).exists() if "/" in name else shutil.which(name, path=places))
    }


def install() -> None:
    """Install the packages of whatever is missing; nothing is asked of apt if all is there."""
    wanted = sorted(set(missing().values()))
    if not wanted:
        return
    print("installing", *wanted)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=True, env=environment)
    # Services of these packages would take the ports of ours; policy-rc.d is Debian's way to say
    # no.
    policy = pathlib.Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted],
            check=True,
            env=environment,
        )
    finally:
        if ours:
            policy.unlink()


def main() -> int:
    """Install; say what is still missing."""
    if missing() and os.geteuid() != 0:
        print(f"not root: cannot install {sorted(set(missing().values()))}", file=sys.stderr)
        return 1
    install()
    for name, package in missing().items():
        print(f"{name} is still missing after installing {package}", file=sys.stderr)
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main())
