"""Draws the page about a plan as the guide shows it: a ResNet50 with 64 images, within 60 % of its memory.

    python -m experiments.page_picture [--picture FILE.png]

No step runs: peaks and times are predicted, by a roofline of this machine's rates. Needs Chromium.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from experiments.running import ROOT

_SIZE = "1400,1385"  # the width of a laptop's window, and the page down to the table of values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "page.png")
    parser.add_argument("--browser", default="chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "plan.html")
        write_page(page)
        take_picture(page, options.picture.resolve(), options.browser)


def write_page(path: Path) -> None:
    """Plans the model and writes the page about the plan."""
    import keras

    import checkmate_tf

    model = keras.applications.ResNet50(weights=None)
    model.compile("sgd", "sparse_categorical_crossentropy")
    roofline = checkmate_tf.Options(costs="roofline")
    plan = checkmate_tf.rematerialize(model, batch_size=64, budget="60%", options=roofline, measure=False)
    plan.to_html(path)


def take_picture(page: Path, picture: Path, browser: str) -> None:
    """Saves a page as a browser shows it, as PNG."""
    size = [f"--window-size={_SIZE}", "--hide-scrollbars"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", profile, *size]
    subprocess.run([*command, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    main()
