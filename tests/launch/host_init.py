"""PID 1 of one fake host: makes its mounts, says ``ready``, reaps orphans, and ends when its starter does.

Runs by itself (``python -I host_init.py PLAN``) inside fresh net, uts, ipc, pid and mount namespaces; see hosts.py.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def main(plan: dict[str, Any]) -> None:
    """``plan``: name, shm_bytes, state (folder of this host), binds (pairs of source and target, parents first)."""
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    own_sysfs(Path(plan["state"]))
    mount("-t", "tmpfs", "-o", f"size={plan['shm_bytes']},mode=1777", "tmpfs", "/dev/shm")
    for source, target in plan["binds"]:
        if Path(source).is_dir():
            Path(target).mkdir(parents=True, exist_ok=True)
        elif not Path(target).exists():
            Path(target).touch()
        mount("--bind", source, target)
    socket.sethostname(plan["name"])
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=end_with_starter, daemon=True).start()
    print("ready", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            signal.sigtimedwait([signal.SIGCHLD], 1.0)


def own_sysfs(state: Path) -> None:
    """A /sys that shows this host's network devices; control groups stay where slurmd looks for them."""
    stash = state / "cgroup"
    stash.mkdir(exist_ok=True)
    mount("--rbind", "/sys/fs/cgroup", str(stash))
    mount("-t", "sysfs", "sysfs", "/sys")
    mount("--rbind", str(stash), "/sys/fs/cgroup")


def end_with_starter() -> None:
    """The kernel ends every process of the host with its PID 1, also when the starter was killed."""
    sys.stdin.buffer.read()
    os._exit(0)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
