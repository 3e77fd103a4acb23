"""Write docs/openapi.json, the schema of the HTTP interface, and print the digest that CHANGELOG.md has to state.

python tools/openapi.py
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from caprompt.serve.app import make_schema

SCHEMA = Path(__file__).resolve().parents[1] / "docs" / "openapi.json"


def main() -> None:
    """Write the schema."""
    content = (json.dumps(make_schema(), indent=1) + "\n").encode()
    SCHEMA.write_bytes(content)
    print(hashlib.sha256(content).hexdigest()[:16])


if __name__ == "__main__":
    main()
