"""The page of profiling: how near predictions are to measured steps, and what the profile cache saves."""

from experiments.profiling import accuracy, cache_use
from experiments.running import made_with, read_rows


def page() -> str:
    """Both tables in markdown."""
    predictions, runs = read_rows(accuracy.RESULTS), read_rows(cache_use.RESULTS)
    return _PAGE.format(
        accuracy=accuracy.table(predictions),
        accuracy_made_with=made_with(predictions),
        cache=cache_use.table(runs),
        cache_made_with=made_with(runs),
    )


_PAGE = """# Profiling

Written by `python -m experiments.pages profiling.md`.

## Predicted and measured steps

`python -m experiments.profiling.accuracy`, kept in `profiling_accuracy.csv`

The nodes of the stock step run in parallel. In the other steps, nodes run one after the other: in the input order, and
by schedules within a budget, which is a share of the step's memory beside the resident bytes. One schedule was found
with measured costs, and one with floating-point operations. Times are medians, in seconds. Peaks are in MiB, as the
bytes that kernels request and as the chunks of the pool. "Predicted" after a time or a peak is the error of the
prediction, and after the overhead it is the predicted overhead. "Time over FLOPs" compares the two schedules within the
budget.

{accuracy}

{accuracy_made_with}

## The cache

`python -m experiments.profiling.cache_use`, kept in `profiling_cache.csv`

"second" profiles a model twice, "killed" kills a run and resumes it, "together" profiles in two processes at once, and
"truncated" cuts the cache file in half. A run measures the signatures of nodes that are not in the cache.

{cache}

{cache_made_with}
"""
