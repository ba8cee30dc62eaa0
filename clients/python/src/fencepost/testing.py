"""A server for tests, in memory and on a free port."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class Server:
    """A running server. `address` is what a client takes."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address, self.process = address, process


@contextmanager
def server(*arguments: str, start_timeout: float = 10.0) -> Generator[Server, None, None]:
    """Runs `fencepost serve --memory` on a free port of this machine while the block runs.

    The program is that of the environment variable FENCEPOST_BIN, or `fencepost` beside this Python, where the package
    fencepost-server puts it, or on the PATH. `arguments` are further ones for it. Raises FileNotFoundError without the
    program, and RuntimeError with what it says if it does not serve within `start_timeout` seconds.

        @pytest.fixture(scope="session")
        def fencepost():
            with fencepost.testing.server() as server:
                yield fencepost.Client(server.address)
    """
    own = shutil.which("fencepost", path=sysconfig.get_path("scripts"))
    program = os.environ.get("FENCEPOST_BIN") or own or shutil.which("fencepost")
    if not program:
        raise FileNotFoundError("no program fencepost: install fencepost-server, set FENCEPOST_BIN, or put it on the PATH")
    with tempfile.TemporaryDirectory(prefix="fencepost-") as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        command = [program, "serve", "--memory", "--listen", "127.0.0.1:0", "--ready-file", str(ready), *arguments]
        # Variables for a client or a server that the tests are not about.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            end = time.monotonic() + start_timeout
            while not (address := ready.read_text().strip() if ready.exists() else ""):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{program} does not serve: {log.read_text(errors='replace')}")
                time.sleep(0.01)
            yield Server(address.splitlines()[0], process)
        finally:
            process.kill()
            process.wait()
