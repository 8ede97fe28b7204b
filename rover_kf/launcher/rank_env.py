# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The variables of one training process: torchrun's, and ours; pure."""

from __future__ import annotations

import dataclasses
import ipaddress
import pathlib
from collections.abc import Mapping

from rover_kf.api import names
from rover_kf.api.membership import Identity, Round


@dataclasses.dataclass(frozen=True, slots=True)
class RankEnv:
    """One training process of this pod."""

    local_rank: int
    rank: int
    error_file: str
    stack_file: str
    """Where it writes its stacks when it is asked to (stacks.py)."""
    variables: dict[str, str]


RES_OPTIONS = "RES_OPTIONS"
"""resolv.conf(5): options of the C library's resolver."""
RESOLVER_OPTIONS = "timeout:1 attempts:3"
"""A name server that does not answer costs a restart 3 s a name, not 10: torch asks for the names
of its peers' addresses to put them into messages. A request that got lost costs 1 s, not 5."""


def rank_envs(
    current: Round,
    identity: Identity,
    *,
    role: str,
    shared_dir: pathlib.Path,
    inherited: Mapping[str, str],
) -> tuple[RankEnv, ...]:
    """What each of this pod's processes gets on top of the inherited environment."""
    group = [member.pod for member in current.members].index(identity.pod)
    processes = current.members[group].processes
    offset = current.rank_offset(identity.pod)
    shared = {
        "MASTER_ADDR": current.store_host,
        "MASTER_PORT": str(current.store_port),
        "WORLD_SIZE": str(current.world_size),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(len(current.members)),
        "ROLE_NAME": role,
        "ROLE_WORLD_SIZE": str(current.world_size),
        # Also the prefix of the keys in the store: the same on every rank of a round.
        "TORCHELASTIC_RESTART_COUNT": str(current.number - 1),
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": identity.job,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        names.ENV_ROUND: str(current.number),
        names.ENV_GENERATION: str(current.generation),
    }
    shared |= network_variables(identity.address, inherited)
    return tuple(
        _rank_env(shared, local_rank, offset + local_rank, shared_dir / names.RUN_DIR)
        for local_rank in range(processes)
    )


def network_variables(address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a process needs to reach others from that address of this pod."""
    found = {} if RES_OPTIONS in inherited else {RES_OPTIONS: RESOLVER_OPTIONS}
    if _loopback(address) and "GLOO_SOCKET_IFNAME" not in inherited:
        found["GLOO_SOCKET_IFNAME"] = "lo"
    return found


def _rank_env(shared: dict[str, str], local_rank: int, rank: int, folder: pathlib.Path) -> RankEnv:
    error_file = str(folder / f"error-{local_rank}.json")
    return RankEnv(
        local_rank,
        rank,
        error_file,
        str(folder / f"stacks-{local_rank}.txt"),
        {
            **shared,
            "RANK": str(rank),
            "ROLE_RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "TORCHELASTIC_ERROR_FILE": str(folder / f"torch-error-{local_rank}.json"),
            names.ENV_ERROR_FILE: error_file,
        },
    )


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
