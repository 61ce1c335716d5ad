"""A package manager that says what it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.host.commands import CommandFailed, Finished


class Answers:
    """Stands for apt and dpkg: answers each command with the next of what it was given for its first words."""

    def __init__(self, answers: Mapping[str, list[tuple[int, str]]]) -> None:
        self.answers = {words: list(listed) for words, listed in answers.items()}
        self.asked: list[str] = []
        self.lines: list[str] = []

    def __call__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> Finished:
        line = " ".join(argv)
        self.lines.append(line)
        words, listed = next((words, a) for words, a in self.answers.items() if line.startswith(words))
        self.asked.append(words)
        code, text = listed.pop(0) if len(listed) > 1 else listed[0]
        finished = Finished(tuple(argv), code, text.encode() if code == 0 else b"", text.encode() if code else b"")
        if check and code:
            raise CommandFailed(argv, text, finished)
        return finished
