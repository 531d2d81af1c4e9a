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

The stock step, whose nodes run in parallel, is followed by steps whose nodes run one after the other: in order, and by
schedules within a budget, a share of what the step holds beside what is resident. One schedule was found by measured
costs and one by floating-point operations. Times are medians, in seconds; peaks are in MiB, as the bytes that kernels
ask for and as the chunks of the pool. "Predicted" after a time or a peak is what the prediction is off by; after the
overhead it is the predicted overhead. "Time over FLOPs" compares the two schedules within the budget.

{accuracy}

{accuracy_made_with}

## The cache

`python -m experiments.profiling.cache_use`, kept in `profiling_cache.csv`

"second" profiles a model twice; "killed" kills a run and resumes it; "together" has two processes profile at once;
"truncated" cuts the file of the cache in half. A run measures those signatures of nodes that the cache lacks.

{cache}

{cache_made_with}
"""
