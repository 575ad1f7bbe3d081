"""Runs under launch/supervise, and what they leave."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from runs import MPIRUNS, SOURCE, Run

SUPERVISE = SOURCE / "launch" / "supervise"
ON_HOSTS = SOURCE / "tests" / "bench" / "on_hosts"
MARK = "FAULTS_RUN"  # in the environment of every process of a run
SEGMENTS = ("vader_segment.", "sm_segment.")  # of Open MPI 4 and 5, with HOST.USER.JOB.RANK behind


def jobs_of(process, environment):
    """Open MPI's number of a process's job, as it stands in the names of the memory that ranks share. Open MPI 4 tells it in
    the environment; Open MPI 5 makes it of a hash, so it is read off the names that the process has mapped."""
    spaces = [word[15:] for word in environment if word.startswith(b"PMIX_NAMESPACE=")]
    numbers = {f"{int(space):x}" for space in spaces if space.isdigit()}
    if spaces and not numbers:
        names = re.findall(r"/dev/shm/(\S+)", Path("/proc", process, "maps").read_text())
        numbers = {name.split(".")[-2] for name in names if name.startswith(SEGMENTS)}
    return numbers


class Supervised(Run):
    """A run under launch/supervise, with a folder for temporary files of its own."""

    def __init__(self, task, name, ranks, more="", environment=None, options="--first-wait 0.1 --most-starts 50"):
        super().__init__(task, name, ranks, more, prefix=("later",))
        at = self.command.index("-np")
        self.command = [str(SUPERVISE), *options.split(), *self.command[at:]]
        self.temporary = task.folder / f"{name}.tmp"
        self.temporary.mkdir()
        # In the host's memory if it has such a file system.
        self.memory = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.mark = f"{MARK}={self.output}".encode()
        self.environment = {MARK: str(self.output), "TMPDIR": str(self.temporary), "OCTETRUN_MEMORY_FOLDER": str(self.memory),
                            **(environment or {})}
        self.jobs = set()
        self.start(self.environment)

    def supervisor(self):
        return self.process.pid

    def processes(self):
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path("/proc", entry, "environ").read_bytes().split(b"\0")
                if self.mark in words:
                    found[int(entry)] = Path("/proc", entry, "comm").read_text().strip()
                    self.jobs |= jobs_of(entry, words)
            except OSError:
                continue
        return found

    def launcher(self):
        """Of the start under way; None between two."""
        supervisor = self.supervisor()
        try:
            children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        except OSError:
            return None
        for child in children:
            try:
                words = Path("/proc", child, "cmdline").read_bytes().split(b"\0")
                # Its guard, which outlives it, has its words and not its session.
                if words[0].endswith(b"octet-mpirun") and os.getsid(int(child)) == int(child):
                    return int(child)
            except OSError:
                continue
        return None

    def keepers(self):
        """What watches over mpirun for its launcher, and what keeps the checkpoints in memory when nothing else is left."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
                name = Path("/proc", entry, "comm").read_text().strip()
                variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            watches = self.mark in variables and name == "octet-guard"
            keeps = b"--keep-memory" in words and f"OCTETRUN_MEMORY_FOLDER={self.memory}".encode() in variables
            if watches or keeps:
                found.append(int(entry))
        return found

    def victims(self, target):
        if target == "supervisor":
            return [self.supervisor()]
        if target == "keeper":
            return self.keepers()
        if target == "launcher":
            return [pid for pid in [self.launcher()] if pid]
        processes = self.processes()
        if target == "mpirun":
            return [pid for pid, name in processes.items() if name in MPIRUNS and pid != self.launcher()][-1:]
        trainer = Path(self.task.trainer).name[:15]
        return [pid for pid, name in processes.items() if name == trainer and pid != self.supervisor()]

    def progress(self):
        try:
            return json.loads((self.output / "octet.progress").read_text())
        except (OSError, ValueError):
            return None

    def reached(self):
        told = self.progress()
        return told["step"] if told else 0

    def saves(self):
        return self.output.exists() and any(".tmp-" in p.name and p.name.startswith("checkpoint-")
                                            for p in self.output.iterdir())

    def incidents(self):
        path = self.output / "incidents.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ended(self):
        return self.process.poll() is not None

    def left_behind(self):
        names = super().left_behind()
        if (self.output / "octet.progress").exists():
            names.append("octet.progress")
        names += [str(p) for p in (*self.temporary.glob("ompi.*/pid.*"), *self.temporary.glob("prterun.*"),
                                   *self.temporary.glob("pmix-gds-shmem.*"),
                                   *self.memory.iterdir())]
        return names + [name for name in os.listdir("/dev/shm")
                        if name.startswith(SEGMENTS) and name.split(".")[-2] in self.jobs]

    def kill(self):
        super().kill()
        shutil.rmtree(self.memory, ignore_errors=True)

    def lost_checkpoints(self):
        """Starts that went on from an older checkpoint than one that was reported before."""
        saved, lost = 0, []
        began = None
        for line in self.said().splitlines() + ["***** Running training *****"]:
            if m := re.search(r"(?:checkpoint of step ([\d,]+) saved to|state of step ([\d,]+) is copied to memory)", line):
                saved = max(saved, int((m.group(1) or m.group(2)).replace(",", "")))
            elif m := re.search(r"  resumed +step ([\d,]+)", line):
                began = int(m.group(1).replace(",", ""))
                if began < saved:
                    lost.append(f"went on from step {began} after {saved} was saved")
        if saved and began is None and len(self.incidents()) > 0 and "  resumed " in self.said():
            lost.append("began afresh")
        return lost


class OnHosts(Supervised):
    """The same on two hosts that are network namespaces (tests/bench/on_hosts; root only), half of the ranks on each. There is a
    supervisor as soon as the hosts are up."""

    def __init__(self, task, name, ranks, more="", environment=None, options="--first-wait 0.1 --most-starts 50"):
        if ranks % 2 != 0 or os.getuid() != 0:
            raise SystemExit("two hosts need an even number of ranks, and root")
        self.options, self.supervising = options, 0
        super().__init__(task, name, ranks, more, environment, options)

    def start(self, environment=None):
        starter = self.task.folder / "supervise-on-hosts"
        starter.write_text(f'#!/bin/sh\nexec {SUPERVISE} {self.options} -x {MARK} "$@"\n')
        starter.chmod(0o755)
        program = self.command[self.command.index(self.task.trainer):]
        self.command = [str(ON_HOSTS), "--hosts", "2", "--slots", str(self.ranks // 2), "--rate", "none", "--launcher",
                        str(starter), "--", *program]
        super().start(environment)

    def supervisor(self):
        """0 while there is none."""
        for pid in self.processes() if not self.supervising else ():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0] == self.task.trainer.encode() and words[1] == b"supervise":
                self.supervising = pid
        return self.supervising

    def link(self, state):
        """The second host's becomes `up` or `down`."""
        subprocess.run(["ip", "netns", "exec", f"o{self.process.pid}-2", "ip", "link", "set", "eth0", state], check=True)
