"""What can be reproduced: tables and figures of the paper, one family a file."""

from __future__ import annotations
