"""The page on which people teach and try models: its files, and the form that asks for the token."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

__all__ = ["SIGN_IN", "STATIC", "add_page"]

STATIC = Path(__file__).parent / "static"
SIGN_IN = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>caprompt: sign in</title>
<main>
<h1>Sign in</h1>
<p>This server needs the token that it printed when it was started.</p>
<form action="/" method="get">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Sign in</button>
</form>
</main>
</html>
"""


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files under `/static/`."""
    app.add_api_route("/", show_page, response_class=FileResponse, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")


async def show_page() -> FileResponse:
    """Return the page."""
    return FileResponse(STATIC / "index.html", media_type="text/html")
