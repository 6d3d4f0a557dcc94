"""The job's secret: one random text that every node has. It never travels and never stands in argv, files or logs."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import MutableMapping
from pathlib import Path

from laurel.types import LaurelError

VARIABLE = "LAUREL_CLUSTER_TOKEN"
_SHORTEST = 16


def take_token(environ: MutableMapping[str, str] | None = None) -> str:
    """The token of the environment, removed from it so that the training and its children do not inherit it.

    Raises LaurelError if it is missing or guessable.
    """
    environ = os.environ if environ is None else environ
    token = environ.pop(VARIABLE, "").strip()
    if not token:
        raise LaurelError(
            f"{VARIABLE} is not set: nodes of one job know each other by it. Set the same random text on every node, "
            f"by the platform's secrets or `export {VARIABLE}=$(head -c 32 /dev/urandom | base64)` before the nodes "
            "start; `laurel launch` does this"
        )
    if len(token) < _SHORTEST:
        raise LaurelError(f"{VARIABLE} has {len(token)} characters; use at least {_SHORTEST}, made at random")
    return token


def kept_token(home: Path | None = None) -> str:
    """For clusters by hand: the token of the environment, or of ~/.laurel/cluster_token, made if it is not there."""
    if os.environ.get(VARIABLE):
        return take_token()
    file = (home or Path.home()) / ".laurel" / "cluster_token"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    if file.stat().st_mode & 0o077:
        raise LaurelError(f"{file} may be read by others; run `chmod 600 {file}`, or delete it to make a new one")
    return file.read_text().strip()


def ray_token(token: str) -> str:
    """The token of the job's Ray, 64 hexadecimal digits that follow from the job's."""
    return _sign(token, "ray")


def proof(token: str, role: str, *nonces: str) -> str:
    """What shows that the caller in ``role`` knows the token, for these nonces alone."""
    return _sign(token, "|".join((role, *nonces)))


def _sign(token: str, text: str) -> str:
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()
