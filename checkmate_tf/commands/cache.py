"""Lists or clears the plans and measurements kept on disk: `checkmate-tf cache list | clear`."""

import argparse
from dataclasses import asdict
from typing import Any

from checkmate_tf.budget import format_bytes
from checkmate_tf.commands.common import ExitStatus, add_json_argument, print_json, print_text
from checkmate_tf.planning.plan_cache import PlanCache
from checkmate_tf.profiling.cache import ProfileCache
from checkmate_tf.reports.tables import tabulate_rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `cache`."""
    parser.add_argument(
        "action", choices=("list", "clear"), help="list the kept plans and measurements, or remove them"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--plans", action="store_const", const="plans", dest="only", help="only plans")
    only.add_argument("--profiles", action="store_const", const="profiles", dest="only", help="only measurements")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitStatus:
    """Lists or clears the caches."""
    kinds = ("plans", "profiles") if args.only is None else (args.only,)
    act = {"list": _list, "clear": _clear}[args.action]
    found = {kind: act(kind) for kind in kinds}
    if args.json:
        print_json(found)
    else:
        print_text("\n\n".join(_describe(kind, **figures) for kind, figures in found.items()))
    return ExitStatus.FOUND


def _list(kind: str) -> dict[str, Any]:
    if kind == "plans":
        cache = PlanCache()
        plans = cache.list()
        return {
            "path": str(cache.folder),
            "num_kept": len(plans),
            "size_bytes": sum(plan.size_bytes for plan in plans),
        }
    with ProfileCache() as profiles:
        counts = profiles.count_by_device()
    return {
        "path": str(profiles.path),
        "num_kept": sum(counts.values()),
        "devices": [{**asdict(key), "measurements": count} for key, count in counts.items()],
    }


def _clear(kind: str) -> dict[str, Any]:
    if kind == "plans":
        plans = PlanCache()
        return {"path": str(plans.folder), "num_removed": plans.clear()}
    with ProfileCache() as profiles:
        return {"path": str(profiles.path), "num_removed": profiles.clear()}


def _describe(
    kind: str,
    path: str,
    num_kept: int | None = None,
    num_removed: int | None = None,
    size_bytes: int | None = None,
    devices: list[dict[str, Any]] | None = None,
) -> str:
    what = "plans" if kind == "plans" else "measurements"
    if num_removed is not None:
        return f"{num_removed} {what} removed from {path}"
    size = f", {format_bytes(size_bytes)}" if size_bytes else ""
    table = f"\n{tabulate_rows(devices)}" if devices else ""
    return f"{num_kept} {what}{size}, in {path}{table}"
