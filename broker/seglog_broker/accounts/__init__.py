"""Accounts made and changed while no broker runs: `seglogd user`, `seglogd init`."""
