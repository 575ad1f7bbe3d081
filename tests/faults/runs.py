"""What the programs of this folder share: a small task, runs of it, and what they leave."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
LAUNCHER = SOURCE / "launch" / "mpirun"
SCRATCH = ("/dev/shm/", "/tmp/", "/var/tmp/")
MPIRUNS = {"mpirun", "mpiexec", "orterun", "prterun", "mpiexec.hydra"}


def wait_until(condition, seconds, step=0.02):
    """The first true value of condition(), or its last one after so many seconds."""
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(step)
    return value


class Task:
    """Data of so many rows, a model of two small blocks of a width (a multiple of 32) and a configuration. A step ends with
    its epoch, so that long ones want many rows or a wide model."""

    def __init__(self, trainer, folder, rows=240, width=32):
        self.trainer = str(Path(trainer).resolve())
        self.folder = Path(folder)
        made = self.folder / "made"
        subprocess.run([self.trainer, "quickstart", str(made), "--rows", str(rows), "--held-out", "12"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        path = made / "model" / "config.json"
        config = json.loads(path.read_text())
        config.update(hidden_size=width, intermediate_size=width * 3 // 2, num_hidden_layers=2,
                      num_attention_heads=width // 16, num_key_value_heads=width // 32, head_dim=16)
        path.write_text(json.dumps(config))
        self.config = self.folder / "config.yaml"
        self.config.write_text(
            f"model_name_or_path: {made}/model\ntrain_from_scratch: true\ntemplate: chatml\n"
            f"dataset: {made}/data/train.jsonl\ncutoff_len: 128\nper_device_train_batch_size: 4\n"
            "global_batch_size: 16\nlearning_rate: 1.0e-4\nlr_scheduler_type: constant\nlogging_steps: 1\n"
            f"max_steps: 100000\nsave_steps: 100000\ndevice: {os.environ.get('DEVICE', 'cpu')}\n")
        self.seconds_per_sample = {}

    def batch_for(self, ranks, seconds):
        """Samples that take about so many seconds a step on so many ranks, measured."""
        if ranks not in self.seconds_per_sample:
            run = Run(self, f"measure-{ranks}", ranks, "global_batch_size=960 max_steps=3 save_strategy=no")
            run.finish(180)
            rows = run.rows()
            if len(rows) < 3:
                raise SystemExit(f"the run that measures speed failed:\n{run.said()}")
            self.seconds_per_sample[ranks] = rows[-1]["seconds_per_step"] / 960
        unit = 4 * max(1, ranks)
        return max(unit, round(seconds / self.seconds_per_sample[ranks] / unit) * unit)


class Run:
    """A run of the task: under launch/mpirun, or alone with 0 ranks. In a session of its own. `temporary`: a folder that is
    its TMPDIR, by which all of its processes are known too."""

    def __init__(self, task, name, ranks, more="", environment=None, prefix=(), temporary=None):
        self.task, self.ranks, self.temporary = task, ranks, temporary
        self.output = task.folder / name
        self.text = task.folder / f"{name}.screen"
        launch = [str(LAUNCHER), "-np", str(ranks)] if ranks else []
        self.command = [*prefix, *launch, task.trainer, str(task.config), f"output_dir={self.output}", *more.split()]
        self.process = None
        self.started = time.monotonic()
        if prefix != ("later",):
            self.start(environment)

    def start(self, environment=None):
        own = {"TMPDIR": str(self.temporary)} if self.temporary else {}
        with open(self.text, "ab") as screen:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=screen, stderr=screen,
                                            start_new_session=True, env={**os.environ, **own, **(environment or {})})

    def said(self):
        return self.text.read_text(errors="replace") if self.text.exists() else ""

    def rows(self):
        """The rows of the log that are steps."""
        path = self.output / "trainer_log.jsonl"
        rows = []
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if "loss" in row:
                    rows.append(row)
        return rows

    def checkpoints(self):
        if not self.output.exists():
            return []
        found = [re.fullmatch(r"checkpoint-(\d+)", p.name) for p in self.output.iterdir()]
        return sorted(int(m.group(1)) for m in found if m)

    def holds(self, step):
        checked = subprocess.run([self.task.trainer, "inspect", str(self.output / f"checkpoint-{step}"), "--verify"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return checked.returncode == 0

    def processes(self):
        """Numbers of all processes that were started with this run's folder: launcher, mpirun, ranks. With a TMPDIR of its
        own also those that only inherited it: what the launcher leaves in the background, daemons of MPI."""
        found = {}
        mark = f"output_dir={self.output}".encode()
        inherited = f"TMPDIR={self.temporary}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                words = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")
                if mark not in words and self.temporary:
                    words = Path("/proc", entry, "environ").read_bytes().split(b"\0")
                if mark in words or (self.temporary and inherited in words):
                    found[int(entry)] = Path("/proc", entry, "comm").read_text().strip()
            except OSError:
                continue
        return found

    def mpirun(self):
        return next(pid for pid, name in self.processes().items() if name in MPIRUNS and pid != self.process.pid)

    def rank_processes(self):
        return sorted(pid for pid, name in self.processes().items() if name == Path(self.task.trainer).name[:15])

    def left_behind(self):
        """Names of files that no run leaves when it has ended."""
        if not self.output.exists():
            return []
        return [p.name for p in self.output.iterdir() if ".tmp-" in p.name or p.name == "octet.lock"]

    def opened(self):
        """Files in the folders for temporary files and shared memory that a process of this run has mapped or open."""
        found = set()
        for pid in self.processes():
            try:
                names = [line.split(None, 5)[5] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
                         if line.count("/")]
                names += [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            except (OSError, IndexError):
                continue
            found.update(name for name in names if name.startswith(SCRATCH) and not name.endswith(" (deleted)"))
        return {name for name in found if not Path(name).is_relative_to(self.task.folder)}

    def finish(self, seconds):
        """The exit code; None when it did not end in time, after which it is killed."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self.process is not None:
            self.process.wait()


def scratch_folder(name):
    return tempfile.TemporaryDirectory(prefix=f"octet-{name}-")
