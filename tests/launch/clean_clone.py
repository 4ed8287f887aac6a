"""How long a stranger waits: clones this project and runs its commands with an emptied environment and empty caches.

    python3 tests/launch/clean_clone.py [--user NAME] [--below FOLDER] [--port 8900]

Prints the seconds to `demo` ready, cold and warm, and to the first test of `test`. As root, `--user` runs it all as another user
(made by useradd) and `--below` clones below a folder that only root may enter. Standard library only; removes what it made, apart
from the servers' data that root's runs keep in /var/lib.
"""

import argparse
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
KEPT = ("CERT", "SSL", "PROXY", "CA_BUNDLE")
"""Variables that name certificates or proxies stay; nothing else does."""
WAIT_SECONDS = 180.0


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if any(part in name.upper() for part in KEPT)}
    return {**kept, "HOME": str(home), "PATH": "/usr/bin:/bin"}


def seconds_until(command: list[str], marks: tuple[str, ...], *, folder: Path, home: Path, user: pwd.struct_passwd | None) -> float:
    """Runs the command until a line begins with one of the marks, then stops it; the seconds that took. Exits if it ends before."""
    log = home / "output.txt"
    options = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    started = time.monotonic()
    with log.open("w") as output:
        places = {"cwd": folder, "env": environment(home), "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **places, **options)  # type: ignore[call-overload]
    try:
        while time.monotonic() - started < WAIT_SECONDS:
            lines = log.read_text(errors="replace").splitlines()
            if any(line.startswith(marks) for line in lines):
                return time.monotonic() - started
            if process.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{' '.join(command)} did not get there:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-20:]))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--user", help="run as this user (as root only)")
    parser.add_argument("--below", type=Path, help="clone below this folder (default: the temporary folder)")
    parser.add_argument("--port", default="8900")
    arguments = parser.parse_args()
    user = pwd.getpwnam(arguments.user) if arguments.user else None
    if arguments.below:
        arguments.below.mkdir(parents=True, exist_ok=True, mode=0o700)
    base = Path(tempfile.mkdtemp(prefix="weir-clone-", dir=arguments.below))
    try:
        clone, home = base / "weir", base / "home"
        subprocess.run(["git", "clone", "-q", str(PROJECT), str(clone)], check=True)
        home.mkdir()
        if user is not None:
            base.chmod(0o755)
            subprocess.run(["chown", "-R", str(user.pw_uid), str(base)], check=True)
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.exit("there is no python3 in /usr/bin or /bin")
        manage = [python, "manage.py"]

        def timed(command: list[str], mark: str) -> float:
            return seconds_until([*manage, *command], (mark,), folder=clone, home=home, user=user)

        var = str(base / "var")
        if user is not None:
            Path(var).mkdir()
            os.chown(var, user.pw_uid, user.pw_gid)
        demo = ["demo", "--port", arguments.port, "--var", var]
        print(f"demo, cold:            ready after {timed(demo, 'Ready on'):.1f} s", flush=True)
        print(f"demo, warm:            ready after {timed(demo, 'Ready on'):.1f} s", flush=True)
        shutil.rmtree(clone / ".venv")
        print(f"test, without a .venv: first test after {timed(['test'], 'tests/'):.1f} s", flush=True)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
