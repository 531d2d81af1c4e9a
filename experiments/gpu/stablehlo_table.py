"""The steps that run_jax.py ran, rewritten ones beside the stock one: memory and time; and which tie keeps them.

python stablehlo_table.py results.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

# A tie keeps a schedule where XLA takes no more than this, of what was predicted for it.
_KEEPS = 1.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    document = json.loads(parser.parse_args().results.read_text())
    print(f"batch {document['batch_size']}, {document['device']}, JAX {document['jax']}, driver {document['driver']}")
    print("\n".join(lines([entry for entry in document["results"] if "signature" not in entry])))
    for failure in document["failed"]:
        print(f"failed: {failure['name']}: {failure['error']}")


def lines(steps: list[dict[str, Any]]) -> list[str]:
    """A line a step, and a line a tie: of how many steps XLA took what was predicted, and what they took beside it."""
    found = [
        f"{'model':14}{'budget':8}{'tie':10}{'predicted MiB':>15}{'temporary MiB':>15}{'device peak MiB':>17}"
        f"{'ms':>10}{'over stock':>12}{'predicted':>11}"
    ]
    stock_ns = {step["model"]: step["time_ns"] for step in steps if step["tie"] is None}
    for step in steps:
        peak_bytes, stock = step["device_peak_bytes"], stock_ns.get(step["model"])
        peak = "unknown" if peak_bytes is None else f"{peak_bytes / 2**20:.1f}"
        slower = "unknown" if stock is None else f"{step['time_ns'] / stock:.2f}"
        found.append(
            f"{step['model']:14}{step['budget']:8}{step['tie'] or '':10}"
            f"{step['predicted_temporary_bytes'] / 2**20:15.1f}{step['temporary_bytes'] / 2**20:15.1f}"
            f"{peak:>17}{step['time_ns'] / 1e6:10.2f}{slower:>12}{1 + step['overhead']:11.2f}"
        )
    for tie in dict.fromkeys(step["tie"] for step in steps if step["tie"]):
        ratios = [step["temporary_bytes"] / step["predicted_temporary_bytes"] for step in steps if step["tie"] == tie]
        kept = sum(ratio <= _KEEPS for ratio in ratios)
        found.append(f"{tie}: {kept} of {len(ratios)} as predicted, {min(ratios):.2f} to {max(ratios):.2f} times it")
    return found


if __name__ == "__main__":
    main()
