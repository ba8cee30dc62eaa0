"""The lines of Python in the README of the repository, run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.testing import Server

README = Path(__file__).parents[3] / "README.md"


def test_the_lines_of_python_work_as_they_stand(running: Server, capsys: pytest.CaptureFixture[str]) -> None:
    lines = README.read_text().split("```python\n")[1].split("```")[0]
    exec(lines.replace("127.0.0.1:50051", running.address), {})
    parts, tokens = zip(*(line.split(": a write with token ") for line in capsys.readouterr().out.splitlines()), strict=True)
    assert parts == ("part 0", "part 1", "part 2") and len(set(tokens)) == 1 and int(tokens[0]) > 0
