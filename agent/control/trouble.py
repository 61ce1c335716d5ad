"""What is wrong is said once, and once that it is over; in between the log is silent."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class Trouble:
    """One kind of trouble, which may have several reasons in turn. `over` is the sentence for its end."""

    def __init__(self, over: str) -> None:
        self._over = over
        self._said: set[str] = set()

    def begin(self, sentence: str) -> None:
        """It is there, for this reason."""
        if sentence not in self._said:
            self._said.add(sentence)
            _log.warning("%s", sentence)

    def end(self) -> None:
        """It is not there, or not any more."""
        if self._said:
            self._said.clear()
            _log.info("%s", self._over)
