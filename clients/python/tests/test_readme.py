"""The lines of Python in the README of the repository, run as they stand."""

from __future__ import annotations

from pathlib import Path

from fencepost.testing import Server

README = Path(__file__).parents[3] / "README.md"


def test_the_lines_of_python_work_as_they_stand(running: Server) -> None:
    lines = README.read_text().split("```python\n")[1].split("```")[0]
    saved: list[tuple[str, int]] = []

    def save(part: str, token: int) -> None:
        saved.append((part, token))

    exec(lines.replace("127.0.0.1:50051", running.address), {"parts": ["a", "b"], "save": save})
    assert [part for part, _ in saved] == ["a", "b"]
    assert saved[0][1] == saved[1][1] > 0
