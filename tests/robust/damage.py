"""Random damage to bytes: flips, insertions, deletions, truncation, splices of two files, and forged numbers."""

from __future__ import annotations

import struct
from random import Random

ACTIONS = ("flip", "flip", "byte", "insert", "delete", "truncate", "splice", "number", "number", "repeat", "zero")
NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)
FORMATS = ("<H", ">H", "<I", ">I", "<Q", ">Q")


def mutate_bytes(content: bytes, other: bytes, rng: Random, head: int = 0) -> tuple[bytes, str]:
    """Return damaged bytes and a description; `other` is spliced in. With `head`, half of the damage falls into that many bytes."""
    changed, notes = bytearray(content), []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        action = rng.choice(ACTIONS)
        size = min(len(changed), head) if head and rng.random() < 0.5 else len(changed)
        start = rng.randrange(size) if size else 0
        notes.append(f"{action} at {start}")
        _apply(action, changed, start, other, rng)
    return bytes(changed), ", ".join(notes)


def _apply(action: str, changed: bytearray, start: int, other: bytes, rng: Random) -> None:
    length = rng.choice((1, 2, 4, 16, 64, 1024))
    if action in ("flip", "byte") and changed:
        changed[start] = changed[start] ^ (1 << rng.randrange(8)) if action == "flip" else rng.choice((0, 255, rng.randrange(256)))
    elif action == "insert":
        changed[start:start] = rng.randbytes(length)
    elif action == "delete":
        del changed[start : start + length]
    elif action == "truncate":
        del changed[start:]
    elif action == "splice":
        begin = rng.randrange(len(other)) if other else 0
        changed[start:] = other[begin:]
    elif action == "number":
        layout = rng.choice(FORMATS)
        mask = 2 ** (8 * struct.calcsize(layout)) - 1
        changed[start : start + struct.calcsize(layout)] = struct.pack(layout, rng.choice(NUMBERS) & mask)
    elif action == "repeat":
        changed[start:start] = changed[start : start + length] * rng.choice((1, 2, 100))
    elif action == "zero":
        changed[start : start + length] = bytes(len(changed[start : start + length]))
