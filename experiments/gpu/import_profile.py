"""Takes the node times that run_jax.py measured into the profile cache, under the name of its device.

    python -m experiments.gpu.import_profile results.json [--cache FILE]

`StoredCosts` of checkmate_tf.profiling.costs then plans with them where that device is not at hand.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--cache", type=Path, help="default: in the user's cache directory")
    args = parser.parse_args()
    document = json.loads(args.results.read_text())
    with ProfileCache(args.cache) as cache:
        num_added = cache.add(device_key_of(document), measurements_of(document))
    print(f"{num_added} measurements of {device_key_of(document)} added to {cache.path}")


def device_key_of(document: dict[str, Any]) -> DeviceKey:
    """The driver names JAX: its times are those of XLA, not of TensorFlow's own kernels."""
    driver = f"JAX {document['jax']}, driver {document['driver']}"
    return DeviceKey(document["device"], document["tensorflow"], driver)


def measurements_of(document: dict[str, Any]) -> list[Measurement]:
    return [
        Measurement(
            signature=result["signature"],
            op_types=result["op_types"],
            cost_ns=result["cost_ns"],
            relative_spread=result["relative_spread"],
            repeats=result["repeats"],
            workspace_bytes=result["temporary_bytes"],
            measured_at_s=time.time(),
        )
        for result in document["results"]
        if "signature" in result
    ]


if __name__ == "__main__":
    main()
