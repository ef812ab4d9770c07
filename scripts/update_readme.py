"""Run what the README shows and write the output into it.

    python scripts/update_readme.py            the search and the rehearsal
    python scripts/update_readme.py --runs FILE       the tables of published runs instead
    python scripts/update_readme.py --elsewhere FILE  the first of them, of runs that nothing knew
    python scripts/update_readme.py --folds LOG       what `fit_published.py --folds` printed
    python scripts/update_readme.py --campaign LOG    what `campaign.py` printed
    python scripts/update_readme.py --collectives LOG    what `collective_accuracy.py` printed

Output is taken as a terminal of 100 columns shows it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COLUMNS = 100
SHOWN = ("search", "rehearsal")
"""The commands of the README's first line, after those that make the environment, in order."""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r[^\n]*(?=\x1b\[K)")
"""Colours, and progress that is written over."""


def on_terminal(words: list[str]) -> str:
    """What a command shows on a terminal, without colours and progress."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, COLUMNS, 0, 0))
    with subprocess.Popen(words, stdout=terminal, stderr=terminal, cwd=ROOT) as process:
        os.close(terminal)
        chunks = []
        while True:
            try:
                chunk = os.read(screen, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(screen)
    if process.returncode:
        raise SystemExit(f"{shlex.join(words)} ended with {process.returncode}")
    text = CONTROL.sub("", b"".join(chunks).decode().replace("\r\n", "\n"))
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def put(readme: str, name: str, text: str) -> str:
    """The README with what stands between the marks of a name replaced."""
    begin, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, found, rest = readme.partition(begin)
    _, ended, after = f"\n{rest}".partition(end)
    if not (found and ended):
        raise SystemExit(f"README.md has no marks of `{name}`")
    return before + begin + text + end + after


def tables(readme: str, what: str, file: str) -> str:
    """The README with tables from a file; see the script."""
    if what in ("--runs", "--elsewhere"):
        command = [sys.executable, str(ROOT / "scripts" / "published_accuracy.py"), "--runs", file]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        if what == "--runs":
            return put(readme, "accuracy", done.stdout.strip())
        return put(readme, "elsewhere", done.stdout.partition("\nOrder of")[0].strip())
    text = Path(file).read_text()
    if what == "--folds":
        part = text[text.index("left out: ") :].rstrip()
        return put(readme, "left out", f"```text\n{part}\n```")
    if what == "--collectives":
        return put(readme, "collectives", text.strip())
    first = text[text.index("| group") :]
    return put(readme, "campaign", "\n".join(first.partition("\n\n| plan")[0].splitlines()).strip())


def main() -> None:
    """Update the README."""
    readme = README.read_text()
    if len(sys.argv) == len(("script", "--what", "FILE")):
        README.write_text(tables(readme, *sys.argv[1:]))
        return
    (line,) = re.findall(r"^python3 -m venv .*autoplan search.*$", readme, re.MULTILINE)
    commands = [shlex.split(part) for part in line.split(" && ")[2:]]
    for name, words in zip(SHOWN, commands, strict=True):
        readme = put(readme, name, f"```text\n{on_terminal(words)}\n```")
    README.write_text(readme)


if __name__ == "__main__":
    main()
