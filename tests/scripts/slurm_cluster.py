"""A cluster of SLURM on this machine, of two nodes without GPUs, that any user may start.

It needs the programs of Debian's `slurm-wlm` and `munge`, but neither their services nor root.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATHS = f"{os.environ['PATH']}:/usr/sbin:/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
WAIT = 300
"""Seconds after which a job is taken to hang."""
CONFIG = """
ClusterName=tiny
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=all Nodes=node[1-2] Default=YES State=UP
"""


def missing_programs() -> list[str]:
    """The programs that a cluster needs and this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATHS)]


class Cluster:
    """Started with `start`, ended with `stop`; its folder's path must be short, as of a socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{PATHS}",
            "PYTHONPATH": str(ROOT),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "MASTER_ADDR": "127.0.0.1",  # no machine is called node1
            "OMP_NUM_THREADS": "1",
        }
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Returns when both nodes are idle.

        Raises:
            TimeoutError: they are not within a minute.
        """
        folder, host = self.folder, socket.gethostname().partition(".")[0]
        config = CONFIG.format(host=host, folder=folder, user=getpass.getuser(), ports=_free(3))
        (folder / "slurm.conf").write_text(config)
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o600)
        munge = f"munged --foreground --force --key-file={folder}/key --socket={folder}/munge "
        munge += " ".join(f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed"))
        nodes = [f"slurmd -D -N node{i}" for i in (1, 2)]
        for words in (munge, "slurmctld -D", *nodes):
            with (folder / f"{words.split()[0]}{words[-1]}.log").open("wb") as log:
                self._daemons.append(
                    subprocess.Popen(words.split(), env=self.environment, stdout=log, stderr=log)
                )
            time.sleep(1)
        end = time.monotonic() + 60
        while self.run("sinfo -h -o %t -N").split() != ["idle", "idle"]:
            if time.monotonic() > end:
                raise TimeoutError(f"no two nodes are idle; see the logs in {folder}")
            time.sleep(0.5)

    def stop(self) -> None:
        """Ends the jobs and what was started."""
        self.run("scancel --state=RUNNING")
        self.run("scancel --state=PENDING")
        time.sleep(1)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(30)

    def run(self, words: str) -> str:
        """What a command of SLURM prints."""
        done = subprocess.run(
            words.split(), env=self.environment, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    def submit(self, script: Path, words: list[str], log: Path) -> int:
        """Submits a batch file, with the words for its command, and returns the job's number."""
        command = ["sbatch", "--parsable", "--output", str(log), str(script), *words]
        # Lightning's own port follows from the job's number, which clusters have in common.
        variables = self.environment | {"MASTER_PORT": str(_free(1)[0])}
        done = subprocess.run(
            command, env=variables, cwd=ROOT, check=True, capture_output=True, text=True
        )
        return int(done.stdout)

    def wait(self, job: int) -> int:
        """Waits until a job, or all of an array, has ended, and returns the highest exit code.

        Raises:
            TimeoutError: it has not within `WAIT` seconds.
        """
        end = time.monotonic() + WAIT
        while self.run(f"squeue -h -j {job}").strip():
            if time.monotonic() > end:
                raise TimeoutError(f"job {job} runs after {WAIT} s")
            time.sleep(0.5)
        return max(map(int, re.findall(r" ExitCode=(\d+):", self.run(f"scontrol show job {job}"))))

    def find_task(self, job: int, rank: int) -> int:
        """The process of Python that is one of a job's tasks on this machine."""
        facts = {b"SLURM_JOB_ID=%d" % job, b"SLURM_PROCID=%d" % rank}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes().split(b"\0")
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if facts <= {*environment} and b"-m" in words and b"python" in words[0]:
                return int(process.name)
        raise ProcessLookupError(f"job {job} has no task {rank} here")


def _free(count: int) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    for bound in sockets:
        bound.bind(("127.0.0.1", 0))
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports
