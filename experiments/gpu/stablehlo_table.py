"""The steps that run_jax.py ran, rewritten ones beside the stock one: memory and time.

python stablehlo_table.py results.json
"""

import argparse
import json
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    document = json.loads(parser.parse_args().results.read_text())
    print(f"{document['model']}, batch {document['batch_size']}, {document['device']}, JAX {document['jax']}")
    print("\n".join(lines([entry for entry in document["results"] if entry["signature"] is None])))


def lines(steps: list[dict[str, Any]]) -> list[str]:
    """A line a step; the stock step is the first."""
    found = [f"{'step':16}{'temporary MiB':>15}{'of stock':>10}{'device peak MiB':>17}{'ms':>10}{'over stock':>12}"]
    stock = steps[0]
    for step in steps:
        peak = step["device_peak_bytes"]
        found.append(
            f"{step['name']:16}{step['temporary_bytes'] / 2**20:15.1f}"
            f"{step['temporary_bytes'] / stock['temporary_bytes']:10.2f}"
            f"{'unknown' if peak is None else f'{peak / 2**20:.1f}':>17}"
            f"{step['time_ns'] / 1e6:10.2f}{step['time_ns'] / stock['time_ns']:12.2f}"
        )
    return found


if __name__ == "__main__":
    main()
