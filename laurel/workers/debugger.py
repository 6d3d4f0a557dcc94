"""Processes that wait for a debugger, as Ray's own tables know them. Needs a connection, no dashboard."""

from __future__ import annotations

from dataclasses import dataclass

import ray


@dataclass(frozen=True)
class Paused:
    """A process with threads that stopped at a breakpoint or an exception. ``driver``: the training itself."""

    ip: str
    port: int
    pid: int
    threads: int
    driver: bool

    def __str__(self) -> str:
        who = "the driver" if self.driver else "worker"
        return f"{who} (pid {self.pid}) is paused: attach a debugger to {self.ip}:{self.port}"


def paused() -> list[Paused]:
    """Every process of the cluster that waits for a debugger of the DAP kind (not the legacy one)."""
    from ray._private.state import state  # the public state API asks the dashboard, which may not run
    from ray.core.generated import common_pb2, gcs_pb2

    if not ray.is_initialized():
        return []
    found = []
    for row in state._connect_and_get_accessor().get_worker_table():
        worker = gcs_pb2.WorkerTableData.FromString(row)  # type: ignore[attr-defined]
        if worker.is_alive and worker.debugger_port and worker.num_paused_threads:
            driver = worker.worker_type == common_pb2.DRIVER  # type: ignore[attr-defined]
            ip = worker.worker_address.ip_address
            found.append(Paused(ip, worker.debugger_port, worker.pid, worker.num_paused_threads, driver))
    return found
