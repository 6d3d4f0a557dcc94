"""Runs inside the sandbox: gives up rights for good, then becomes the program. A script of the standard library alone.

``python -I -S confine.py SPEC`` with SPEC a JSON object: ``command`` and ``env`` of the program, ``limits`` (RLIMIT
name to number), ``uid`` (or null: stay, root without its capabilities), ``reads_all`` (whether that user passes closed
folders), ``read`` and ``write`` (paths for Landlock, or null: no Landlock), ``signals`` (whether it may send any) and
``ready``, a file descriptor that gets "ok" right before the program begins.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 8, 22, 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 47, 2
CAP_DAC_READ_SEARCH, CAPABILITY_VERSION = 2, 0x20080522
FILTER = 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture

# Landlock's rights, by the version of its interface that knows them.
FS_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
NET_RIGHTS = {4: 0b11}  # bind and connect of TCP
SCOPES = {6: 0b11}  # abstract unix sockets; signals to processes outside
EXECUTE, READ_FILE, READ_DIR, WRITE_FILE, TRUNCATE = 1 << 0, 1 << 2, 1 << 3, 1 << 1, 1 << 14
OF_A_FILE = EXECUTE | READ_FILE | WRITE_FILE | TRUNCATE

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# System calls that are refused, x86_64 and aarch64 (None: that one does not have it): the network, other processes,
# namespaces and mounts, the kernel, memory that no limit counts, rights of files.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "setpriority": (141, 140),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "acct": (163, 89),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
}
SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
}
CLONE, CLONE3, PRLIMIT = (56, 220), 435, (302, 261)
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*: mount, cgroup, uts, ipc, user, pid, net
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    spec = json.loads(sys.argv[1])
    for name, limit in spec["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    if spec["uid"] is not None:
        become(spec["uid"], reads_all=spec["reads_all"])
    elif os.geteuid() == 0:
        drop_capabilities()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _checked("no_new_privs", libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if spec["read"] is not None:
        landlock(spec["read"], spec["write"])
    if has_seccomp():
        seccomp(signals=spec["signals"])
    os.write(spec["ready"], b"ok")
    os.set_inheritable(spec["ready"], False)
    try:
        os.execve(spec["command"][0], spec["command"], spec["env"])
    except OSError:
        os.write(spec["ready"], b", but no")
        raise


def become(uid: int, *, reads_all: bool) -> None:
    """Another user, without any capability but, if ``reads_all``, that of passing folders that are closed to it."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if reads_all:
        _checked("keep capabilities", libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setresuid(uid, uid, uid)
    if reads_all:
        only = 1 << CAP_DAC_READ_SEARCH
        header, sets = struct.pack("=Ii", CAPABILITY_VERSION, 0), struct.pack("=6I", only, only, only, 0, 0, 0)
        _checked("capabilities", libc.capset(header, sets))
        _checked("capability", libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0))


def drop_capabilities() -> None:
    """Root without what makes it root, from the next program on."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _checked("capabilities", libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0))


def landlock_version() -> int:
    """Of the kernel's interface; 0 if it has none or has it switched off."""
    return int(max(0, libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def has_seccomp() -> bool:
    return platform.machine() in AUDIT_ARCH and os.path.exists("/proc/sys/kernel/seccomp/actions_avail")


def landlock(read: Sequence[str], write: Sequence[str]) -> None:
    """From here on only files under ``read`` and ``write`` can be opened, and no TCP port reached."""
    version = landlock_version()
    files, network, scopes = (
        sum(bits for since, bits in rights.items() if since <= version) for rights in (FS_RIGHTS, NET_RIGHTS, SCOPES)
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", files, network, scopes)[:size]
    ruleset = _checked("landlock", libc.syscall(LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0))
    for paths, rights in ((read, EXECUTE | READ_FILE | READ_DIR), (write, files)):
        for path in paths:
            if not os.path.exists(path):
                continue
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights & files if os.path.isdir(path) else rights & files & OF_A_FILE
            rule = struct.pack("=Qi", allowed, folder)
            _checked(f"landlock for {path}", libc.syscall(LANDLOCK_ADD, ruleset, 1, rule, 0))
            os.close(folder)
    _checked("landlock", libc.syscall(LANDLOCK_RESTRICT, ruleset, 0))
    os.close(ruleset)


def seccomp(*, signals: bool) -> None:
    """From here on the calls of REFUSED fail with EPERM, and those of SIGNALS unless ``signals`` are allowed."""
    column = list(AUDIT_ARCH).index(platform.machine())
    refuse = 0x00050000 | errno.EPERM
    program = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, AUDIT_ARCH[platform.machine()]),
        (RETURN, 0, 0, KILL),  # a 32-bit call, whose numbers are others
        (LOAD, 0, 0, 0),
    ]
    if platform.machine() == "x86_64":
        program += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, refuse)]  # x32
    for numbers in (REFUSED if signals else REFUSED | SIGNALS).values():
        if (number := numbers[column]) is not None:
            program += [(EQUAL, 0, 1, number), (RETURN, 0, 0, refuse)]
    program += [
        (EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, 0x00050000 | errno.ENOSYS),  # its flags lie in memory, out of sight: libc then uses clone
        (EQUAL, 0, 4, CLONE[column]),
        (LOAD, 0, 0, 16),
        (ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, ALLOW),
        (EQUAL, 0, 3, PRLIMIT[column]),
        (LOAD, 0, 0, 16),
        (EQUAL, 1, 0, 0),  # its own limits, which it can only lower
        (RETURN, 0, 0, refuse),
        (RETURN, 0, 0, ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    filled = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(filled))
    _checked("seccomp", libc.prctl(PR_SET_SECCOMP, FILTER, header, 0, 0))


def _checked(what: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    main()
