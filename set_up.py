"""Fill the virtual environment of the Makefile, and show how far that is.

    set_up.py check DIR [--named]      say it when DIR was made with another Python than this one
    set_up.py install DIR EXTRAS WHAT  make DIR if it is missing, and install the checkout with EXTRAS into it

pip's own output goes to DIR/install.log. It is printed when pip fails.

Any Python 3 parses this file, so that one that is too old can say so. Nothing is imported that pip would have to bring.
"""

import os
import subprocess
import sys
import time

OLDEST = (3, 11)
OUTPUT_SECONDS = 10  # between two lines where the output is no terminal
TURN_SECONDS = 0.2
MEGABYTE = 1_000_000


class Progress:
    """The progress of one run of pip, read from the lines that it prints."""

    def __init__(self):
        self.collected = 0
        self.to_install = 0
        self._newest = ""

    def feed(self, line):
        """Take a line of pip's output."""
        words = line.split()
        if words[:1] == ["Collecting"]:
            self.collected += 1
            self._newest = words[1]
        elif words[:1] == ["Downloading"] and len(words) > 2:
            self._newest = "%s %s" % (words[1].split("-")[0], " ".join(words[2:]))
        elif line.startswith("Building wheel for"):
            self._newest = "building %s" % words[3]
        elif line.startswith("Installing collected packages:"):
            self.to_install = line.count(",") + 1

    def text(self, installed):
        """Return the state in a few words; `installed` is the number of packages that pip has installed by now."""
        if self.to_install:
            return "installing: %d of %d packages" % (min(installed, self.to_install), self.to_install)
        return "fetching: %d packages so far; %s" % (self.collected, self._newest)


class Screen:
    """The output of the progress: one line that is rewritten on a terminal, or a line every ten seconds in a file."""

    def __init__(self, stream, now):
        self._stream = stream
        self._rewrites = stream.isatty()
        self._begun = self._written = now

    def show(self, text, now):
        if not self._rewrites and now - self._written < OUTPUT_SECONDS:
            return
        self._written = now
        line = "  %d:%02d  %s" % (*divmod(int(now - self._begun), 60), text)
        self._stream.write("\r\033[K" + line[: columns() - 1] if self._rewrites else line + "\n")
        self._stream.flush()

    def close(self):
        if self._rewrites:
            self._stream.write("\r\033[K")


def columns():
    try:
        return os.get_terminal_size().columns
    except OSError:
        return 80


def megabytes(directory):
    """Return what the files of a directory take on the disk, each counted once."""
    sizes = {}
    for path, _, names in os.walk(directory):
        for name in names:
            status = os.lstat(os.path.join(path, name))
            sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values()) // MEGABYTE


def packages_in(directory):
    """Return how many packages an environment has."""
    count = 0
    for path, names, _ in os.walk(os.path.join(directory, "lib")):
        if os.path.basename(path) == "site-packages":
            count += sum(name.endswith(".dist-info") for name in names)
            names.clear()
    return count


def this_python():
    return "%s %s" % (sys.version.split()[0], sys.base_prefix)


def python_of(directory):
    """Return the version and the prefix of an environment's Python, or '' if its Python does not start."""
    ask = "import sys; print(sys.version.split()[0], sys.base_prefix)"
    try:
        return subprocess.check_output([os.path.join(directory, "bin", "python"), "-c", ask]).decode().strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def difference(directory, present, wanted):
    """Return what to say of an environment whose Python is `present` where `wanted` is called for; '' if they agree."""
    if present == wanted:
        return ""
    had = "Python %s of %s" % tuple(present.split(" ", 1)) if present else "a Python that does not start"
    version, prefix = wanted.split(" ", 1)
    return "%s was made with %s, and not with Python %s of %s" % (directory, had, version, prefix)


def check(directory, named):
    """Return an exit code. An environment of another Python is kept, unless the user names a Python (`named`)."""
    if sys.version_info < OLDEST:
        sys.stderr.write(
            "Flakelog needs Python 3.11 or later; %s is %s. Try: make PYTHON=python3.11\n"
            % (sys.executable, sys.version.split()[0])
        )
        return 1
    if not os.path.exists(directory):
        return 0
    text = difference(directory, python_of(directory), this_python())
    if not text:
        return 0
    if named:
        remedy = "To make it anew: make clean, then this command again. To keep it: leave out PYTHON="
        sys.stderr.write("%s.\n%s.\n" % (text, remedy))
        return 1
    sys.stderr.write("note: %s; it is kept. To make it anew: make clean\n" % text)
    return 0


def starts(command):
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def install(directory, extras, purpose):
    """Install the checkout; return an exit code."""
    started = time.monotonic()
    screen = Screen(sys.stdout, started)
    sys.stdout.write("setting up %s for %s: once, a few minutes\n" % (directory, purpose))
    sys.stdout.flush()
    pip = [os.path.join(directory, "bin", "python"), "-m", "pip"]
    if not starts(pip + ["--version"]):
        # Run venv as a program, because Debian's then names the package to install if it is incomplete.
        code = subprocess.call([sys.executable, "-m", "venv", directory])
        if code:
            return code
    pip += ["install", "--disable-pip-version-check", "-c", "constraints.txt"]
    before = packages_in(directory)
    log = os.path.join(directory, "install.log")
    with open(log, "w", encoding="utf-8") as lines:
        for wanted in (["pip", "setuptools", "wheel"], ["-e", ".[%s]" % extras]):
            code = run(pip + wanted, lines, screen, directory)
            if code:
                break
    screen.close()
    if code:
        with open(log, encoding="utf-8") as lines:
            sys.stdout.write(lines.read())
        return code
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    state = packages_in(directory) - before, minutes, seconds, megabytes(directory) / 1000
    sys.stdout.write("%s is ready: %d new packages in %d:%02d, %.1f GB in all\n" % (directory, *state))
    return 0


def run(command, log, screen, directory):
    """Run a command of pip, and show its progress; return its exit code."""
    before, progress = packages_in(directory), Progress()
    with open(log.name, encoding="utf-8", errors="replace") as output:
        output.seek(0, os.SEEK_END)
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while child.poll() is None:
                for line in output.readlines():
                    progress.feed(line)
                screen.show(progress.text(packages_in(directory) - before), time.monotonic())
                time.sleep(TURN_SECONDS)
            return child.returncode
        except BaseException:
            child.kill()
            raise


def main(arguments):
    if arguments[:1] == ["check"]:
        return check(arguments[1], named="--named" in arguments)
    return install(*arguments[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
