"""What `mutants` and `generate` share: places in sources, one changed file compiled and linked, test programs started."""

import atexit
import fnmatch
import functools
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent


class Trouble(Exception):
    """An error that the user can correct; its message says how."""


def spaced(text):
    """Returns a regular expression for a text that ignores where the text has blanks and line ends."""
    return r"\s*".join(re.escape(part) for part in re.findall(r"\w+|[^\w\s]", text))


@functools.lru_cache(maxsize=None)
def blanked(text):
    """Returns a C++ text in which comments and literals are blanks, so that braces can be counted. Positions stay."""
    pattern = r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def bodies(text, name):
    """Returns the ranges of the definitions of a function: from the line of its name to the brace that ends it."""
    plain, found = blanked(text), []
    for head in re.finditer(rf"^[^\n#;={{}}]*(?<![\w.>]){re.escape(name)}\s*(?=\()", plain, re.M):
        if re.match(r"\s*(?:return|else|throw)\b", head.group()):
            continue
        at, depth = head.end(), 0
        while at < len(plain):
            if plain[at] in "([":
                depth += 1
            elif plain[at] in ")]":
                depth -= 1
            elif plain[at] == "{" and depth == 0:
                break
            elif (plain[at] == ";" and depth == 0) or depth < 0:
                at = len(plain)
            at += 1
        if at >= len(plain):
            continue
        level = 0
        for end in range(at, len(plain)):
            level += {"{": 1, "}": -1}.get(plain[end], 0)
            if level == 0:
                found.append((head.start(), end + 1))
                break
    return found


@functools.lru_cache(maxsize=None)
def tests_of(program):
    """Returns the suites of a test program as GoogleTest names them, or None if there is no such program."""
    folder = SOURCE / "tests" / program.removesuffix("_tests").removesuffix("_mpi")
    if not program.endswith("_tests") or not folder.is_dir():
        return None
    text = "".join(path.read_text() for path in sorted(folder.glob("*.cc")))
    names = set(re.findall(r"^TEST(?:_F)?\(\s*(\w+)", text, re.M))
    names |= {f"{suite}/0" for suite in re.findall(r"^TYPED_TEST\(\s*(\w+)", text, re.M)}
    return names | {"/".join(pair) for pair in re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)", text)}


def complaint_about_run(run):
    """Returns why an entry `PROGRAM:FILTER` starts no test, or an empty text. Filters choose suites, so that they rarely change."""
    program, _, filters = run.partition(":")
    suites = tests_of(program)
    if suites is None:
        return f"{run}: there is no test program {program}"
    for part in filters.split("-")[0].split(":") if filters else []:
        if not any(fnmatch.fnmatchcase(suite, part.split(".")[0]) for suite in suites):
            return f"{run}: no suite of tests/{program.removesuffix('_tests')} is called {part.split('.')[0]}"
    return ""


class Build:
    """A build folder with compiled tests. Nothing in it is changed: changed objects and programs lie in a folder of their own."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        database = self.folder / "compile_commands.json"
        if not database.exists():
            raise Trouble(f"{self.folder} is no build folder; run launch/test --fast first, or name another one with --build")
        entries = json.loads(database.read_text())
        self.commands = {Path(e["file"]): shlex.split(e["command"]) for e in entries}
        # A source that CMake compiles together with others: the file that includes all of them.
        self.units = {Path(source): unit for unit in self.commands if "Unity" in unit.parts and unit.exists()
                      for source in re.findall(r'^#include "(.*)"', unit.read_text(), re.M)}
        self.links = {}
        self.work = Path(tempfile.mkdtemp(prefix="mutants.", dir=self.folder))
        atexit.register(shutil.rmtree, self.work, ignore_errors=True)
        self.environment = dict(os.environ, OMP_WAIT_POLICY="passive", OMPI_ALLOW_RUN_AS_ROOT="1",
                                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def make(self, targets, jobs):
        """Builds test programs without a mutant."""
        done = subprocess.run(["ninja", "-C", self.folder, f"-j{jobs}", *sorted(targets)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"the tests do not build without a mutant:\n{done.stdout[-3000:]}")
        for target in targets:
            lines = subprocess.run(["ninja", "-C", self.folder, "-t", "commands", target], check=True, capture_output=True,
                                   text=True).stdout.splitlines()
            words = next(line for line in reversed(lines) if f"-o bin/{target} " in line)
            link = next(part for part in words.split(" && ") if f"-o bin/{target} " in part)
            self.links[target] = shlex.split(link)

    def compile(self, source, text, name):
        """Compiles `text` in place of the file `source`. Returns (object file, what the compiler said if it failed)."""
        unit = self.units.get(source, source)
        if unit not in self.commands:
            raise Trouble(f"{source}: this build does not compile the file")
        copy, out = self.work / f"{name}.cc", self.work / f"{name}.o"
        copy.write_text(text)
        if unit != source:
            whole = self.work / f"{name}-unit.cc"
            whole.write_text(unit.read_text().replace(f'"{source}"', f'"{copy}"'))
            copy = whole
        words = list(self.commands[unit])
        words[words.index("-o") + 1] = str(out)
        words[words.index("-c") + 1] = str(copy)
        words += ["-iquote", str(source.parent), "-w"]
        done = subprocess.run([w for w in words if w != "-Werror"], cwd=self.folder, capture_output=True, text=True)
        return out, "" if done.returncode == 0 else done.stderr or "?"

    def link(self, target, obj, source, name):
        """Links a program with a changed object. The linker takes no member of an archive whose symbols it has already."""
        out = self.work / f"{name}-{target}"
        words = list(self.links[target])
        own = words.index("-o")
        original = next((w for w in words if w.endswith(f"/{source.relative_to(SOURCE / 'src')}.o")), None)
        words[own + 1] = str(out)
        if original:
            words[words.index(original)] = str(obj)
        else:
            words.insert(own, str(obj))
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"{target} does not link with {obj.name}:\n{done.stderr[-2000:]}")
        return out

    def run(self, run, program, limit, over=(), **environment):
        """Runs `PROGRAM:FILTER` with a program in its place. `over`: pairs (file, place that it covers for this process).
        Returns why the tests failed, or an empty text."""
        target, _, tests = run.partition(":")
        command = [str(program or self.folder / "bin" / target), "--gtest_color=no", "--gtest_fail_fast"]
        if tests:
            command.append(f"--gtest_filter={tests}")
        if target.endswith("_mpi_tests"):
            command = [str(SOURCE / "launch/mpirun"), "-np", "2", *command]
        for file, place in over:
            mount = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            command = ["sh", "-c", mount, "sh", str(file), str(place), *command]
        if over:
            command = ["unshare", "-m", *([] if os.geteuid() == 0 else ["-r"]), "--", *command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace", cwd=self.folder, start_new_session=True,
                                   env=dict(self.environment, **environment))
        try:
            output = process.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"no end within {limit:.0f} s"
        begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
        if not begun:
            raise Trouble(f"{run} started no test (exit code {process.returncode}):\n{output[-1500:]}")
        failed = re.findall(r"^\[  FAILED  \] (\w[\w/.]*)", output, re.M)
        if process.returncode == 0:
            return ""
        return failed[0] if failed else f"{begun[-1]} (exit code {process.returncode})"


def in_parallel(work, things, workers):
    """Calls work(thing) for all things by several threads. Raises the first error after all threads have ended."""
    waiting, errors = queue.SimpleQueue(), []
    for thing in things:
        waiting.put(thing)

    def loop():
        while not errors:
            try:
                work(waiting.get_nowait())
            except queue.Empty:
                return
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=loop) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
