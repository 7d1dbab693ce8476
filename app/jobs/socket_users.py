"""The users of TCP sockets on this computer, as Linux lists them in /proc/net/tcp and /proc/net/tcp6."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

_TABLES: Final = (("/proc/net/tcp", 4), ("/proc/net/tcp6", 16))
"""Each table, and the size of its addresses [bytes]."""
_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"


def can_identify_users() -> bool:
    """Return whether this system lists the user of each socket."""
    return sys.platform == "linux" and os.access("/proc/net/tcp", os.R_OK)


def find_client_user(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """Return the user id of the process at the client's end of a connection, or None if it is not on this computer.

    Args:
        client: Address and port of the client's end.
        server: Address and port of the server's end.
    """
    for table, width in _TABLES:
        with suppress(OSError, ValueError):
            ends = [_format_end(client, width), _format_end(server, width)]
            for local, remote, state, user in _read_sockets(table):
                if [local, remote] == ends and state == _ESTABLISHED:
                    return user
    return None


def find_listening_users(port: int) -> set[int]:
    """Return the user ids of the processes that listen on a port, on any address."""
    users = set[int]()
    for table, _ in _TABLES:
        with suppress(OSError):
            sockets = _read_sockets(table)
            users |= {user for local, _, state, user in sockets if state == _LISTEN and local.endswith(f":{port:04X}")}
    return users


def _read_sockets(table: str) -> Iterator[tuple[str, str, str, int]]:
    """Yield local end, remote end, state and user id of each socket that a process has open (its inode is not 0)."""
    for line in Path(table).read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] != "0":
            yield fields[1], fields[2], fields[3], int(fields[7])


def _format_end(end: tuple[str, int], width: int) -> str:
    """Format an address and port as in a table.

    Raises:
        ValueError: If the table does not list such addresses.
    """
    address: IPv4Address | IPv6Address = ip_address(end[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if isinstance(address, IPv4Address) and width == 16:
        address = IPv6Address(f"::ffff:{address}")
    if len(address.packed) != width:
        raise ValueError(f"{address} is not in this table")
    words = [int.from_bytes(address.packed[start : start + 4], sys.byteorder) for start in range(0, width, 4)]
    return f"{''.join(f'{word:08X}' for word in words)}:{end[1]:04X}"
