"""The options of a replica on a machine of its own."""

from octavo.config.definition import Group, Options, option


class ReplicaOptions(Options, frozen=True):
    """Where `octavo replica` listens, and its name."""

    listen: str = option(
        "127.0.0.1:7070",
        Group.REPLICA,
        "address and port for front ends; 0.0.0.0:7070: all addresses, port 0: any free port",
        min_length=1,
    )
    replica_name: str | None = option(
        None,
        Group.REPLICA,
        "name of this replica in metrics, logs and commands (none: the host name)",
        min_length=1,
        max_length=64,
    )
    supervisor_timeout: float | None = option(
        None,
        Group.REPLICA,
        "end after this many seconds without a supervisor that reads NOTIFY_SOCKET (none: never)",
        gt=0,
    )
