"""Make the pictures of the docs from a study's results, by headless Chromium.

python -m bench.screenshots [results/quick]

They are docs/overview.png, and of the study's page docs/report.png (light, 1400 pixels wide),
docs/report-dark.png and docs/report-narrow.png (400 pixels).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
# By name: width, height, and further flags.
SHOTS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "report": (1400, 1500, ()),
    "report-dark": (1400, 1500, ("--blink-settings=preferredColorScheme=0",)),
    "report-narrow": (400, 1100, ()),
}


def main() -> int:
    """Make all pictures; return the exit status, 1 without Chromium."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/quick")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("chromium is needed (Debian: apt-get install chromium)", file=sys.stderr)
        return 1
    shutil.copyfile(folder / "tables" / "overview.png", DOCS / "overview.png")
    page = (folder / "report.html").absolute().as_uri()
    for name, (width, height, flags) in SHOTS.items():
        with tempfile.TemporaryDirectory() as profile:
            command = [
                browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={profile}", f"--window-size={width},{height}", *flags,
                f"--screenshot={DOCS / name}.png", page,
            ]  # fmt: skip
            subprocess.run(command, check=True, capture_output=True, timeout=120)
    return 0


if __name__ == "__main__":
    sys.exit(main())
