"""SkyPilot as it is, on the Slurm of these tests: its Slurm cloud goes to the login node by ssh and gets nodes there.

What it fetches from the network on a new node (uv, conda, its own wheels) it finds in files here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from launch.environments import SKYPILOT, WHEELS, python310
from launch.hosts import BIN, Done, HostProcess
from launch.slurm import LOGIN, SlurmCluster

CLOUD = "ci"
_SSHD = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
MaxSessions 200
MaxStartups 150:30:200
"""
# The installer of uv, which SkyPilot pipes into a shell, copies uv from here.
_CURL = """\
#!/bin/sh
case "$*" in
    *astral.sh/uv/install.sh*) echo 'mkdir -p "$UV_INSTALL_DIR" && cp {uv} "$UV_INSTALL_DIR/uv"';;
    *) echo "curl: not in these tests: $*" >&2; exit 7;;
esac
"""
_LOGIN_SHELL = """\
export PATH={bin}:{python310}:$PATH
export UV_OFFLINE=1 UV_NO_INDEX=1 UV_FIND_LINKS={wheels} UV_PYTHON_DOWNLOADS=never
# >>> conda initialize >>>
"""
_CONFIG = f"""\
slurm:
  provision_timeout: 60
  cluster_configs:
    {CLOUD}:
      tmpdir: /mnt
"""


class SkyPilot:
    """Made on a Slurm cluster with ``/run/sshd`` among its shared folders. Its server ends with ``stop``, or with the
    hosts."""

    def __init__(self, slurm: SlurmCluster):
        self.slurm, self.hosts = slurm, slurm.hosts
        home, folder = self.hosts.home(LOGIN), self.hosts.folder / "skypilot"
        tools = folder / "bin"
        tools.mkdir(parents=True)
        for name, text in (("curl", _CURL.format(uv=SKYPILOT / "uv")), ("conda", "#!/bin/sh\nexit 0\n")):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        words = {"bin": tools, "python310": python310(), "wheels": WHEELS.resolve()}
        for name in (".bashrc", ".profile"):
            (home / name).write_text(_LOGIN_SHELL.format(**words))
        self._let_in(home, folder)
        (home / ".sky").mkdir()
        (home / ".sky" / "config.yaml").write_text(_CONFIG)
        self._env = {"PATH": f"{BIN}:{SKYPILOT}:{self.hosts.environment(LOGIN)['PATH']}"}
        self._env |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "SHELL": "/bin/bash"}

    def exec(self, *words: str | Path, timeout: float = 60, check: bool = False, cwd: Path) -> Done:
        """A command on the login node, with ``sky`` on PATH."""
        return self.hosts.exec(LOGIN, words, timeout=timeout, env=self._env, check=check, cwd=cwd)

    def popen(self, *words: str | Path, cwd: Path) -> HostProcess:
        return self.hosts.popen(LOGIN, words, env=self._env, cwd=cwd)

    def stop(self) -> None:
        """Its server and all its processes: a killed one leaves children that hold its ports."""
        self.exec("sky", "api", "stop", timeout=90, cwd=self.hosts.folder)

    def _let_in(self, home: Path, folder: Path) -> None:
        """ssh to every node with a key of this test."""
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700)
        for key in (folder / "host_key", ssh / "id_ed25519"):
            self.slurm.login(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        shutil.copy(ssh / "id_ed25519.pub", ssh / "authorized_keys")
        config = folder / "sshd_config"
        config.write_text(_SSHD.format(folder=folder, home=home))
        for name in (LOGIN, *self.slurm.nodes):
            self.hosts.exec(name, ["/usr/sbin/sshd", "-f", config], check=True)
        (home / ".slurm").mkdir()
        address = self.hosts.address(LOGIN)
        lines = f"Host {CLOUD}\n    HostName {address}\n    User root\n    IdentityFile {ssh / 'id_ed25519'}\n"
        (home / ".slurm" / "config").write_text(lines)
