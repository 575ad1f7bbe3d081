"""Terminals to start a run in and to press keys at: those of tmux, or pseudo-terminals of this program's own. Each holds an
interactive shell, of which the run is the foreground job, and writes what the screen gets to a file."""

import fcntl
import os
import shutil
import struct
import subprocess
import termios
import threading

SHELL = ["bash", "--norc", "--noprofile", "-i"]
LINES, COLUMNS = 50, 150
KEYS = {"C-c": b"\x03"}


def environment(**more):
    """No history is written to the user's own, and a tmux around this program is not asked to nest."""
    kept = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
    return {**kept, "HISTFILE": "/dev/null", **more}


class Tmux:
    """A server of its own, whose socket lies in the folder."""

    @staticmethod
    def found():
        return shutil.which("tmux") is not None

    def __init__(self, folder):
        # tmux refuses to start where the locale is not one of UTF-8.
        self.environment = environment(TMUX_TMPDIR=str(folder), LC_ALL="C.UTF-8")
        self.name = f"octet-{os.getpid()}"
        self.says = subprocess.run(["tmux", "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        # The server ends with its last session.
        self.call("-f", "/dev/null", "new-session", "-d", "-s", "first", "sleep 1000000")

    def call(self, *words, check=True):
        subprocess.run(["tmux", "-L", self.name, *words], check=check, env=self.environment,
                       stderr=None if check else subprocess.DEVNULL)

    def open(self, name, screen):
        return Window(self, name, screen)

    def close(self):
        self.call("kill-server", check=False)


class Window:
    def __init__(self, tmux, name, screen):
        self.tmux, self.name = tmux, name
        tmux.call("new-session", "-d", "-s", name, "-x", str(COLUMNS), "-y", str(LINES), *SHELL)
        tmux.call("pipe-pane", "-t", name, "-O", f"cat >>{screen}")

    def type(self, line):
        self.tmux.call("send-keys", "-t", self.name, line, "Enter")

    def press(self, key):
        self.tmux.call("send-keys", "-t", self.name, key)

    def close(self):
        self.tmux.call("kill-session", "-t", self.name, check=False)


class Pty:
    """The same by the kernel's pseudo-terminals alone: a key is its byte, which the kernel makes a signal of."""

    says = "pseudo-terminals of this program"

    def __init__(self, folder):
        pass

    def open(self, name, screen):
        return Line(screen)

    def close(self):
        pass


class Line:
    def __init__(self, screen):
        self.end, other = os.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        # setsid makes it the controlling terminal of a new session.
        self.shell = subprocess.Popen(["setsid", "--ctty", *SHELL], stdin=other, stdout=other, stderr=other,
                                      env=environment(TERM="xterm"))
        os.close(other)
        self.reader = threading.Thread(target=self.read, args=(screen,), daemon=True)
        self.reader.start()

    def read(self, screen):
        with open(screen, "ab", buffering=0) as file:
            try:
                while data := os.read(self.end, 65536):
                    file.write(data)
            except OSError:  # nobody has the other end any more
                pass

    def type(self, line):
        os.write(self.end, f"{line}\r".encode())

    def press(self, key):
        os.write(self.end, KEYS[key])

    def close(self):
        self.shell.kill()
        self.shell.wait()
        self.reader.join(5)
        os.close(self.end)
