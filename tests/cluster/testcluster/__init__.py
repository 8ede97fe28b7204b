# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes cluster on one Linux machine, with no container registry and no Docker daemon.

Each node is a network, mount and process-id namespace of its own (172.30.0.11, .12, …) on one
bridge, with its own containerd, kubelet and kube-proxy; the control plane has a network namespace
of its own (172.30.0.10), so that a fault of any node leaves the API server alone. Killing a node's
first process is a power failure: the kernel ends everything in it, its mounts and memory-backed
volumes are gone.

Used by tests/cluster/conftest.py and by hand: `python -m testcluster up|down|status|build|images`.
Needs root, Go and the Debian packages of packages.py. Everything it builds or writes lies in the
cache (settings.py), never in the checkout.
"""
