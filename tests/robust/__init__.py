"""Attacks on the whole package: damaged files, kills, full disks, vanishing folders, several writers, jumping clocks, odd input.

    make robust                                                       # everything, about 20 minutes on two cores
    PYTHONPATH=tests python -m robust --kind images --seed 17         # one kind of attack
    PYTHONPATH=tests python -m robust --kind images --seed 17 --only 4711    # one try again, with its traceback

It is in tests/ and not in tools/, since it uses the tiny models and the damage that other tests use, and its short form is a test
(`test_short.py`). An attack (`attack.Attack`) is a file here; `supervisor` watches the process in which its tries run: a
try may be refused with one sentence or accepted, but it must not crash, hang, take too much memory, or lose a model. What a
failed try has read is saved in `cases/`, and used again by `test_cases.py` from then on.
"""

from __future__ import annotations
