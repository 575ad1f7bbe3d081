"""What the programs that kill ranks share: the keys of their runs, one that nobody disturbs, and moments to strike at."""

import subprocess
import time

from runs import Task, wait_until
from supervised import Supervised

KEPT = 3  # checkpoints
STEPS, EVERY = 24, 4
KEYS = f"max_steps={STEPS} save_steps={EVERY} save_total_limit={KEPT} global_batch_size=32"


class Bench:
    """The task, and for each number of ranks a run that nobody disturbs."""

    def __init__(self, trainer, folder, keys=KEYS):
        self.task, self.keys = Task(trainer, folder), keys
        self.calm, self.start_seconds = {}, {}

    def reference(self, ranks):
        if ranks not in self.calm:
            run = Supervised(self.task, f"calm-{ranks}", ranks, self.keys)
            try:
                wait_until(run.launcher, 10, 0.005)
                began = time.monotonic()
                wait_until(run.progress, 60, 0.005)
                self.start_seconds[ranks] = time.monotonic() - began
                if run.finish(240) != 0:
                    raise SystemExit(f"the undisturbed run failed:\n{run.said()}")
            finally:
                run.kill()
            self.calm[ranks] = run.output
        return self.calm[ranks]

    def differs(self, run):
        """How the end of a run differs from the undisturbed one's; empty where it does not."""
        calm = self.reference(run.ranks)
        steps = [row["current_steps"] for row in run.rows()]
        if steps != list(range(1, STEPS + 1)):
            return f"steps in the log: {steps}"
        last = f"checkpoint-{STEPS}"
        if subprocess.run([self.task.trainer, "inspect", str(run.output / last), "--diff", str(calm / last)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            return "the last checkpoint has other bits"
        name = "model.safetensors"
        if (run.output / name).read_bytes() != (calm / name).read_bytes():
            return "the final model has other bits"
        return ""


def await_phase(bench, run, phase, draw, launcher_before):
    """Waits until the run is in that phase, at a random instant of it. False when it ended first."""
    part = bench.start_seconds[run.ranks]
    if phase in ("start", "load"):
        if not wait_until(lambda: run.ended() or run.launcher() not in (None, launcher_before), 30, 0.002):
            return False
        time.sleep(draw.uniform(0, 0.5 * part) if phase == "start" else draw.uniform(0.5 * part, 1.1 * part))
    elif phase == "step":
        if not wait_until(run.progress, 60, 0.01):
            return False
        until = min(run.reached() + draw.randint(1, EVERY), STEPS - 1)
        wait_until(lambda: run.ended() or run.reached() >= until, 60, 0.002)
        time.sleep(draw.uniform(0, 0.05))
    elif phase == "save":
        wait_until(lambda: run.ended() or run.saves(), 60 if "save_steps=1000" not in run.command else 0.2, 0.001)
        time.sleep(draw.uniform(0, 0.03))
    elif phase in ("verify", "prune"):
        # The checkpoint has its final name and is verified. If it is valid, the oldest checkpoint is then removed.
        there, least = run.checkpoints(), KEPT + 1 if phase == "prune" else 0
        wait_until(lambda: run.ended() or (now := run.checkpoints()) != there and len(now) >= least and not run.saves(),
                   10 if "save_steps=1000" not in run.command else 0.2, 0.001)
        time.sleep(draw.uniform(0, 0.02))
    else:
        wait_until(lambda: run.ended() or STEPS in run.checkpoints(), 60, 0.001)
        time.sleep(draw.uniform(0, 0.1))
    return not run.ended()
