"""Which quota counts for a client, in Kafka's order of precedence, and who shares its bucket."""

from ipaddress import ip_address
from typing import NamedTuple

from seglog_protocol.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    IP,
    NAME_CHARACTERS_MAX,
    REQUEST_PERCENTAGE,
    USER,
    ClientQuotas,
)


class Limit(NamedTuple):
    """The quota that counts for a client, and the names of the bucket in which it is counted."""

    value: float
    key: str
    user: str
    """Empty where all users share the bucket."""
    client_id: str
    """Empty where all client ids share it; of connections their address. No longer than that of one with a quota."""


class QuotaTable:
    """The quotas that are in force; each change of them raises ``epoch``."""

    def __init__(self, quotas: ClientQuotas) -> None:
        self.epoch = 0
        self.adopt(quotas)

    def adopt(self, quotas: ClientQuotas) -> None:
        """Have these in force, and no others."""
        self.epoch += 1
        self._quotas = quotas
        keys = {key for values in quotas.values() for key in values}
        self.has_any = bool(keys - {CONNECTION_CREATION_RATE})
        """True if any user or client id has one."""
        self.has_times = REQUEST_PERCENTAGE in keys
        """True if any of them has one of the loop's time."""
        self._addresses = {
            address and str(ip_address(address)): values[CONNECTION_CREATION_RATE]
            for ((kind, address), *_), values in quotas.items()
            if kind == IP
        }

    def limit(self, key: str, user: str, client_id: str | None) -> Limit | None:
        """The quota of a kind that counts for a client, the most specific one; None if there is none.

        A client without an id has those of users alone.
        """
        by_user = (((USER, user),), ((USER, None),), ())
        by_id = (((CLIENT_ID, client_id),), ((CLIENT_ID, None),), ()) if client_id else ((),)
        for whose in by_user:
            for ids in by_id:
                found = self._quotas.get((*ids, *whose), {}).get(key)
                if found is not None:
                    shown = (client_id or "")[:NAME_CHARACTERS_MAX] if ids else ""  # a client may send 32 KiB
                    return Limit(found, key, user if whose else "", shown)
        return None

    def limit_of_connections(self, address: str) -> Limit | None:
        """The connections a second that may come from an address; None if there is no limit."""
        found = self._addresses.get(address, self._addresses.get(None)) if self._addresses else None
        return None if found is None else Limit(found, CONNECTION_CREATION_RATE, "", address)
