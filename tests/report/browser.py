"""Chromium, without a window and without a network."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ABSENT = "no Chromium here, so no page was looked at: apt-get install chromium, or name one in SECATEUR_BROWSER"

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_PROBE = Path(__file__).with_name("probe.js")
_FOUND = re.compile(r'<script type="application/json" id="found">(.*?)</script>', re.DOTALL)


def chromium() -> str | None:
    """The browser, if there is one."""
    named = os.environ.get("SECATEUR_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def run(page: Path, *flags: str, width: int, height: int = 900, is_dark: bool = False) -> str:
    """Open a page and return what the browser writes."""
    browser = chromium()
    assert browser is not None
    profile = page.with_suffix(".profile")
    done = subprocess.run(
        [
            browser,
            *_FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},{height}",
            f"--blink-settings=preferredColorScheme={0 if is_dark else 1}",
            *flags,
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    shutil.rmtree(profile, ignore_errors=True)
    return done.stdout


def look(text: str, folder: Path, *, width: int = 1100, is_dark: bool = False) -> dict[str, Any]:
    """What probe.js finds in a page that is shown in a frame, since windows may not be as narrow as a phone."""
    watch = "<script>window.problems = []; addEventListener('error', (e) => problems.push(e.message));\n"
    watch += "addEventListener('securitypolicyviolation', (e) => problems.push(e.blockedURI));</script>"
    probe = f"<script>{_PROBE.read_text(encoding='utf-8')}</script>"
    watched = text.replace("<head>", f"<head>{watch}", 1).replace("</body>", f"{probe}</body>")
    frame = f'<iframe width="{width}" height="900" style="border: 0" srcdoc="{html.escape(watched)}"></iframe>'
    page = folder / f"page-{width}-{is_dark}.html"
    page.write_text(f'<html style="color-scheme: light dark"><body>{frame}</body></html>', encoding="utf-8")
    found = _FOUND.search(run(page, "--dump-dom", width=1200, is_dark=is_dark))
    assert found is not None, "the probe did not come to its end"
    result: dict[str, Any] = json.loads(found[1])
    return result


def picture(text: str, path: Path, *, width: int, height: int, is_dark: bool = False) -> None:
    """Write a PNG of the upper end of a page."""
    page = path.with_suffix(".html")
    page.write_text(text, encoding="utf-8")
    run(page, f"--screenshot={path}", width=width, height=height, is_dark=is_dark)
    page.unlink()
