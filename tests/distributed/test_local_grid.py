from __future__ import annotations

import os
import signal

import pytest

from caprompt.distributed import local_grid


def test_ctrl_c_is_deferred_while_a_process_starts() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with local_grid._defer_interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("started")
        steps.append("never")
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with local_grid._defer_interrupt():
        steps.append("undisturbed")
    assert steps[-1] == "undisturbed"
